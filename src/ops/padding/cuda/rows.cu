// Padding on a GPU. Memory-bound.
//   lengths       one block: a warp per sequence counts its ones by ballots, the block scans the counts, and
//                 the warps write the indices
//   pairs         one warp per row of the mask
//   pack, unpack  one warp per row, 16 bytes per access if size and alignment allow it
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <concepts>
#include <cub/block/block_scan.cuh>
#include <string_view>

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/padding/padding.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::padding {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / gpu::kWarp;

// A mask's element as a type that the rule takes.
template <class T>
__device__ auto gpu_value_of(T x) {
  if constexpr (std::integral<T>) {
    return x;
  } else {
    return gpu::to_float(x);
  }
}

constexpr unsigned kNoOdd = ~0u;

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_lengths(const T* mask, std::int64_t stride, int B, int S, std::int32_t* cu_seqlens,
                 std::int32_t* indices, std::int64_t* odd) {
  using Scan = cub::BlockScan<int, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ unsigned first_odd;
  if (threadIdx.x == 0) first_odd = kNoOdd;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  // Called by whole warps. Calls f(s, whether element s is a one, the ones of all lanes) for each element of
  // a row.
  const auto scan_row = [&](int b, auto&& f) {
    for (int first = 0; first < S; first += gpu::kWarp) {
      const int s = first + lane;
      const bool one = s < S && is_one(gpu_value_of(mask[b * stride + s]));
      f(s, one, __ballot_sync(gpu::kAllLanes, one));
    }
  };
  unsigned own_odd = kNoOdd;
  for (int b = warp; b < B; b += kWarps) {
    int count = 0;
    scan_row(b, [&](int s, bool, unsigned ones) {
      count += __popc(ones);
      if (s < S && is_odd(gpu_value_of(mask[b * stride + s])))
        own_odd = min(own_odd, static_cast<unsigned>(b * S + s));
    });
    if (lane == 0) cu_seqlens[b + 1] = count;
  }
  if (own_odd != kNoOdd) atomicMin(&first_odd, own_odd);
  if (threadIdx.x == 0) cu_seqlens[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0) *odd = first_odd == kNoOdd ? -1 : static_cast<std::int64_t>(first_odd);
  int before = 0;  // the sum of all earlier chunks
  for (int first = 0; first < B; first += kThreads) {
    const int b = first + static_cast<int>(threadIdx.x);
    int through = b < B ? cu_seqlens[b + 1] : 0, chunk = 0;
    Scan(scan).InclusiveSum(through, through, chunk);
    if (b < B) cu_seqlens[b + 1] = before + through;
    before += chunk;
    __syncthreads();
  }
  for (int b = warp; b < B; b += kWarps) {
    int at = cu_seqlens[b];
    scan_row(b, [&](int s, bool one, unsigned ones) {
      if (one) indices[at + __popc(ones & ((1u << lane) - 1))] = b * S + s;
      at += __popc(ones);
    });
  }
  for (int r = before + static_cast<int>(threadIdx.x); r < B * S; r += kThreads) indices[r] = -1;
}

// odd holds −1, which is the largest unsigned number.
template <class T>
__global__ void __launch_bounds__(kThreads)
    write_pairs(const T* mask, std::int64_t batch, std::int64_t row, std::uint8_t* out,
                std::int64_t out_batch, std::int64_t out_row, int rows, int Lq, int Lk,
                unsigned long long* odd) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const auto first = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / gpu::kWarp;
  auto own_odd = ~0ull;
  for (std::int64_t r = first; r < rows; r += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const T* from = mask + r / Lq * batch + r % Lq * row;
    std::uint8_t* to = out + r / Lq * out_batch + r % Lq * out_row;
    for (int j = lane; j < Lk; j += gpu::kWarp) {
      const auto value = gpu_value_of(from[j]);
      to[j] = is_one(value);
      if (is_odd(value)) own_odd = min(own_odd, static_cast<unsigned long long>(r * Lk + j));
    }
  }
  if (own_odd != ~0ull) atomicMin(odd, own_odd);
}

// One warp copies a row of `units`, or writes zeros if `from` is null.
template <class Unit>
__device__ void move_row(Unit* to, const Unit* from, int units) {
  for (int i = static_cast<int>(threadIdx.x) % gpu::kWarp; i < units; i += gpu::kWarp)
    to[i] = from ? from[i] : Unit{};
}

constexpr int kRowThreads = 256, kRows = kRowThreads / gpu::kWarp;

__device__ int warp_row() {
  return static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / gpu::kWarp;
}

template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    pack_rows(const Unit* x, const std::int32_t* indices, Unit* out, int R, int padded, int units) {
  const int r = warp_row();
  if (r >= R) return;
  const int from = indices[r];
  if (from < 0 || from >= padded) return;
  move_row(out + static_cast<std::int64_t>(r) * units, x + static_cast<std::int64_t>(from) * units, units);
}

template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    unpack_rows(const Unit* x, const std::int32_t* cu_seqlens, const std::int32_t* indices, Unit* out, int R,
                int B, int S, int units) {
  const int i = warp_row();
  if (i >= B * S) return;
  // Searches for this row among the indices of its sequence, which ascend.
  const int end = min(cu_seqlens[i / S + 1], R);
  int low = min(max(cu_seqlens[i / S], 0), R), high = end;
  while (low < high) {
    const int middle = (low + high) / 2;
    indices[middle] < i ? low = middle + 1 : high = middle;
  }
  const Unit* from = low < end && indices[low] == i ? x + static_cast<std::int64_t>(low) * units : nullptr;
  move_row(out + static_cast<std::int64_t>(i) * units, from, units);
}

