// Attention with the whole matrix of scores in memory and the library's batched products, after llm.c's fp32
// trainer. cuda.staged is the same with products of our own, which leave out what a mask hides.
//   forward   permute, scores q·kᵀ, softmax, probabilities · v, unpermute
//   backward  permute, scores and probabilities again, dout·vᵀ, dv, through the softmax, dq, dk, unpermute
// llm.c keeps the probabilities from the forward. The contract of attention keeps lse instead, so this
// backward has one product and one pass over the scores more.
//
// Each choice of the two softmax kernels is an option, which a configuration names.
#include <array>
#include <cfloat>
#include <cstdint>
#include <string>

#include "ops/attention/cuda/ladder/matrices.cuh"
#include "ops/cuda/streaming.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/options.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

constexpr std::string_view kKernel = "cuda.ladder_library";
constexpr int kLanes = 4;
using Float4 = gpu::Packed<float, kLanes>;

struct RowSum {
  float largest, sum;  // the largest product; Σ exp(scale · (product − largest))
};

// One pass for both maximum and sum, 16 bytes at a time: a lane corrects its sum whenever its maximum grows.
__device__ RowSum sum_online(const float* x, int keys, float scale) {
  float largest = -FLT_MAX, sum = 0;  // not −∞: the difference of two infinities is no number
  const auto grow = [&](float to) {
    const float before = largest;
    largest = fmaxf(largest, to);
    sum *= expf(scale * (before - largest));
  };
  const int packs = keys / kLanes;
  for (int i = my_lane(); i < packs; i += gpu::kWarp) {
    const Float4 v = Float4::load(x + i * kLanes);
    grow(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
#pragma unroll
    for (int j = 0; j < kLanes; ++j) sum += expf(scale * (v[j] - largest));
  }
  if (const int last = packs * kLanes + my_lane(); last < keys) {
    grow(x[last]);
    sum += expf(scale * (x[last] - largest));
  }
  const float top = gpu::warp_max(largest);
  return {top, gpu::warp_sum(sum * expf(scale * (largest - top)))};
}

// The maximum in one pass; the exponentials in a second, which keeps them in the row.
__device__ RowSum sum_kept(float* x, int keys, float scale) {
  float largest = -FLT_MAX, sum = 0;
  for (int j = my_lane(); j < keys; j += gpu::kWarp) largest = fmaxf(largest, x[j]);
  largest = gpu::warp_max(largest);
  for (int j = my_lane(); j < keys; j += gpu::kWarp) {
    x[j] = expf(scale * (x[j] - largest));
    sum += x[j];
  }
  return {largest, gpu::warp_sum(sum)};
}

// Replaces each row of products by its probabilities, a warp for each.
//   twice: exponentials are computed again for the output, otherwise kept there
template <bool streaming, bool twice>
__global__ void __launch_bounds__(1024)
    softmax_rows(float* scores, float* lse, const __grid_constant__ Scores s, bool reverse) {
  const std::int64_t index = row_of_warp(reverse);
  if (index >= s.rows()) return;
  const Scores::Row row = s.row(index);
  float* x = scores + index * s.sizes.row_of_scores();
  const RowSum total = twice ? sum_online(x, row.keys, s.scale) : sum_kept(x, row.keys, s.scale);
  __syncwarp();  // lanes write what others have read
  const float inverse = 1 / total.sum;
  for (int j = my_lane(); j < row.keys; j += gpu::kWarp) {
    const float kept = gpu::load_number<streaming>(x + j);
    const float e = twice ? expf(s.scale * (kept - total.largest)) : kept;
    gpu::store_number<streaming>(x + j, e * inverse);
  }
  for (int j = row.keys + my_lane(); j < s.sizes.Lk; j += gpu::kWarp) gpu::store_number<streaming>(x + j, 0);
  if (lse && row.lse >= 0 && my_lane() == 0) {
    lse[row.lse] = row.keys == 0 ? -INFINITY : s.scale * total.largest + logf(total.sum);
  }
}

// Replaces each row of products by the forward's probabilities, from lse.
__global__ void __launch_bounds__(1024)
    probabilities_again(float* scores, const float* lse, const __grid_constant__ Scores s) {
  const std::int64_t index = row_of_warp(false);
  if (index >= s.rows()) return;
  const Scores::Row row = s.row(index);
  float* x = scores + index * s.sizes.row_of_scores();
  for (int j = my_lane(); j < s.sizes.Lk; j += gpu::kWarp) {
    x[j] = j < row.keys ? expf(s.scale * x[j] - lse[row.lse]) : 0;
  }
}

// dscores = scale · P ∘ (dP − D), which replaces dP. A block takes kRows consecutive rows of one matrix, one
// after the other. D is the sum of P ∘ dP over the row, which the block then reads a second time, or
// dout·out.
constexpr int kRows = 4;
template <bool streaming, bool row_sums>
__global__ void __launch_bounds__(256)
    softmax_backward_rows(const float* probabilities, float* dprobabilities, const float* dout, Rows out,
                          const __grid_constant__ Scores s, bool reverse) {
  __shared__ float sums[2][256 / gpu::kWarp];  // in turns, so that one barrier for each row suffices
  const std::int64_t matrix = blockIdx.y, HS = s.sizes.HS, width = s.sizes.row_of_scores();
  const std::int64_t block = reverse ? gridDim.x - blockIdx.x - 1 : blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t query = block * kRows + (reverse ? kRows - 1 - i : i);
    if (query >= s.sizes.Lq) continue;  // the same for the whole block
    const std::int64_t index = matrix * s.sizes.Lq + query;
    const Scores::Row row = s.row(index);
    const float* p = probabilities + index * width;
    float* dp = dprobabilities + index * width;
    float sum = 0;
    if (row_sums) {
      for (int j = thread; j < row.keys; j += threads) sum = fmaf(p[j], dp[j], sum);
    } else if (row.lse >= 0) {
      const auto* out_row = reinterpret_cast<const float*>(out.at(row.tile.q0 + row.query, row.head));
      for (int d = thread; d < HS; d += threads) sum = fmaf(dout[index * HS + d], out_row[d], sum);
    }
    sum = gpu::block_sum(sum, sums[i % 2]);
    for (int j = thread; j < row.keys; j += threads) {
      const float gradient = gpu::load_number<streaming>(p + j) * (gpu::load_number<streaming>(dp + j) - sum);
      gpu::store_number<streaming>(dp + j, s.scale * gradient);
    }
    for (int j = row.keys + thread; j < s.sizes.Lk; j += threads) gpu::store_number<streaming>(dp + j, 0);
  }
}

