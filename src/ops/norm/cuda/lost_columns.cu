#include "ops/norm/cuda/lost_columns.cuh"

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/element.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::norm::cuda {
namespace {

constexpr int kThreads = 256, kRowsOfBlock = 64;
constexpr int kFinders = 1024, kColumnsOfFinder = 8;
constexpr int kPlacesAtOnce = 16, kMostChunks = 32;

// One block finds the lost columns in ascending order.
template <class A, class P>
__global__ void __launch_bounds__(kFinders)
    find_columns(const P* __restrict__ weight, const P* __restrict__ bias, LostRule<A> lost,
                 std::int32_t* columns, std::int64_t C, std::int64_t capacity) {
  using Scan = cub::BlockScan<int, kFinders, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan;
  int found = 0;
  for (std::int64_t from = 0; from < C; from += kFinders * kColumnsOfFinder) {
    const std::int64_t first = from + threadIdx.x * kColumnsOfFinder;
    unsigned mine = 0;
#pragma unroll
    for (int j = 0; j < kColumnsOfFinder; ++j) {
      const std::int64_t c = first + j;
      if (c < C && lost(element_or<A>(weight, c, 1), element_or<A>(bias, c, 0))) mine |= 1u << j;
    }
    int below = 0, count = 0;
    Scan(scan).ExclusiveSum(__popc(mine), below, count);
    std::int64_t place = found + below;
    found += count;
    __syncthreads();
    for (; mine != 0; mine &= mine - 1, ++place) {
      if (place < capacity) columns[1 + place] = static_cast<std::int32_t>(first + __ffs(mine) - 1);
    }
  }
  if (threadIdx.x == 0) columns[0] = found;
  for (std::int64_t place = found + threadIdx.x; place < capacity; place += kFinders) columns[1 + place] = -1;
}

// One thread copies one element. Each read takes a whole sector, and many reads of a block are thus in
// flight.
template <class X>
__global__ void __launch_bounds__(kThreads)
    keep_columns(const X* __restrict__ x, const std::int32_t* __restrict__ columns, X* __restrict__ values,
                 std::int64_t N, std::int64_t C, std::int64_t capacity) {
  const int places = KeptColumns<X>{columns, values, capacity}.places();
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock;
  const int rows = N - first_row < kRowsOfBlock ? static_cast<int>(N - first_row) : kRowsOfBlock;
  x += first_row * C;
  values += first_row * capacity;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < rows * places; i += kThreads) {
    const int row = i / places, place = i - row * places;
    values[row * capacity + place] = x[row * C + columns[1 + place]];
  }
}

// Block (i, j) sums the places i, i + gridDim.x, … in the j-th of gridDim.y chunks of the rows. Part j gets
// the chunk's sum. The parts after the last chunk get 0.
template <class X, class O>
__global__ void __launch_bounds__(kThreads)
    kept_sums(const O* __restrict__ dout, KeptColumns<X> kept, const float* __restrict__ mean,
              const float* __restrict__ rstd, float* parts, int count, std::int64_t N, std::int64_t C) {
  __shared__ float sums[2][kThreads / gpu::kWarp];
  const int places = kept.places(), chunk = static_cast<int>(blockIdx.y),
            chunks = static_cast<int>(gridDim.y);
  const std::int64_t begin = N * chunk / chunks, end = N * (chunk + 1) / chunks;
  int turn = 0;
  for (int place = static_cast<int>(blockIdx.x); place < places; place += static_cast<int>(gridDim.x)) {
    const std::int64_t c = kept.columns[1 + place];
    float sum = 0;
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.x; row < end; row += kThreads) {
      const float x = gpu::to_float(kept.values[row * kept.capacity + place]);
      sum = fmaf(gpu::to_float(dout[row * C + c]), (x - (mean ? mean[row] : 0.0f)) * rstd[row], sum);
    }
    sum = gpu::block_sum(sum, sums[turn]);
    turn = 1 - turn;
    for (int part = chunk + static_cast<int>(threadIdx.x) * chunks; part < count; part += kThreads * chunks) {
      parts[part * 2 * C + c] = part == chunk ? sum : 0.0f;
    }
  }
}

}  // namespace

void put_kept_sums(const Context& context, const NormBackward& a, float* parts, int count) {
  const std::int64_t K = a.lost.places();
  if (K == 0 || count == 0 || !a.dweight) return;
  const std::int64_t N = a.dx.shape[0], C = a.dx.shape[1];
  const dim3 grid(
      static_cast<unsigned>(std::min<std::int64_t>(K, kPlacesAtOnce)),
      static_cast<unsigned>(std::clamp<std::int64_t>(N / kThreads, 1, std::min(count, kMostChunks))));
  gpu::visit_gpu_dtype(a.dx.dtype, [&](auto x_tag) {
    gpu::visit_gpu_dtype(a.dout.dtype, [&](auto out_tag) {
      using X = typename decltype(x_tag)::type;
      using O = typename decltype(out_tag)::type;
      if constexpr (std::is_same_v<X, O> || std::is_same_v<O, float>) {
        kept_sums<X, O><<<grid, kThreads, 0, context.stream().get()>>>(
            data_of<const O>(a.dout), kept_columns_of<X>(a.lost),
            a.centered ? data_of<const float>(a.mean) : nullptr, data_of<const float>(a.rstd), parts, count,
            N, C);
      }
    });
  });
  warpwright::cuda::check_launch("norm backward kept columns");
}

void keep_lost_columns(const Context& context, const NormForward& a) {
  if (!a.lost) return;
  const Tensor& x = normalized_of(a);
  const std::int64_t N = x.shape[0], C = x.shape[1], capacity = a.lost.places();
  auto* columns = data_of<std::int32_t>(a.lost.columns);
  const auto stream = context.stream().get();
  const auto launch = [&](auto x_tag, auto p_tag) {
    using X = typename decltype(x_tag)::type;
    using P = typename decltype(p_tag)::type;
    find_columns<Arithmetic<X>, P>
        <<<1, kFinders, 0, stream>>>(data_of<const P>(a.weight), data_of<const P>(a.bias),
                                     LostRule<Arithmetic<X>>::of(a.out.dtype), columns, C, capacity);
    warpwright::cuda::check_launch("norm forward lost columns");
    if (N == 0 || capacity == 0) return;
    keep_columns<X><<<static_cast<unsigned>((N + kRowsOfBlock - 1) / kRowsOfBlock), kThreads, 0, stream>>>(
        data_of<const X>(x), columns, data_of<X>(a.lost.x), N, C, capacity);
    warpwright::cuda::check_launch("norm forward kept columns");
  };
  visit_norm_dtype(x.dtype, [&](auto tag) {
    if constexpr (sizeof(typename decltype(tag)::type) == 2) {
      if (a.weight && a.weight.dtype == DType::f32) return launch(tag, TypeTag<float>{});
    }
    launch(tag, tag);
  });
}

}  // namespace warpwright::ops::norm::cuda
