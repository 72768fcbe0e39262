// The three products on a GPU's ordinary arithmetic units, as readable as a fast product gets. A block of 256
// threads makes 128 × 128 results, and each thread has 8 × 8 of them in registers. A step takes 32 terms of
// the depth from shared memory. For each term a thread reads 16 numbers and makes 64 multiply-adds, so the
// multipliers are the limit, not shared memory. Two blocks share a multiprocessor: one computes while the
// other loads.
//
// Any shape works: the kernel reads zeros outside the matrices and writes nothing there. Arithmetic is fp32;
// bf16 and fp16 are widened on reading. One kernel serves three schedules (schedule.cuh): cuda.tile128 has a
// block for each tile, whose sums are in the order of the depth, so a product of few tiles and great depth
// (dw of a narrow layer) leaves multiprocessors idle. cuda.tile128_persistent and cuda.tile128_stream_k are
// for fp32 alone. The bias is added to the sums. The other parts that llm.c has next to its product are its
// own kernels: GELU, the residual, and the bias gradient of 32 columns per block.
#include <cstdint>
#include <string>

#include "ops/cuda/flags.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/cut_tiles.cuh"
#include "ops/matmul/cuda/plain_passes.hpp"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/cuda/workers.cuh"
#include "ops/matmul/tile128.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

constexpr int kTile = Tile128::kSide, kDepth = Tile128::kDepth;  // per block
constexpr int kThreads = Tile128::kThreads;
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

template <class T, class Out, bool a_depth_contiguous, bool b_depth_contiguous>
struct Parameters {
  Factor<T, a_depth_contiguous> a;
  Factor<T, b_depth_contiguous> b;
  Result<T, Out> result;
  Work work;
  float* partials = nullptr;  // a tile of sums for each block, if depths are cut
  unsigned* flags = nullptr;  // of each group of 128 threads
};

// (rows, cols) = A (rows, depth) · B (depth, cols). Both factors are given by their sides.
template <class Schedule, class P>
__global__ void __launch_bounds__(kThreads, Tile128::kBlocks) tile_kernel(const __grid_constant__ P p) {
  __shared__ float a_tile[kDepth][kTile + kPadding];
  __shared__ float b_tile[kDepth][kTile + kPadding];
  const int my_row = static_cast<int>(threadIdx.x) / kSide * kHalf;
  const int my_col = static_cast<int>(threadIdx.x) % kSide * kHalf;
  Schedule schedule(p.work, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), kTile);
  Piece piece;
  while (schedule.next(piece)) {
    const std::int64_t first_row = static_cast<std::int64_t>(piece.row_tile) * kTile;
    const std::int64_t first_col = static_cast<std::int64_t>(piece.col_tile) * kTile;
    float sums[8][8] = {};
    for (int slab = piece.begin; slab < piece.end; ++slab) {
      const std::int64_t k0 = static_cast<std::int64_t>(slab) * kDepth;
      __syncthreads();
      p.a.load(a_tile, first_row, k0);
      p.b.load(b_tile, first_col, k0);
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

    if constexpr (Schedule::kCutsDepth) {
      if (!exchange(sums, piece, schedule, p.partials, p.flags)) continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t row = first_row + my_row + i % kHalf + i / kHalf * (kTile / 2);
      if (row >= p.a.side) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::int64_t col = first_col + my_col + j % kHalf + j / kHalf * (kTile / 2);
        if (col < p.b.side) p.result.store(row, col, sums[i][j]);
      }
    }
  }
}

// C = A · B. The scratch begins with the partial sums.
template <Schedule schedule, class T, class Out, bool a_depth_contiguous, bool b_depth_contiguous>
void multiply(const Context& context, const Factor<T, a_depth_contiguous>& a,
              const Factor<T, b_depth_contiguous>& b, const Result<T, Out>& result, const Workers& workers,
              std::string_view what) {
  using P = Parameters<T, Out, a_depth_contiguous, b_depth_contiguous>;
  constexpr bool kCuts = schedule == Schedule::stream_k;
  P p{.a = a, .b = b, .result = result, .work = {}};
  p.work.rows = static_cast<int>(a.side);
  p.work.cols = static_cast<int>(b.side);
  p.work.slabs = static_cast<int>(ceil_div(a.depth, kDepth));
  p.work.col_tiles = static_cast<int>(ceil_div(b.side, kTile));
  if constexpr (kCuts) {
    p.partials = static_cast<float*>(context.scratch());
    p.flags = gpu::flags_of(context);
  }
  using Walk = std::conditional_t<kCuts, StreamK, Persistent>;  // block: a tile per worker
  launch_workers(tile_kernel<Walk, P>, p, workers.count, kThreads, 0, kCuts, context.stream().get(), what);
}

// Calls f.operator()<T, Out>() for the factors and the result of a kernel with this schedule.
template <Schedule schedule, class F>
void visit_dtypes(DType factors, DType result, F&& f) {
  if constexpr (schedule == Schedule::block) {
    visit_result_dtype(factors, result, f);
  } else {
    f.template operator()<float, float>();
  }
}