// ---- Options ----

struct ForwardOption {
  int threads = 256;
  bool reverse = true, streaming = true, twice = true;

  std::string text() const {
    return "block " + std::to_string(threads) + (reverse ? ", reverse" : ", forward") +
           (streaming ? ", streaming" : ", cached") + (twice ? ", exp twice" : ", exp kept");
  }
};
constexpr std::array kForwardOptions{
    ForwardOption{},
    ForwardOption{.threads = 128},
    ForwardOption{.threads = 512},
    ForwardOption{.reverse = false},
    ForwardOption{.streaming = false},
    ForwardOption{.twice = false},
    ForwardOption{.streaming = false, .twice = false},
};

struct BackwardOption {
  int threads = 256;
  bool reverse = true, streaming = true, row_sums = false;

  std::string text() const {
    return "block " + std::to_string(threads) + (reverse ? ", reverse" : ", forward") +
           (streaming ? ", streaming" : ", cached") + (row_sums ? ", D from rows" : ", D from out");
  }
};
constexpr std::array kBackwardOptions{
    BackwardOption{},
    BackwardOption{.row_sums = true},
    BackwardOption{.threads = 64, .row_sums = true},
    BackwardOption{.threads = 128, .row_sums = true},
    BackwardOption{.reverse = false, .row_sums = true},
    BackwardOption{.streaming = false, .row_sums = true},
};

const ForwardOption& option_for(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return option_of(kForwardOptions, "attention.forward", kKernel, p, device);
}
const BackwardOption& option_for(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return option_of(kBackwardOptions, "attention.backward", kKernel, p, device);
}

struct BackwardTensors {
  BackwardTensors(Scratch& scratch, const Sizes& s)
      : again(scratch, s),
        dout(scratch.take<float>(s.queries())),
        dq(scratch.take<float>(s.queries())),
        dk(scratch.take<float>(s.keys())),
        dv(scratch.take<float>(s.keys())),
        dscores(scratch.take<float>(s.scores())) {}
  ForwardTensors<float> again;
  float *dout, *dq, *dk, *dv;
  float* dscores;  // gradients of the probabilities, later of the scores
};

class Stages : public Matrices<float> {
 public:
  using Matrices<float>::Matrices;

