// The forward's product in fp32 on a GPU's ordinary arithmetic units, after llm.c: cuda.tile128 with other
// loads. A block of 16 × 16 threads makes 128 × 128 results, and each thread has 8 × 8 neighbouring ones in
// registers. A step takes 32 terms of the depth. They are staged as they lie in memory, a row of 32 terms for
// each of 128 rows of x and of weight, by loads and stores of 16 bytes. For every four terms a thread reads
// 16 times 16 bytes of shared memory and makes 256 multiply-adds.
//
// A row of the stage has 128 bytes, which are all banks. Threads that read the same columns of different rows
// would thus meet in the same banks. So each thread begins a step at other terms: it reads columns 4·t, 4·t +
// 4, … modulo 32, where t is its number in the block. cuda.tile128 transposes the stage instead.
//
// Rows and columns outside the matrices are zeros on loading and are not stored. K and N must be multiples of
// four, and everything must be aligned to 16 bytes. GELU and the residual follow as kernels of their own.
#include <cstdint>

#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/plain_passes.hpp"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

constexpr int kTile = 128, kDepth = 32;  // per block and step
constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kEach = kTile / kSide;  // rows and columns of a thread's results
constexpr int kLanes = 4;             // numbers in 16 bytes

using Float4 = gpu::Packed<float, kLanes>;
using Stage = float (&)[kTile][kDepth];

struct Factor {
  const float* data;
  std::int64_t stride, rows, depth;

  // Stages rows from `first` and terms from `k0`. Eight threads load one row.
  __device__ void load(Stage stage, std::int64_t first, std::int64_t k0) const {
    constexpr int kOfRow = kDepth / kLanes;
    const int k = static_cast<int>(threadIdx.x) % kOfRow * kLanes;
    for (int row = static_cast<int>(threadIdx.x) / kOfRow; row < kTile; row += kThreads / kOfRow) {
      const bool inside = first + row < rows && k0 + k < depth;
      const Float4 loaded = inside ? Float4::load(data + (first + row) * stride + k0 + k) : Float4::zero();
      loaded.store(&stage[row][k]);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    staged_product(const Factor x, const Factor weight, const Result<float, float> result) {
  __shared__ alignas(16) float x_stage[kTile][kDepth];
  __shared__ alignas(16) float weight_stage[kTile][kDepth];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const int my_row = static_cast<int>(threadIdx.x) % kSide * kEach;
  const int my_col = static_cast<int>(threadIdx.x) / kSide * kEach;

  float sums[kEach][kEach] = {};
  for (std::int64_t k0 = 0; k0 < x.depth; k0 += kDepth) {
    __syncthreads();
    x.load(x_stage, first_row, k0);
    weight.load(weight_stage, first_col, k0);
    __syncthreads();
    for (int step = 0; step < kDepth; step += kLanes) {
      const int k = (kLanes * static_cast<int>(threadIdx.x) + step) % kDepth;
      Float4 right[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) right[j] = Float4::load(&weight_stage[my_col + j][k]);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const Float4 left = Float4::load(&x_stage[my_row + i][k]);
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
#pragma unroll
          for (int l = 0; l < kLanes; ++l) sums[i][j] = fmaf(left[l], right[j][l], sums[i][j]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; j += kLanes) {
      const std::int64_t row = first_row + my_row + i, col = first_col + my_col + j;
      if (row >= x.rows || col >= weight.rows) continue;
      Float4 finished;
#pragma unroll
      for (int l = 0; l < kLanes; ++l) finished.lanes[l] = result.finish(row, col + l, sums[i][j + l]);
      finished.store(result.data + row * result.stride + col);
    }
  }
}

unsigned tiles_of(std::int64_t count) {
  return static_cast<unsigned>((count + kTile - 1) / kTile);
}

void float4_forward(const Context& context, const MatmulForward& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  if (M == 0 || N == 0) return;
  forward_with_plain_passes(context, args, [&](const MatmulForward& product) {
    const Factor x{args.x.as<float>(), leading_of(args.x), M, K};
    const Factor weight{args.weight.as<float>(), K, N, K};
    staged_product<<<dim3(tiles_of(M), tiles_of(N)), kThreads, 0, context.stream().get()>>>(
        x, weight, result_of<float, float>(product));
    warpwright::cuda::check_launch("matmul.forward cuda.ladder_float4");
  });
}

Refusal refuse_float4(const MatmulForwardProblem& p, const DeviceInfo&) {
  constexpr std::int64_t kMostTiles = 65535;  // in a grid's second dimension
  if (p.packed) return kNotPacked;
  if (p.batch_invariant) return "the order of a row's sums depends on its place in a tile";
  if (p.K % kLanes != 0 || p.N % kLanes != 0)
    return "moves 16 bytes at a time, and K or N is no multiple of 4";
  if (!p.aligned) return "a row does not begin at a multiple of 16 bytes";
  if (p.N > kMostTiles * kTile) return "the weight has too many rows";
  return {};
}

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulForward, "cuda.ladder_float4"_kernel) = {.needs = Needs::gpu,
                                                                 .dtypes = {DType::f32},
                                                                 .run = matmul::cuda::float4_forward,
                                                                 .refuse = matmul::cuda::refuse_float4,
                                                                 .only_forced = true};

}  // namespace warpwright::ops