template <Schedule schedule>
void run_product(const Context& context, const MatmulForward& args, const Workers& workers) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  if (M == 0 || N == 0) return;
  forward_with_plain_passes(context, args, [&](const MatmulForward& product) {
    visit_dtypes<schedule>(args.x.dtype, args.out.dtype, [&]<class T, class Out>() {
      const Factor<T, true> x{static_cast<const T*>(args.x.data), leading_of(args.x), M, K};
      const Factor<T, true> weight{static_cast<const T*>(args.weight.data), K, N, K};
      multiply<schedule>(context, x, weight, result_of<T, Out>(product), workers, "matmul.forward");
    });
  });
}

template <Schedule schedule>
void run_product(const Context& context, const MatmulDx& args, const Workers& workers) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  if (M == 0 || K == 0) return;
  visit_dtypes<schedule>(args.dout.dtype, args.dx.dtype, [&]<class T, class Out>() {
    const Factor<T, true> dout{static_cast<const T*>(args.dout.data), leading_of(args.dout), M, N};
    const Factor<T, false> weight{static_cast<const T*>(args.weight.data), K, K, N};
    const Result<T, Out> dx{static_cast<Out*>(args.dx.data), leading_of(args.dx)};
    multiply<schedule>(context, dout, weight, dx, workers, "matmul.dx");
  });
  if (is_gelu(args.activation) && suits_plain_passes(args.dx, args.preact)) {
    run_plain(context, GeluBackward{args.dx, args.preact, args.dx, args.activation});
  } else if (args.activation != Activation::none) {
    finish_dx(context, args.dx, args.preact, args.activation);
  }
}

template <Schedule schedule>
void run_product(const Context& context, const MatmulDw& args, const Workers& workers) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  if (N == 0) return;
  visit_dtypes<schedule>(args.x.dtype, DType::f32, [&]<class T, class Out>() {
    if (K == 0) return;  // only dbias is left
    const Factor<T, false> dout{static_cast<const T*>(args.dout.data), leading_of(args.dout), N, M};
    const Factor<T, false> x{static_cast<const T*>(args.x.data), leading_of(args.x), K, M};
    multiply<schedule>(context, dout, x, result_of<T>(args), workers, "matmul.dw");
  });
  if (args.dbias) plain_column_sums(context, args.dout, args.dbias, args.store);
}

// The functions of a Kernel object.
template <Schedule schedule, class Args>
struct Functions {
  using Problem = typename Args::Problem;

  static Workers workers(const Problem& p, const DeviceInfo& device) {
    return tile128_workers(request_of(p), schedule, device);
  }
  static Refusal refuse(const Problem& p, const DeviceInfo& device) {
    if constexpr (std::is_same_v<Args, MatmulForward>) {
      if (p.packed) return kNotPacked;
      if (p.batch_invariant && schedule == Schedule::stream_k) return kNotInvariant;
    }
    if (schedule == Schedule::stream_k && is_empty(p)) return kEmpty;
    if (!counts_in_32_bits(extent_of(p))) return kNot32Bits;
    if (workers(p, device).count == 0) return "too many tiles for one launch";
    return {};
  }
  static std::size_t workspace(const Problem& p, const DeviceInfo& device) {
    return workers(p, device).partial_bytes;
  }
  static double cost(const Problem& p, const DeviceInfo& device) {
    return kCostOfTile128 + workers(p, device).seconds;
  }
  static std::string configuration(const Problem& p, const DeviceInfo& device) {
    return std::to_string(workers(p, device).count) + " workers";
  }
  static void run(const Context& context, const Args& args) {
    static constexpr char kOwner = 0;
    const Problem p = args.problem();
    run_product<schedule>(context, args,
                          derived(context, &kOwner, p, [&] { return workers(p, context.device()); }));
  }
};

constexpr DTypes kFp32{DType::f32};

template <Schedule schedule, class Args, class F = Functions<schedule, Args>>
constexpr Kernel<Args> kTileKernel = {.needs = Needs::gpu,
                                      .dtypes = schedule == Schedule::block ? kGpuDTypes : kFp32,
                                      .run = F::run,
                                      .refuse = F::refuse,
                                      .workspace = F::workspace,
                                      .cost = F::cost,
                                      .configuration = F::configuration};

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {
using matmul::Schedule;
using matmul::cuda::kTileKernel;

WARPWRIGHT_KERNEL(MatmulForward, "cuda.tile128"_kernel) = kTileKernel<Schedule::block, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.tile128"_kernel) = kTileKernel<Schedule::block, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.tile128"_kernel) = kTileKernel<Schedule::block, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward,
                  "cuda.tile128_persistent"_kernel) = kTileKernel<Schedule::persistent, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.tile128_persistent"_kernel) = kTileKernel<Schedule::persistent, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.tile128_persistent"_kernel) = kTileKernel<Schedule::persistent, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward,
                  "cuda.tile128_stream_k"_kernel) = kTileKernel<Schedule::stream_k, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.tile128_stream_k"_kernel) = kTileKernel<Schedule::stream_k, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.tile128_stream_k"_kernel) = kTileKernel<Schedule::stream_k, MatmulDw>;

}  // namespace warpwright::ops