  void softmax(float* scores, float* lse, const ForwardOption& o) const {
    const auto kernel = o.streaming ? o.twice ? softmax_rows<true, true> : softmax_rows<true, false>
                        : o.twice ? softmax_rows<false, true>
                                    : softmax_rows<false, false>;
    kernel<<<blocks_of_rows(o.threads), static_cast<unsigned>(o.threads), 0, stream()>>>(scores, lse, s_,
                                                                                         o.reverse);
  }
  void probabilities(float* scores, const float* lse) const {
    constexpr int kThreads = 256;
    probabilities_again<<<blocks_of_rows(kThreads), kThreads, 0, stream()>>>(scores, lse, s_);
  }
  void softmax_backward(const BackwardTensors& at, const Tensor& out, const BackwardOption& o) const {
    const auto kernel =
        o.streaming  ? o.row_sums ? softmax_backward_rows<true, true> : softmax_backward_rows<true, false>
         : o.row_sums ? softmax_backward_rows<false, true>
                     : softmax_backward_rows<false, false>;
    const dim3 blocks(static_cast<unsigned>((s_.sizes.Lq + kRows - 1) / kRows),
                      static_cast<unsigned>(s_.sizes.heads()));
    kernel<<<blocks, static_cast<unsigned>(o.threads), 0, stream()>>>(at.again.scores, at.dscores, at.dout,
                                                                      Rows(out), s_, o.reverse);
  }
};

void library_forward(const Context& context, const AttentionForward& args) {
  const AttentionForwardProblem problem = args.problem();
  const Sizes sizes = sizes_of<float>(problem);
  Scratch scratch(context.scratch());
  const ForwardTensors<float> at(scratch, sizes);
  const Stages stages(context, args, sizes);
  stages.permute_queries(args.q, at.q);
  stages.permute_keys(args.k, at.k);
  stages.permute_keys(args.v, at.v);
  stages.scores(at.q, at.k, at.scores);
  stages.softmax(at.scores, args.lse.as<float>(), option_for(problem, context.device()));
  stages.sum_over_keys(at.scores, at.v, at.q);
  stages.unpermute_queries(at.q, args.out);
  warpwright::cuda::check_launch("attention.forward cuda.ladder_library");
}

void library_backward(const Context& context, const AttentionBackward& args) {
  const AttentionBackwardProblem problem = args.problem();
  const Sizes sizes = sizes_of<float>(problem);
  Scratch scratch(context.scratch());
  const BackwardTensors at(scratch, sizes);
  const ForwardTensors<float>& again = at.again;
  const Stages stages(context, args, sizes);
  stages.permute_queries(args.q, again.q);
  stages.permute_keys(args.k, again.k);
  stages.permute_keys(args.v, again.v);
  stages.permute_queries(args.dout, at.dout);
  stages.scores(again.q, again.k, again.scores);
  stages.probabilities(again.scores, args.lse.as<float>());
  stages.scores(at.dout, again.v, at.dscores);
  stages.sum_over_queries(again.scores, at.dout, at.dv);
  stages.softmax_backward(at, args.out, option_for(problem, context.device()));
  stages.sum_over_keys(at.dscores, again.k, at.dq);
  stages.sum_over_queries(at.dscores, again.q, at.dk);
  stages.unpermute_queries(at.dq, args.dq);
  stages.unpermute_keys(at.dk, args.dk);
  stages.unpermute_keys(at.dv, args.dv);
  warpwright::cuda::check_launch("attention.backward cuda.ladder_library");
}

std::size_t forward_bytes(const AttentionForwardProblem& p, const DeviceInfo&) {
  Scratch scratch(nullptr);
  const ForwardTensors<float> counted(scratch, sizes_of<float>(p));
  return scratch.bytes();
}
std::size_t backward_bytes(const AttentionBackwardProblem& p, const DeviceInfo&) {
  Scratch scratch(nullptr);
  const BackwardTensors counted(scratch, sizes_of<float>(p));
  return scratch.bytes();
}

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (p.batch_invariant) return "the library's sums may depend on the number of sequences";
  return refuse_matrices<float>(p, 1);
}
Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return refuse_matrices<float>(p, 2);
}

std::string forward_configuration(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::string backward_configuration(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> forward_configurations(const AttentionForwardProblem&, const DeviceInfo&) {
  return configurations_of(kForwardOptions);
}
std::vector<Configuration> backward_configurations(const AttentionBackwardProblem&, const DeviceInfo&) {
  return configurations_of(kBackwardOptions);
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.ladder_library"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = {DType::f32},
    .run = attention::cuda::library_forward,
    .refuse = attention::cuda::refuse_forward,
    .workspace = attention::cuda::forward_bytes,
    .configuration = attention::cuda::forward_configuration,
    .configurations = attention::cuda::forward_configurations,
    .only_forced = true};
WARPWRIGHT_KERNEL(AttentionBackward, "cuda.ladder_library"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = {DType::f32},
    .run = attention::cuda::library_backward,
    .refuse = attention::cuda::refuse_backward,
    .workspace = attention::cuda::backward_bytes,
    .configuration = attention::cuda::backward_configuration,
    .configurations = attention::cuda::backward_configurations,
    .only_forced = true};

}  // namespace warpwright::ops
