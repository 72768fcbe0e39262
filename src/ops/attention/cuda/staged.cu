// Attention in stages. Each stage is a kernel over the whole problem and stores a tensor in the scratch:
//   forward   permute, scores q·kᵀ, softmax, probabilities · v, unpermute
//   backward  permute dout, probabilities again, dout·vᵀ, dv, through the softmax, dq, dk, unpermute
// The flash kernels compute the same without storing a score. This file shows what they do, step by step.
// cuda.staged_registers and cuda.staged_shared are the same forward, but their softmax keeps a row of scores
// in registers or in shared memory (staged_softmax.cuh).
//
// The scratch is fp32. Scores are stored as (NH, Nq, width), where width is the largest number of keys that a
// sequence may have. A row is written and read only at keys that its query sees. A causal mask thus costs no
// work in tiles above the diagonal, and a row contains −inf only for keys that its sequence's mask hides. The
// price is memory and its traffic: 4·NH·Nq·width bytes in the forward, twice that in the backward.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "ops/attention/cuda/refuse.cuh"
#include "ops/attention/cuda/staged_products.cuh"
#include "ops/attention/cuda/staged_softmax.cuh"
#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

// The number of keys in a row of scores.
template <class Problem>
std::int64_t most_keys(const Problem& p) {
  return p.max_seqlen > 0 ? std::min(p.max_seqlen, p.Nk) : p.Nk;
}

struct Sizes {
  std::int64_t Nq, Nk, NH, HS, width;
};
Sizes sizes_of(const AttentionForwardProblem& p) {
  return {p.Nq, p.Nk, p.NH, p.HS, most_keys(p)};
}
Sizes sizes_of(const AttentionBackwardProblem& p) {
  return {p.Nq, p.Nk, p.NH, p.HS, most_keys(p)};
}