// Calls f(null pointer to the unit, units per row). The unit is the widest type that divides a row and that
// the addresses' alignment allows.
template <class F>
void visit_unit(const Tensor& x, const Tensor& out, std::int64_t C, F&& f) {
  const auto bytes = static_cast<int>(C * static_cast<std::int64_t>(size_of(x.dtype)));
  if (bytes % 16 == 0 && gpu::aligned16(x.data, out.data)) return f(static_cast<uint4*>(nullptr), bytes / 16);
  size_of(x.dtype) == 4 ? f(static_cast<unsigned*>(nullptr), bytes / 4)
                        : f(static_cast<unsigned short*>(nullptr), bytes / 2);
}

unsigned blocks_for(std::int64_t rows) {
  return static_cast<unsigned>((rows + kRows - 1) / kRows);
}

template <class T>
void launch_lengths(const Context& context, const PaddingLengths& a) {
  find_lengths<<<1, kThreads, 0, context.stream().get()>>>(
      static_cast<const T*>(a.mask.data), a.mask.strides[0], static_cast<int>(a.mask.shape[0]),
      static_cast<int>(a.mask.shape[1]), a.cu_seqlens.as<std::int32_t>(), a.indices.as<std::int32_t>(),
      a.odd.as<std::int64_t>());
  warpwright::cuda::check_launch("padding.lengths cuda.rows");
}

// Calls f(null pointer to the mask's type).
template <class F>
void visit_gpu_mask(const Tensor& mask, F&& f) {
  switch (mask.dtype) {
    case DType::u8:
      return f(static_cast<std::uint8_t*>(nullptr));
    case DType::i32:
      return f(static_cast<std::int32_t*>(nullptr));
    case DType::i64:
      return f(static_cast<std::int64_t*>(nullptr));
    default:
      return gpu::visit_gpu_dtype(mask.dtype,
                                  [&](auto tag) { f(static_cast<typename decltype(tag)::type*>(nullptr)); });
  }
}

void lengths(const Context& context, const PaddingLengths& a) {
  visit_gpu_mask(a.mask, [&]<class T>(T*) { launch_lengths<T>(context, a); });
}

void pairs(const Context& context, const PaddingPairs& a) {
  constexpr std::string_view kWhat = "padding.pairs cuda.rows";
  constexpr std::int64_t kMostBlocks = 4096;
  warpwright::cuda::check(cudaMemsetAsync(a.odd.data, 0xff, sizeof(std::int64_t), context.stream().get()),
                          kWhat);
  const std::int64_t Lq = a.mask.shape[1], Lk = a.mask.shape[2], rows = a.mask.shape[0] * Lq;
  if (rows == 0 || Lk == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((rows + kWarps - 1) / kWarps, kMostBlocks));
  visit_gpu_mask(a.mask, [&]<class T>(T*) {
    write_pairs<<<blocks, kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(a.mask.data), a.mask.strides[0], a.mask.strides[1], a.out.as<std::uint8_t>(),
        a.out.strides[0], a.out.strides[1], static_cast<int>(rows), static_cast<int>(Lq),
        static_cast<int>(Lk), static_cast<unsigned long long*>(a.odd.data));
  });
  warpwright::cuda::check_launch(kWhat);
}

void pack(const Context& context, const PaddingPack& a) {
  const std::int64_t R = a.out.shape[0];
  if (R == 0) return;
  visit_unit(a.x, a.out, a.out.shape[1], [&]<class Unit>(Unit*, int units) {
    pack_rows<<<blocks_for(R), kRowThreads, 0, context.stream().get()>>>(
        static_cast<const Unit*>(a.x.data), a.indices.as<std::int32_t>(), static_cast<Unit*>(a.out.data),
        static_cast<int>(R), static_cast<int>(a.x.shape[0]), units);
  });
  warpwright::cuda::check_launch("padding.pack cuda.rows");
}

void unpack(const Context& context, const PaddingUnpack& a) {
  const std::int64_t B = a.out.shape[0], S = a.out.shape[1];
  if (B * S == 0) return;
  visit_unit(a.x, a.out, a.out.shape[2], [&]<class Unit>(Unit*, int units) {
    unpack_rows<<<blocks_for(B * S), kRowThreads, 0, context.stream().get()>>>(
        static_cast<const Unit*>(a.x.data), a.cu_seqlens.as<std::int32_t>(), a.indices.as<std::int32_t>(),
        static_cast<Unit*>(a.out.data), static_cast<int>(a.x.shape[0]), static_cast<int>(B),
        static_cast<int>(S), units);
  });
  warpwright::cuda::check_launch("padding.unpack cuda.rows");
}

// All mask dtypes except fp64.
constexpr DTypes kMaskDTypesOfGpus{DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8};

}  // namespace
}  // namespace warpwright::ops::padding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PaddingLengths, "cuda.rows"_kernel) = {
    .needs = Needs::gpu, .dtypes = padding::kMaskDTypesOfGpus, .run = padding::lengths};
WARPWRIGHT_KERNEL(PaddingPairs, "cuda.rows"_kernel) = {
    .needs = Needs::gpu, .dtypes = padding::kMaskDTypesOfGpus, .run = padding::pairs};
WARPWRIGHT_KERNEL(PaddingPack, "cuda.rows"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = padding::pack};
WARPWRIGHT_KERNEL(PaddingUnpack, "cuda.rows"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = padding::unpack};

}  // namespace warpwright::ops
