// The three products on sm_80's tensor cores, of bf16 or fp16 summed in fp32. A block of eight warps makes
// 128 × 128 results; each warp has 64 × 32 of them in registers. A step takes 32 terms of the depth. Three
// such slabs of both factors are in shared memory or on their way there (cp.async). ldmatrix reads them,
// transposed if the depth is a matrix's rows. A warp's slab is 32 products m16n8k16 for 12 loads of four 8×8
// matrices.
//
// Any shape, stride and alignment works: if rows cannot be copied 16 bytes at a time, elements are loaded one
// by one. One block sums the whole depth in order, so the bits of a row do not depend on the other rows. The
// bias is added to the sums; activations are a separate pass.
#include <cstdint>
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

constexpr int kTile = 128, kDepth = 32;  // per block
constexpr int kThreads = 256, kStages = 3;
constexpr int kWarpRows = 64, kWarpCols = 32;
constexpr int kPad = 8;  // elements: rows of a slab begin 16 bytes apart in the banks

// A factor as a block reads it: element (i, k), with i along the result's side. Its rows in memory are the
// side or, if transposed, the depth.
template <class T, bool transposed, bool aligned>
struct Factor {
  const T* data;
  std::int64_t stride, side, depth;

  static constexpr int kRows = transposed ? kDepth : kTile, kCols = transposed ? kTile : kDepth;
  static constexpr int kStride = kCols + kPad, kElements = kRows * kStride;  // a slab in shared memory

  // Loads a slab from (first, k0), with zeros outside the matrix.
  __device__ void load(T* slab, std::int64_t first, std::int64_t k0) const {
    constexpr int kChunk = 8, kPerRow = kCols / kChunk;
    const std::int64_t row0 = transposed ? k0 : first, col0 = transposed ? first : k0;
    const std::int64_t rows = (transposed ? depth : side) - row0, cols = (transposed ? side : depth) - col0;
#pragma unroll
    for (int n = 0; n < kRows * kPerRow / kThreads; ++n) {
      const int index = n * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kPerRow, col = index % kPerRow * kChunk;
      T* const to = slab + row * kStride + col;
      const int valid =
          row < rows ? static_cast<int>(max(min(cols - col, std::int64_t{kChunk}), std::int64_t{0})) : 0;
      const T* from = valid > 0 ? data + (row0 + row) * stride + col0 + col : data;
      if constexpr (aligned) {
        gpu::copy_async<16>(to, from, valid * static_cast<int>(sizeof(T)));
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) to[i] = i < valid ? from[i] : gpu::from_float<T>(0.0f);
      }
    }
  }

  // Loads four 8×8 matrices: two along the side from `i`, and two along the depth from `k`. Those along the
  // side are `next` apart in the result.
  static __device__ void take(std::uint32_t (&r)[4], const T* slab, int i, int k, bool side_first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, line = lane % 8;
    const int along = side_first ? matrix % 2 : matrix / 2, deep = side_first ? matrix / 2 : matrix % 2;
    const int side_at = i + along * 8, depth_at = k + deep * 8;
    if constexpr (transposed) {
      gpu::load_matrices_transposed(r, gpu::shared_address(slab + (depth_at + line) * kStride + side_at));
    } else {
      gpu::load_matrices(r, gpu::shared_address(slab + (side_at + line) * kStride + depth_at));
    }
  }
};

template <class T, class Out, bool a_transposed, bool b_transposed, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    mma_kernel(Factor<T, a_transposed, aligned> a, Factor<T, b_transposed, aligned> b,
               Result<T, Out> result) {
  using A = Factor<T, a_transposed, aligned>;
  using B = Factor<T, b_transposed, aligned>;
  extern __shared__ uint4 memory[];
  T* const a_slabs = reinterpret_cast<T*>(memory);
  T* const b_slabs = a_slabs + kStages * A::kElements;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = warp / (kTile / kWarpCols) * kWarpRows,
            warp_col = warp % (kTile / kWarpCols) * kWarpCols;
  const std::int64_t slabs = (a.depth + kDepth - 1) / kDepth;

  const auto load = [&](std::int64_t slab) {
    if (slab < slabs) {
      const int stage = static_cast<int>(slab % kStages);
      a.load(a_slabs + stage * A::kElements, first_row, slab * kDepth);
      b.load(b_slabs + stage * B::kElements, first_col, slab * kDepth);
    }
    gpu::commit_copies();
  };

  float sums[4][4][4] = {};
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage);
  for (std::int64_t slab = 0; slab < slabs; ++slab) {
    gpu::wait_for_groups<kStages - 2>();
    __syncthreads();
    load(slab + kStages - 1);  // in place of the slab before, which no warp needs any more
    const T* const a_slab = a_slabs + slab % kStages * A::kElements;
    const T* const b_slab = b_slabs + slab % kStages * B::kElements;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      std::uint32_t x[4][4], y[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) A::take(x[i], a_slab, warp_row + 16 * i, k, true);
#pragma unroll
      for (int j = 0; j < 2; ++j) B::take(y[j], b_slab, warp_col + 16 * j, k, false);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float(&c)[4] = sums[i][j];
          gpu::multiply<T>(c[0], c[1], c[2], c[3], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_row + warp_row + 16 * i + 8 * half + lane / 4;
      if (row >= a.side) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const std::int64_t col = first_col + warp_col + 8 * j + lane % 4 * 2 + e;
          if (col < b.side) result.store(row, col, sums[i][j][2 * half + e]);
        }
      }
    }
  }
}

struct Matrix {
  const void* data;
  std::int64_t stride;
};