// Hands out the scratch in the order of the requests. With a null base it only counts.
class Scratch {
 public:
  explicit Scratch(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}
  float* take(std::int64_t count) {
    auto* taken = reinterpret_cast<float*>(base_ + bytes_);
    bytes_ += (static_cast<std::size_t>(count) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uintptr_t base_;
  std::size_t bytes_ = 0;
};

struct ForwardScratch {
  ForwardScratch(void* base, const Sizes& s) {
    Scratch scratch(base);
    q = scratch.take(s.NH * s.Nq * s.HS);
    k = scratch.take(s.NH * s.Nk * s.HS);
    v = scratch.take(s.NH * s.Nk * s.HS);
    scores = scratch.take(s.NH * s.Nq * s.width);
    bytes = scratch.bytes();
  }
  float *q, *k, *v;  // (NH, N, HS); out replaces q once the scores exist
  float* scores;     // (NH, Nq, width); later the probabilities
  std::size_t bytes;
};

struct BackwardScratch {
  BackwardScratch(void* base, const Sizes& s) : forward(base, s) {
    Scratch scratch(base ? static_cast<std::byte*>(base) + forward.bytes : nullptr);
    dout = scratch.take(s.NH * s.Nq * s.HS);
    dq = scratch.take(s.NH * s.Nq * s.HS);
    dk = scratch.take(s.NH * s.Nk * s.HS);
    dv = scratch.take(s.NH * s.Nk * s.HS);
    dscores = scratch.take(s.NH * s.Nq * s.width);
    bytes = forward.bytes + scratch.bytes();
  }
  ForwardScratch forward;
  float *dout, *dq, *dk, *dv;
  float* dscores;  // gradients of the probabilities, later of the scores
  std::size_t bytes;
};

// The stages, on one stream. A stage without work is not launched.
class Stages {
 public:
  template <class Args>
  Stages(const Context& context, const Args& a, const Sizes& sizes)
      : s_{Sequences(a), static_cast<int>(sizes.HS), static_cast<int>(sizes.width)},
        stream_(context.stream().get()) {}

  int width() const { return s_.width; }

  template <class T>
  void permute_queries(const Tensor& from, float* to) const {
    permute<T>(from, s_.sequences.q, to);
  }
  template <class T>
  void permute_keys(const Tensor& from, float* to) const {
    permute<T>(from, s_.sequences.k, to);
  }
  template <class T>
  void unpermute_queries(const float* from, const Tensor& to) const {
    unpermute<T>(from, s_.sequences.q, to);
  }
  template <class T>
  void unpermute_keys(const float* from, const Tensor& to) const {
    unpermute<T>(from, s_.sequences.k, to);
  }
  void scores(const float* left, const float* right, float* to) const {
    product(scores_kernel, s_.sequences.Nq, s_.width, left, right, to);
  }
  void sum_over_keys(const float* weights, const float* of, float* to) const {
    product(sum_over_keys_kernel, s_.sequences.Nq, s_.head_size, weights, of, to);
  }
  void sum_over_queries(const float* weights, const float* of, float* to) const {
    product(sum_over_queries_kernel, s_.sequences.Nk, s_.head_size, weights, of, to);
  }
  // Launches a kernel in which each warp takes one query at a time, with `warps` warps per block.
  template <class... Parameters, class... Args>
  void queries(void (*kernel)(Parameters...), std::size_t warps, std::size_t shared,
               const Args&... args) const {
    const unsigned blocks = s_.sequences.blocks(s_.sequences.Nq, kRowWarps);
    if (blocks > 0)
      kernel<<<blocks, static_cast<unsigned>(warps * gpu::kWarp), shared, stream_>>>(args..., s_);
  }

 private:
  static unsigned blocks_for(std::int64_t count) {
    return static_cast<unsigned>((count + kProductThreads - 1) / kProductThreads);
  }
  template <class T>
  void permute(const Tensor& from, const std::int32_t* cu_seqlens, float* to) const {
    if (from.elements() == 0) return;
    permute_kernel<T><<<blocks_for(from.elements()), kProductThreads, 0, stream_>>>(
        Rows(from), cu_seqlens, to, static_cast<int>(from.shape[0]), s_);
  }
  template <class T>
  void unpermute(const float* from, const std::int32_t* cu_seqlens, const Tensor& to) const {
    if (to.elements() == 0) return;
    unpermute_kernel<T><<<blocks_for(to.elements()), kProductThreads, 0, stream_>>>(
        from, cu_seqlens, Rows(to), static_cast<int>(to.shape[0]), s_);
  }
  // If there are more tiles than a grid allows in this direction, a block takes several of them.
  template <class Kernel>
  void product(Kernel kernel, int rows, int columns, const float* a, const float* b, float* to) const {
    constexpr int kMostBlocks = 65535;
    const unsigned blocks = s_.sequences.blocks(rows, kTile);
    if (blocks == 0 || columns == 0) return;
    const int across = std::min((columns - 1) / kTile + 1, kMostBlocks);
    kernel<<<dim3(blocks, static_cast<unsigned>(across)), kProductThreads, 0, stream_>>>(a, b, to, s_);
  }

  Staged s_;
  cudaStream_t stream_;
};

template <class Softmax>
void launch_softmax(const Stages& stages, std::size_t warps, std::size_t shared, float* scores,
                    const ForwardParameters& p) {
  const bool pairs = p.bias.data || p.visible.data;
  const auto kernel = pairs ? softmax_kernel<Softmax, true> : softmax_kernel<Softmax, false>;
  gpu::allow_shared(kernel, shared);
  stages.queries(kernel, warps, shared, scores, p);
}

void online_softmax(const Stages& stages, float* scores, const ForwardParameters& p) {
  launch_softmax<OnlineSoftmax>(stages, kRowWarps, 0, scores, p);
}

constexpr std::int64_t kMostKeysInRegisters = 1024;

// Uses as many registers as the longest row needs, rounded up to a power of two.
template <int kHeld = 2>
void softmax_in_registers(const Stages& stages, float* scores, const ForwardParameters& p) {
  if constexpr (kHeld * gpu::kWarp < kMostKeysInRegisters) {
    if (stages.width() > kHeld * gpu::kWarp) return softmax_in_registers<2 * kHeld>(stages, scores, p);
  }
  launch_softmax<SoftmaxInRegisters<kHeld>>(stages, kRowWarps, 0, scores, p);
}

// As many rows per block as fit into the shared memory that needs no request. Longer rows are processed one
// by one.
void softmax_in_shared(const Stages& stages, float* scores, const ForwardParameters& p) {
  constexpr std::size_t kUnasked = 48 * 1024;
  const std::size_t row = sizeof(float) * static_cast<std::size_t>(std::max(stages.width(), 1));
  const std::size_t warps = std::clamp<std::size_t>(kUnasked / row, 1, kRowWarps);
  launch_softmax<SoftmaxInShared>(stages, warps, warps * row, scores, p);
}

template <class Softmax>
void forward(const Context& context, const AttentionForward& args, Softmax softmax, std::string_view what) {
  const Sizes sizes = sizes_of(args.problem());
  const Stages stages(context, args, sizes);
  const ForwardScratch at(context.scratch(), sizes);
  gpu::visit_gpu_dtype(args.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    stages.permute_queries<T>(args.q, at.q);
    stages.permute_keys<T>(args.k, at.k);
    stages.permute_keys<T>(args.v, at.v);
    stages.scores(at.q, at.k, at.scores);
    softmax(stages, at.scores, ForwardParameters(args));
    stages.sum_over_keys(at.scores, at.v, at.q);
    stages.unpermute_queries<T>(at.q, args.out);
  });
  warpwright::cuda::check_launch(what);
}

void staged_forward(const Context& context, const AttentionForward& args) {
  forward(context, args, online_softmax, "attention.forward cuda.staged");
}
void staged_registers_forward(const Context& context, const AttentionForward& args) {
  forward(context, args, softmax_in_registers<>, "attention.forward cuda.staged_registers");
}
void staged_shared_forward(const Context& context, const AttentionForward& args) {
  forward(context, args, softmax_in_shared, "attention.forward cuda.staged_shared");
}

void staged_backward(const Context& context, const AttentionBackward& args) {
  const Sizes sizes = sizes_of(args.problem());
  const Stages stages(context, args, sizes);
  const BackwardScratch at(context.scratch(), sizes);
  const ForwardScratch& again = at.forward;
  gpu::visit_gpu_dtype(args.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    stages.permute_queries<T>(args.q, again.q);
    stages.permute_keys<T>(args.k, again.k);
    stages.permute_keys<T>(args.v, again.v);
    stages.permute_queries<T>(args.dout, at.dout);
    stages.scores(again.q, again.k, again.scores);
    stages.queries(probabilities_kernel, kRowWarps, 0, again.scores, args.lse.as<float>(), args.scale);
    stages.scores(at.dout, again.v, at.dscores);
    stages.sum_over_queries(again.scores, at.dout, at.dv);
    stages.queries(softmax_backward_kernel<T>, kRowWarps, 0, again.scores, at.dscores, at.dout,
                   Rows(args.out), args.scale);
    stages.sum_over_keys(at.dscores, again.k, at.dq);
    stages.sum_over_queries(at.dscores, again.q, at.dk);
    stages.unpermute_queries<T>(at.dq, args.dq);
    stages.unpermute_keys<T>(at.dk, args.dk);
    stages.unpermute_keys<T>(at.dv, args.dv);
  });
  warpwright::cuda::check_launch("attention.backward cuda.staged");
}

