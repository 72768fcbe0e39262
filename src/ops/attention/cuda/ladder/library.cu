// Attention with the whole matrix of scores in memory and the library's batched products, after llm.c's fp32
// trainer. cuda.staged is the same with products of our own, which leave out what a mask hides.
//   forward   permute, scores q·kᵀ, softmax, probabilities · v, unpermute
//   backward  permute, scores and probabilities again, dout·vᵀ, dv, through the softmax, dq, dk, unpermute
// llm.c keeps the probabilities from the forward. The contract of attention keeps lse instead, so this
// backward has one product and one pass over the scores more.
//
// Sequences of one length L are stored as (S, NH, L, HS), fp32, and a matrix of scores as (Lq, Lk), whose
// rows are padded to a multiple of four numbers so that each begins at 16 bytes. The products take whole
// matrices. So what a query does not see is written as 0 in both directions before a product reads it.
//
// Each choice of the two softmax kernels is an option, which a configuration names.
#include <array>
#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <string>

#include "ops/attention/cuda/ladder/batched.hpp"
#include "ops/attention/cuda/refuse.cuh"
#include "ops/attention/cuda/sequences.cuh"
#include "ops/attention/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/streaming.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/options.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

constexpr std::string_view kKernel = "cuda.ladder_library";
constexpr int kPermuteThreads = 256, kLanes = 4;

using Float4 = gpu::Packed<float, kLanes>;

// S sequences of at most Lq queries and Lk keys.
struct Sizes {
  std::int64_t S, NH, Lq, Lk, HS;

  __host__ __device__ std::int64_t heads() const { return S * NH; }
  __host__ __device__ std::int64_t row_of_scores() const { return (Lk + kLanes - 1) / kLanes * kLanes; }
  std::int64_t queries() const { return heads() * Lq * HS; }
  std::int64_t keys() const { return heads() * Lk * HS; }
  std::int64_t scores() const { return heads() * Lq * row_of_scores(); }
};

template <class Problem>
Sizes sizes_of(const Problem& p) {
  return {p.sequences, p.NH, p.Nq / p.sequences, p.Nk / p.sequences, p.HS};
}

// ---- Permutation: between (N, NH, HS) and (S, NH, L, HS) ----

// The place in (N, NH, HS) of an element of (S, NH, L, HS).
struct Place {
  std::int64_t row, head, d;
  bool used;  // the sequence has this row
};
__device__ Place place_of(std::int64_t at, const std::int32_t* cu_seqlens, int sequences, int N,
                          std::int64_t NH, std::int64_t L, std::int64_t HS) {
  const std::int64_t row = at / HS, head = row / L;
  const auto s = static_cast<int>(head / NH);
  if (s >= sequences) return {0, 0, 0, false};
  const int first = bound(cu_seqlens, s, N), end = bound(cu_seqlens, s + 1, N);
  return {first + row % L, head % NH, at % HS, first + row % L < end};
}

__global__ void __launch_bounds__(kPermuteThreads)
    permute_rows(Rows from, const std::int32_t* cu_seqlens, int sequences, int N, float* to, std::int64_t NH,
                 std::int64_t L, std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kPermuteThreads + threadIdx.x;
  if (at >= sequences * NH * L * HS) return;
  const Place place = place_of(at, cu_seqlens, sequences, N, NH, L, HS);
  to[at] = place.used ? reinterpret_cast<const float*>(
                            from.at(static_cast<int>(place.row), static_cast<int>(place.head)))[place.d]
                      : 0.0f;
}

__global__ void __launch_bounds__(kPermuteThreads)
    unpermute_rows(const float* from, const std::int32_t* cu_seqlens, int sequences, int N, Rows to,
                   std::int64_t NH, std::int64_t L, std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kPermuteThreads + threadIdx.x;
  if (at >= sequences * NH * L * HS) return;
  const Place place = place_of(at, cu_seqlens, sequences, N, NH, L, HS);
  if (!place.used) return;
  reinterpret_cast<float*>(to.at(static_cast<int>(place.row), static_cast<int>(place.head)))[place.d] =
      from[at];
}

// ---- Softmax ----

// The scores of all heads, row by row.
struct Scores {
  Sequences sequences;
  Sizes sizes;
  float scale;

