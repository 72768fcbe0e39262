// The three products on a GPU's ordinary arithmetic units, as readable as a fast product gets. A block of 256
// threads makes 128 × 128 results, and each thread has 8 × 8 of them in registers. A step takes 32 terms of
// the depth from shared memory. For each term a thread reads 16 numbers and makes 64 multiply-adds, so the
// multipliers are the limit, not shared memory. Two blocks share a multiprocessor: one computes while the
// other loads.
//
// Any shape works: the kernel reads zeros outside the matrices and writes nothing there. Arithmetic is fp32;
// bf16 and fp16 are widened on reading. One block sums the whole depth of its results in order, so a product
// of few tiles and great depth (dw of a narrow layer) leaves multiprocessors idle. The bias is added to the
// sums. The other parts that llm.c has next to its product are its own kernels: GELU, the residual,
// and the bias gradient of 32 columns per block.
#include <cstdint>

#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/plain_passes.hpp"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

constexpr int kTile = 128, kDepth = 32;  // per block
constexpr int kThreads = 256;
constexpr int kSide = 16;    // threads along a side of the tile
constexpr int kHalf = 4;     // a thread's 8 rows are 4 in the upper half of the tile and 4 in the lower
constexpr int kPadding = 4;  // rows stay 16-byte aligned and begin four banks apart

// A factor as a tile reads it: element (i, k), with i along the result's side and k along the depth.
template <class T, bool depth_contiguous>
struct Factor {
  const T* data;
  std::int64_t stride;
  std::int64_t side, depth;

  // Loads a tile from (first, k0); the depth is the outer index. A warp reads 32 neighbours, or eight in each
  // of four rows if the depth is contiguous: then its stores, a transpose, use each bank of shared memory
  // once.
  __device__ void load(float (*tile)[kTile + kPadding], std::int64_t first, std::int64_t k0) const {
    const int sides = static_cast<int>(min(side - first, std::int64_t{kTile}));
    const int depths = static_cast<int>(min(depth - k0, std::int64_t{kDepth}));
    const int thread = static_cast<int>(threadIdx.x);
    const int my_i = depth_contiguous ? thread / 8 : thread % kTile;
    const int my_k = depth_contiguous ? thread % 8 : thread / kTile;
    const T* mine =
        data + (depth_contiguous ? (first + my_i) * stride + k0 + my_k : (k0 + my_k) * stride + first + my_i);
#pragma unroll
    for (int n = 0; n < kTile * kDepth / kThreads; ++n) {
      const int i = depth_contiguous ? n / 4 * 32 : 0;
      const int k = depth_contiguous ? n % 4 * 8 : n * (kThreads / kTile);
      const bool inside = my_i + i < sides && my_k + k < depths;
      const std::int64_t offset = depth_contiguous ? i * stride + k : k * stride;
      tile[my_k + k][my_i + i] = inside ? gpu::to_float(mine[offset]) : 0.0f;
    }
  }
};

__device__ inline void read_eight(const float* row, int first, float (&values)[8]) {
  const float4 low = *reinterpret_cast<const float4*>(row + first);
  const float4 high = *reinterpret_cast<const float4*>(row + first + kTile / 2);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// (rows, cols) = A (rows, depth) · B (depth, cols). Both factors are given by their sides.
template <class T, class Out, bool a_depth_contiguous, bool b_depth_contiguous>
__global__ void __launch_bounds__(kThreads, 2)
    tile_kernel(Factor<T, a_depth_contiguous> a, Factor<T, b_depth_contiguous> b, Result<T, Out> result) {
  __shared__ float a_tile[kDepth][kTile + kPadding];
  __shared__ float b_tile[kDepth][kTile + kPadding];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int my_row = static_cast<int>(threadIdx.x) / kSide * kHalf;
  const int my_col = static_cast<int>(threadIdx.x) % kSide * kHalf;

  float sums[8][8] = {};
  for (std::int64_t k0 = 0; k0 < a.depth; k0 += kDepth) {
    __syncthreads();
    a.load(a_tile, first_row, k0);
    b.load(b_tile, first_col, k0);
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
      float x[8], y[8];
      read_eight(a_tile[k], my_row, x);
      read_eight(b_tile[k], my_col, y);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::int64_t row = first_row + my_row + i % kHalf + i / kHalf * (kTile / 2);
    if (row >= a.side) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const std::int64_t col = first_col + my_col + j % kHalf + j / kHalf * (kTile / 2);
      if (col < b.side) result.store(row, col, sums[i][j]);
    }
  }
}