// (rows, cols) = A (rows, depth) · B (depth, cols). packs: the rows of both begin at multiples of 16 bytes.
template <bool a_transposed, bool b_transposed, class T, class Out>
void multiply(const Context& context, const Extent& extent, bool packs, const Matrix& a, const Matrix& b,
              const Result<T, Out>& result, std::string_view what) {
  if (extent.cols == 0) return;  // dw: only dbias is left
  const auto run = [&](auto aligned) {
    using A = Factor<T, a_transposed, aligned>;
    using B = Factor<T, b_transposed, aligned>;
    const auto kernel = mma_kernel<T, Out, a_transposed, b_transposed, aligned>;
    constexpr std::size_t kShared = kStages * (A::kElements + B::kElements) * sizeof(T);
    gpu::allow_shared(kernel, kShared);
    const dim3 grid(static_cast<unsigned>((extent.cols + kTile - 1) / kTile),
                    static_cast<unsigned>((extent.rows + kTile - 1) / kTile));
    kernel<<<grid, kThreads, kShared, context.stream().get()>>>(
        A{static_cast<const T*>(a.data), a.stride, extent.rows, extent.depth},
        B{static_cast<const T*>(b.data), b.stride, extent.cols, extent.depth}, result);
  };
  packs ? run(std::true_type()) : run(std::false_type());
  warpwright::cuda::check_launch(what);
}

// Calls f.operator()<T, Out>() for factors of T (bf16 or fp16) and a result of T or fp32.
template <class F>
void visit_halves(DType factors, DType result, F&& f) {
  const auto with = [&]<class T>() {
    result == DType::f32 ? f.template operator()<T, float>() : f.template operator()<T, T>();
  };
  factors == DType::bf16 ? with.template operator()<__nv_bfloat16>() : with.template operator()<__half>();
}

void forward(const Context& context, const MatmulForward& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  if (M == 0 || N == 0) return;
  const bool packs = args.problem().aligned_factors;
  visit_halves(args.x.dtype, args.out.dtype, [&]<class T, class Out>() {
    multiply<false, false>(context, {M, N, K}, packs, {args.x.data, leading_of(args.x)},
                           {args.weight.data, K}, result_of<T, Out>(args), "matmul.forward cuda.mma");
  });
  if (ends_in_a_pass(args)) finish_forward(context, args, Tensor());
}

void dx(const Context& context, const MatmulDx& args) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  if (M == 0 || K == 0) return;
  const bool packs = args.problem().aligned_factors;
  visit_halves(args.dout.dtype, args.dx.dtype, [&]<class T, class Out>() {
    multiply<false, true>(
        context, {M, K, N}, packs, {args.dout.data, leading_of(args.dout)}, {args.weight.data, K},
        Result<T, Out>{static_cast<Out*>(args.dx.data), leading_of(args.dx)}, "matmul.dx cuda.mma");
  });
  if (args.activation != Activation::none) finish_dx(context, args.dx, args.preact, args.activation);
}

void dw(const Context& context, const MatmulDw& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  if (N == 0) return;
  const bool packs = args.problem().aligned_factors;
  const auto with = [&]<class T>() {
    multiply<true, true>(context, {N, K, M}, packs, {args.dout.data, leading_of(args.dout)},
                         {args.x.data, leading_of(args.x)},
                         Result<T, float>{args.dweight.as<float>(), K, nullptr, args.store == Store::add},
                         "matmul.dw cuda.mma");
  };
  args.x.dtype == DType::bf16 ? with.template operator()<__nv_bfloat16>()
                              : with.template operator()<__half>();
  if (args.dbias) {
    column_sums(context, args.dout, args.dbias, args.store, static_cast<float*>(context.scratch()));
  }
}

template <class Problem>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.packed) return kNotPacked;
  }
  if (!device.gpu.at_least(8)) return "needs compute capability 8.0";
  if (extent_of(p).rows > std::int64_t{65535} * kTile) return "more rows than a grid has";
  return {};
}

std::size_t dw_workspace(const MatmulDwProblem& p, const DeviceInfo&) {
  return column_sums_bytes(p.M, p.N);
}

template <class Problem>
double cost(const Problem&, const DeviceInfo&) {
  return kCostOfMma;
}

template <class Problem>
std::string configuration(const Problem& p, const DeviceInfo&) {
  return p.aligned_factors ? "copies of 16 bytes" : "element by element";
}

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulForward, "cuda.mma"_kernel) = {.needs = Needs::gpu,
                                                       .dtypes = k16Bits,
                                                       .run = matmul::cuda::forward,
                                                       .refuse = matmul::cuda::refuse,
                                                       .cost = matmul::cuda::cost,
                                                       .configuration = matmul::cuda::configuration};
WARPWRIGHT_KERNEL(MatmulDx, "cuda.mma"_kernel) = {.needs = Needs::gpu,
                                                  .dtypes = k16Bits,
                                                  .run = matmul::cuda::dx,
                                                  .refuse = matmul::cuda::refuse,
                                                  .cost = matmul::cuda::cost,
                                                  .configuration = matmul::cuda::configuration};
WARPWRIGHT_KERNEL(MatmulDw, "cuda.mma"_kernel) = {.needs = Needs::gpu,
                                                  .dtypes = k16Bits,
                                                  .run = matmul::cuda::dw,
                                                  .refuse = matmul::cuda::refuse,
                                                  .workspace = matmul::cuda::dw_workspace,
                                                  .cost = matmul::cuda::cost,
                                                  .configuration = matmul::cuda::configuration};

}  // namespace warpwright::ops