  struct Row {
    Tile tile;         // the whole sequence
    int head, query;   // query: counts from the sequence's first
    int keys;          // that the query sees; 0 if the sequence has no such query
    std::int64_t lse;  // its place in lse (NH, Nq)
  };
  __device__ Row row(std::int64_t index) const {
    const std::int64_t matrix = index / sizes.Lq;
    Row row;
    row.tile = whole_sequence(sequences, static_cast<int>(matrix / sizes.NH));
    row.head = static_cast<int>(matrix % sizes.NH);
    row.query = static_cast<int>(index % sizes.Lq);
    const bool used = row.query < row.tile.Lq;
    const int seen = used ? row.tile.visible_keys(row.query, sequences.causal) : 0;
    row.keys = min(seen, static_cast<int>(sizes.Lk));
    row.lse = used ? static_cast<std::int64_t>(row.head) * sequences.Nq + row.tile.q0 + row.query : -1;
    return row;
  }
  __device__ std::int64_t rows() const { return sizes.heads() * sizes.Lq; }
};

__device__ int my_lane() {
  return static_cast<int>(threadIdx.x) % gpu::kWarp;
}

// The warp's row, or rows() if it has none. In reverse order, the longest rows of a causal mask come first,
// and the caches keep the first rows for the product that follows.
__device__ std::int64_t row_of_warp(bool reverse) {
  const std::int64_t block = reverse ? gridDim.x - blockIdx.x - 1 : blockIdx.x;
  return block * (blockDim.x / gpu::kWarp) + threadIdx.x / gpu::kWarp;
}

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

// ---- Stages ----

// Hands out the scratch after the library's workspace. With a null base it only counts.
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
  std::size_t bytes_ = kBatchedWorkspace;
};

struct ForwardTensors {
  ForwardTensors(Scratch& scratch, const Sizes& s)
      : q(scratch.take(s.queries())),
        k(scratch.take(s.keys())),
        v(scratch.take(s.keys())),
        scores(scratch.take(s.scores())) {}
  float *q, *k, *v;  // (S, NH, L, HS); out replaces q once the scores exist
  float* scores;     // (S, NH, Lq, Lk); later the probabilities
};
struct BackwardTensors {
  BackwardTensors(Scratch& scratch, const Sizes& s)
      : again(scratch, s),
        dout(scratch.take(s.queries())),
        dq(scratch.take(s.queries())),
        dk(scratch.take(s.keys())),
        dv(scratch.take(s.keys())),
        dscores(scratch.take(s.scores())) {}
  ForwardTensors again;
  float *dout, *dq, *dk, *dv;
  float* dscores;  // gradients of the probabilities, later of the scores
};

class Stages {
 public:
  template <class Args>
  Stages(const Context& context, const Args& args, const Sizes& sizes)
      : context_(context), s_{Sequences(args), sizes, args.scale} {}

  void permute_queries(const Tensor& from, float* to) const {
    permute(from, s_.sequences.q, s_.sizes.Lq, to);
  }
  void permute_keys(const Tensor& from, float* to) const { permute(from, s_.sequences.k, s_.sizes.Lk, to); }
  void unpermute_queries(const float* from, const Tensor& to) const {
    unpermute(from, s_.sequences.q, s_.sizes.Lq, to);
  }
  void unpermute_keys(const float* from, const Tensor& to) const {
    unpermute(from, s_.sequences.k, s_.sizes.Lk, to);
  }
  // scores = queries · keysᵀ
  void scores(const float* queries, const float* keys, float* to) const {
    multiply({.rows = s_.sizes.Lq, .cols = s_.sizes.Lk, .depth = s_.sizes.HS},
             {of_queries(), transposed(of_keys()), of_scores()}, queries, keys, to);
  }
  // queries = weights · keys
  void sum_over_keys(const float* weights, const float* keys, float* to) const {
    multiply({.rows = s_.sizes.Lq, .cols = s_.sizes.HS, .depth = s_.sizes.Lk},
             {of_scores(), of_keys(), of_queries()}, weights, keys, to);
  }
  // keys = weightsᵀ · queries
  void sum_over_queries(const float* weights, const float* queries, float* to) const {
    multiply({.rows = s_.sizes.Lk, .cols = s_.sizes.HS, .depth = s_.sizes.Lq},
             {transposed(of_scores()), of_queries(), of_keys()}, weights, queries, to);
  }
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