template <class T, class Out, bool a_depth_contiguous, bool b_depth_contiguous>
void multiply(const Context& context, const Factor<T, a_depth_contiguous>& a,
              const Factor<T, b_depth_contiguous>& b, const Result<T, Out>& result) {
  if (b.side == 0) return;  // dw: only dbias is left
  const dim3 grid(static_cast<unsigned>((b.side + kTile - 1) / kTile),
                  static_cast<unsigned>((a.side + kTile - 1) / kTile));
  tile_kernel<<<grid, kThreads, 0, context.stream().get()>>>(a, b, result);
}

void forward(const Context& context, const MatmulForward& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  if (M == 0 || N == 0) return;
  forward_with_plain_passes(context, args, [&](const MatmulForward& product) {
    visit_result_dtype(args.x.dtype, args.out.dtype, [&]<class T, class Out>() {
      const Factor<T, true> x{static_cast<const T*>(args.x.data), leading_of(args.x), M, K};
      const Factor<T, true> weight{static_cast<const T*>(args.weight.data), K, N, K};
      multiply(context, x, weight, result_of<T, Out>(product));
    });
    warpwright::cuda::check_launch("matmul.forward cuda.tile128");
  });
}

void dx(const Context& context, const MatmulDx& args) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  if (M == 0 || K == 0) return;
  visit_result_dtype(args.dout.dtype, args.dx.dtype, [&]<class T, class Out>() {
    const Factor<T, true> dout{static_cast<const T*>(args.dout.data), leading_of(args.dout), M, N};
    const Factor<T, false> weight{static_cast<const T*>(args.weight.data), K, K, N};
    multiply(context, dout, weight, Result<T, Out>{static_cast<Out*>(args.dx.data), leading_of(args.dx)});
  });
  warpwright::cuda::check_launch("matmul.dx cuda.tile128");
  if (is_gelu(args.activation) && suits_plain_passes(args.dx, args.preact)) {
    run_plain(context, GeluBackward{args.dx, args.preact, args.dx, args.activation});
  } else if (args.activation != Activation::none) {
    finish_dx(context, args.dx, args.preact, args.activation);
  }
}

void dw(const Context& context, const MatmulDw& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  if (N == 0) return;
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Factor<T, false> dout{static_cast<const T*>(args.dout.data), leading_of(args.dout), N, M};
    const Factor<T, false> x{static_cast<const T*>(args.x.data), leading_of(args.x), K, M};
    multiply(context, dout, x,
             Result<T, float>{args.dweight.as<float>(), K, nullptr, args.store == Store::add});
  });
  warpwright::cuda::check_launch("matmul.dw cuda.tile128");
  if (args.dbias) plain_column_sums(context, args.dout, args.dbias, args.store);
}

Refusal refuse_packed(const MatmulForwardProblem& p, const DeviceInfo&) {
  if (p.packed) return kNotPacked;
  return {};
}

template <class Problem>
double cost(const Problem&, const DeviceInfo&) {
  return kCostOfTile128;
}

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulForward, "cuda.tile128"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = matmul::cuda::forward,
                                                           .refuse = matmul::cuda::refuse_packed,
                                                           .cost = matmul::cuda::cost};
WARPWRIGHT_KERNEL(MatmulDx, "cuda.tile128"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = matmul::cuda::dx, .cost = matmul::cuda::cost};
WARPWRIGHT_KERNEL(MatmulDw, "cuda.tile128"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = matmul::cuda::dw, .cost = matmul::cuda::cost};

}  // namespace warpwright::ops