std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo&) {
  return ForwardScratch(nullptr, sizes_of(p)).bytes;
}
std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return BackwardScratch(nullptr, sizes_of(p)).bytes;
}

// Refuses groups of query heads, and `tensors` tensors of scores that are too large. It computes in fp64,
// because for shapes that no memory can hold the product exceeds 64 bits.
template <class Problem>
Refusal refuse_scores(const Problem& p, int tensors) {
  if (Refusal refusal = refuse_window(p)) return refusal;
  if (Refusal refusal = refuse_groups(p)) return refusal;
  constexpr double kMostBytes = 0x1p32;
  const double bytes = 4.0 * tensors * static_cast<double>(p.NH) * static_cast<double>(p.Nq) *
                       static_cast<double>(most_keys(p));
  if (bytes <= kMostBytes) return "";
  char text[64];
  std::snprintf(text, sizeof(text), "its scores take %.1f GiB", bytes / 0x1p30);
  return text;
}
Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  return refuse_scores(p, 1);
}
Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return refuse_scores(p, 2);
}

// For a softmax that holds a whole row of scores.
Refusal refuse_rows(const AttentionForwardProblem& p, std::int64_t most, const std::string& where) {
  if (Refusal refusal = refuse_scores(p, 1)) return refusal;
  const std::int64_t keys = most_keys(p);
  if (keys <= most) return "";
  return "a row may have " + std::to_string(keys) + " keys, " + where + " hold " + std::to_string(most);
}
Refusal refuse_registers(const AttentionForwardProblem& p, const DeviceInfo&) {
  return refuse_rows(p, kMostKeysInRegisters, "a warp's registers");
}
Refusal refuse_shared_rows(const AttentionForwardProblem& p, const DeviceInfo& device) {
  const std::size_t bytes = device.gpu.shared_bytes_per_block;
  return refuse_rows(p, static_cast<std::int64_t>(bytes / sizeof(float)),
                     std::to_string(bytes) + " bytes of a block's shared memory");
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.staged"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = kGpuDTypes,
                                                             .run = attention::cuda::staged_forward,
                                                             .refuse = attention::cuda::refuse_forward,
                                                             .workspace = attention::cuda::forward_workspace};
WARPWRIGHT_KERNEL(AttentionForward, "cuda.staged_registers"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = attention::cuda::staged_registers_forward,
    .refuse = attention::cuda::refuse_registers,
    .workspace = attention::cuda::forward_workspace};
WARPWRIGHT_KERNEL(AttentionForward, "cuda.staged_shared"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = attention::cuda::staged_shared_forward,
    .refuse = attention::cuda::refuse_shared_rows,
    .workspace = attention::cuda::forward_workspace};
WARPWRIGHT_KERNEL(AttentionBackward, "cuda.staged"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = attention::cuda::staged_backward,
    .refuse = attention::cuda::refuse_backward,
    .workspace = attention::cuda::backward_workspace};

}  // namespace warpwright::ops
