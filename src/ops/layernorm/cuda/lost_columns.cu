#include "ops/layernorm/cuda/lost_columns.cuh"

#include <algorithm>

#include "ops/cuda/reduce.cuh"
#include "ops/layernorm/cuda/element.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::layernorm::cuda {
namespace {

constexpr int kThreads = 256, kRowsOfBlock = 256;

// Each block finds the columns by itself, in order, and keeps those of its rows: no block waits for another.
template <class X, class P>
__global__ void __launch_bounds__(kThreads)
    keep_columns(const X* x, const P* weight, const P* bias, LostRule<Arithmetic<X>> lost,
                 std::int32_t* columns, X* kept, std::int64_t N, std::int64_t C, std::int64_t capacity) {
  using A = Arithmetic<X>;
  __shared__ int counts[kThreads / gpu::kWarp];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock;
  const std::int64_t rows = N - first_row < kRowsOfBlock ? N - first_row : kRowsOfBlock;
  int found = 0;
  for (std::int64_t from = 0; from < C; from += kThreads) {
    const std::int64_t c = from + threadIdx.x;
    const bool mine = c < C && lost(element_or<A>(weight, c, 1), element_or<A>(bias, c, 0));
    const unsigned votes = __ballot_sync(gpu::kAllLanes, mine);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int before = found;
    for (int w = 0; w < kThreads / gpu::kWarp; ++w) {
      if (w < warp) before += counts[w];
      found += counts[w];
    }
    __syncthreads();
    if (!mine) continue;
    const std::int64_t place = before + __popc(votes & ((1u << lane) - 1));
    if (place >= capacity) continue;
    if (blockIdx.x == 0) columns[1 + place] = static_cast<std::int32_t>(c);
    for (std::int64_t row = first_row; row < first_row + rows; ++row)
      kept[row * capacity + place] = x[row * C + c];
  }
  if (blockIdx.x > 0) return;
  if (threadIdx.x == 0) columns[0] = found;
  for (std::int64_t place = found + threadIdx.x; place < capacity; place += kThreads) columns[1 + place] = -1;
}

// A block for each place. Part 0 gets the sum, the others 0.
template <class X, class O>
__global__ void __launch_bounds__(kThreads)
    kept_sums(const O* dout, KeptColumns<X> kept, const float* mean, const float* rstd, float* parts,
              int count, std::int64_t N, std::int64_t C) {
  __shared__ float sums[kThreads / gpu::kWarp];
  const int place = static_cast<int>(blockIdx.x);
  if (place >= kept.places()) return;
  const std::int64_t c = kept.columns[1 + place];
  float sum = 0;
  for (std::int64_t row = threadIdx.x; row < N; row += kThreads) {
    const float x = gpu::to_float(kept.values[row * kept.capacity + place]);
    sum = fmaf(gpu::to_float(dout[row * C + c]), (x - (mean ? mean[row] : 0.0f)) * rstd[row], sum);
  }
  sum = gpu::block_sum(sum, sums);
  for (int part = static_cast<int>(threadIdx.x); part < count; part += kThreads) {
    parts[part * 2 * C + c] = part == 0 ? sum : 0.0f;
  }
}

}  // namespace

void put_kept_sums(const Context& context, const NormBackward& a, float* parts, int count) {
  const std::int64_t K = a.kept_columns ? a.kept_columns.shape[0] - 1 : 0;
  if (K == 0 || count == 0 || !a.dweight) return;
  gpu::visit_gpu_dtype(a.dx.dtype, [&](auto x_tag) {
    gpu::visit_gpu_dtype(a.dout.dtype, [&](auto out_tag) {
      using X = typename decltype(x_tag)::type;
      using O = typename decltype(out_tag)::type;
      if constexpr (std::is_same_v<X, O> || std::is_same_v<O, float>) {
        kept_sums<X, O><<<static_cast<unsigned>(K), kThreads, 0, context.stream().get()>>>(
            data_of<const O>(a.dout), kept_columns_of<X>(a.kept_columns, a.kept),
            a.centered ? data_of<const float>(a.mean) : nullptr, data_of<const float>(a.rstd), parts, count,
            a.dx.shape[0], a.dx.shape[1]);
      }
    });
  });
  warpwright::cuda::check_launch("norm backward kept columns");
}

void keep_lost_columns(const Context& context, const NormForward& a, const Tensor& x) {
  if (!a.kept_columns) return;
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const auto blocks = static_cast<unsigned>(std::max<std::int64_t>((N + kRowsOfBlock - 1) / kRowsOfBlock, 1));
  const auto launch = [&](auto x_tag, auto p_tag) {
    using X = typename decltype(x_tag)::type;
    using P = typename decltype(p_tag)::type;
    keep_columns<X, P><<<blocks, kThreads, 0, context.stream().get()>>>(
        data_of<const X>(x), data_of<const P>(a.weight), data_of<const P>(a.bias),
        LostRule<Arithmetic<X>>::of(a.out.dtype), data_of<std::int32_t>(a.kept_columns), data_of<X>(a.kept),
        N, C, a.kept_columns.shape[0] - 1);
  };
  visit_norm_dtype(x.dtype, [&](auto tag) {
    if constexpr (sizeof(typename decltype(tag)::type) == 2) {
      if (a.weight && a.weight.dtype == DType::f32) return launch(tag, TypeTag<float>{});
    }
    launch(tag, tag);
  });
  warpwright::cuda::check_launch("norm forward kept columns");
}

}  // namespace warpwright::ops::layernorm::cuda
