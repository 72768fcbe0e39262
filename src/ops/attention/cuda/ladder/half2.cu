// Attention forward in fp16 with the whole matrix of scores in memory, after ByteTransformer's unfused path:
// the library's batched products, and a softmax that reads and writes two numbers at a time (half2) and holds
// a row in a warp's registers in between.
//   permute, scores scale · q·kᵀ, softmax, probabilities · v, unpermute
//
// Scores are rounded to fp16, by up to 2^-11 of their size. That is the relative error of their
// probabilities. So this suits only scores of a few units, and keeps no lse.
#include <cuda_fp16.h>

#include "ops/attention/cuda/ladder/matrices.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

constexpr int kMostKeys = 1024, kThreads = 256;

// Replaces each row of scores by its probabilities, a warp for each. A lane holds every 32nd pair of numbers.
template <int kPairs>
__global__ void __launch_bounds__(kThreads) softmax_pairs(__half2* scores, const __grid_constant__ Scores s) {
  const std::int64_t index = row_of_warp(false);
  if (index >= s.rows()) return;
  const int keys = s.row(index).keys, pairs = static_cast<int>(s.sizes.row_of_scores()) / 2;
  __half2* const x = scores + index * pairs;
  float2 held[kPairs];
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = my_lane() + i * gpu::kWarp;
    held[i] = 2 * pair < keys ? __half22float2(x[pair]) : float2{-INFINITY, -INFINITY};
    if (2 * pair + 1 >= keys) held[i].y = -INFINITY;
    largest = fmaxf(largest, fmaxf(held[i].x, held[i].y));
  }
  largest = gpu::warp_max(largest);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    held[i] = {__expf(held[i].x - largest), __expf(held[i].y - largest)};
    sum += held[i].x + held[i].y;
  }
  sum = gpu::warp_sum(sum);
  const float inverse = keys == 0 ? 0 : 1 / sum;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = my_lane() + i * gpu::kWarp;
    const float2 probabilities = keys == 0 ? float2{0, 0} : float2{held[i].x * inverse, held[i].y * inverse};
    if (pair < pairs) x[pair] = __float22half2_rn(probabilities);
  }
}

class Stages : public Matrices<__half> {
 public:
  using Matrices<__half>::Matrices;

  void scaled_scores(const __half* queries, const __half* keys, __half* to) const {
    scores(queries, keys, to, s_.scale);
  }
  void softmax(__half* scores) const {
    const auto kernel = s_.sizes.Lk <= 128   ? softmax_pairs<2>
                        : s_.sizes.Lk <= 256 ? softmax_pairs<4>
                        : s_.sizes.Lk <= 512 ? softmax_pairs<8>
                                             : softmax_pairs<16>;
    kernel<<<blocks_of_rows(kThreads), kThreads, 0, stream()>>>(reinterpret_cast<__half2*>(scores), s_);
  }
};

void half2_forward(const Context& context, const AttentionForward& args) {
  const Sizes sizes = sizes_of<__half>(args.problem());
  Scratch scratch(context.scratch());
  const ForwardTensors<__half> at(scratch, sizes);
  const Stages stages(context, args, sizes);
  stages.permute_queries(args.q, at.q);
  stages.permute_keys(args.k, at.k);
  stages.permute_keys(args.v, at.v);
  stages.scaled_scores(at.q, at.k, at.scores);
  stages.softmax(at.scores);
  stages.sum_over_keys(at.scores, at.v, at.q);
  stages.unpermute_queries(at.q, args.out);
  warpwright::cuda::check_launch("attention.forward cuda.ladder_half2");
}

std::size_t half2_bytes(const AttentionForwardProblem& p, const DeviceInfo&) {
  Scratch scratch(nullptr);
  const ForwardTensors<__half> counted(scratch, sizes_of<__half>(p));
  return scratch.bytes();
}

Refusal refuse_half2(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (p.lse) return "keeps no lse";
  if (p.batch_invariant) return "the library's sums may depend on the number of sequences";
  if (Refusal refusal = refuse_matrices<__half>(p, 1)) return refusal;
  return p.Nk / p.sequences <= kMostKeys ? "" : "a row of scores does not fit into a warp's registers";
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.ladder_half2"_kernel) = {.needs = Needs::gpu,
                                                                   .dtypes = {DType::f16},
                                                                   .run = attention::cuda::half2_forward,
                                                                   .refuse = attention::cuda::refuse_half2,
                                                                   .workspace = attention::cuda::half2_bytes,
                                                                   .only_forced = true};

}  // namespace warpwright::ops