 private:
  struct Factors {
    BatchedFactor a, b, out;
  };
  BatchedFactor of_queries() const { return {s_.sizes.HS, s_.sizes.Lq * s_.sizes.HS}; }
  BatchedFactor of_keys() const { return {s_.sizes.HS, s_.sizes.Lk * s_.sizes.HS}; }
  BatchedFactor of_scores() const {
    return {s_.sizes.row_of_scores(), s_.sizes.Lq * s_.sizes.row_of_scores()};
  }
  static BatchedFactor transposed(BatchedFactor factor) {
    factor.transposed = true;
    return factor;
  }
  void multiply(BatchedProduct product, const Factors& factors, const float* a, const float* b,
                float* to) const {
    product.count = s_.sizes.heads();
    product.a = factors.a, product.b = factors.b, product.out = factors.out;
    cuda::multiply(context_, product, a, b, to);
  }
  cudaStream_t stream() const { return context_.stream().get(); }
  static unsigned blocks_of(std::int64_t count, std::int64_t each) {
    return static_cast<unsigned>((count + each - 1) / each);
  }
  unsigned blocks_of_rows(int threads) const {
    return blocks_of(s_.sizes.heads() * s_.sizes.Lq, threads / gpu::kWarp);
  }
  void permute(const Tensor& from, const std::int32_t* cu_seqlens, std::int64_t L, float* to) const {
    const std::int64_t count = s_.sizes.heads() * L * s_.sizes.HS;
    permute_rows<<<blocks_of(count, kPermuteThreads), kPermuteThreads, 0, stream()>>>(
        Rows(from), cu_seqlens, s_.sequences.count, static_cast<int>(from.shape[0]), to, s_.sizes.NH, L,
        s_.sizes.HS);
  }
  void unpermute(const float* from, const std::int32_t* cu_seqlens, std::int64_t L, const Tensor& to) const {
    const std::int64_t count = s_.sizes.heads() * L * s_.sizes.HS;
    unpermute_rows<<<blocks_of(count, kPermuteThreads), kPermuteThreads, 0, stream()>>>(
        from, cu_seqlens, s_.sequences.count, static_cast<int>(to.shape[0]), Rows(to), s_.sizes.NH, L,
        s_.sizes.HS);
  }

  const Context& context_;
  Scores s_;
};

void library_forward(const Context& context, const AttentionForward& args) {
  const AttentionForwardProblem problem = args.problem();
  const Sizes sizes = sizes_of(problem);
  Scratch scratch(context.scratch());
  const ForwardTensors at(scratch, sizes);
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
  const Sizes sizes = sizes_of(problem);
  Scratch scratch(context.scratch());
  const BackwardTensors at(scratch, sizes);
  const ForwardTensors& again = at.again;
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
  const ForwardTensors counted(scratch, sizes_of(p));
  return scratch.bytes();
}
std::size_t backward_bytes(const AttentionBackwardProblem& p, const DeviceInfo&) {
  Scratch scratch(nullptr);
  const BackwardTensors counted(scratch, sizes_of(p));
  return scratch.bytes();
}

// One length for all sequences is what a problem can promise: as many rows as S sequences of max_seqlen have.
// It computes bytes in fp64, because for shapes that no memory can hold the product exceeds 64 bits.
template <class Problem>
Refusal refuse_library(const Problem& p, int matrices) {
  constexpr double kMostBytes = 0x1p32;
  constexpr std::int64_t kMostHeads = 65535;  // in a grid's second dimension
  if (p.sequences == 0 || p.Nq == 0 || p.Nk == 0) return "there are no queries or no keys";
  const bool one_length = p.Nq == p.Nk && p.Nq == p.sequences * p.max_seqlen;
  if (p.sequences > 1 && !one_length) return "takes one sequence, or a batch that max_seqlen fills";
  if (Refusal refusal = refuse_pairs(p)) return refusal;
  if (!p.positive_scale) return "the scale is not positive";
  if (p.sequences * p.NH > kMostHeads) return "has more heads than a grid allows";
  const Sizes sizes = sizes_of(p);
  const double bytes = 4.0 * matrices * static_cast<double>(sizes.heads()) * static_cast<double>(sizes.Lq) *
                       static_cast<double>(sizes.row_of_scores());
  if (bytes <= kMostBytes) return refuse_batched();
  char text[64];
  std::snprintf(text, sizeof(text), "its scores take %.1f GiB", bytes / 0x1p30);
  return text;
}
Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (p.batch_invariant) return "the library's sums may depend on the number of sequences";
  return refuse_library(p, 1);
}
Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return refuse_library(p, 2);
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
