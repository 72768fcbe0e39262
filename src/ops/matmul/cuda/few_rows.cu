// The forward for at most 64 rows, in bf16 and fp16, as in generation. It takes the time of reading the
// weights, so each weight is read once, with many reads in flight.
//
// Tensor cores multiply 16 rows of the weights by 8 rows of x (mma.m16n8k16): the instruction's larger side
// is the weights'. A block makes 16 or 32 columns of the result. Its warps share the depth, 32 terms at a
// time in turn, and their sums are added in the order of the warps. A thread reads 8 adjacent terms of a row
// of the weights, and the same 8 of a row of x, 16 bytes each, into the registers of two instructions. An
// instruction expects other terms there, but a sum may take its terms in any order that both factors share.
//
// In a graph whose kernels overlap, the first weights are read before the kernels that make x have ended.
#include "ops/cuda/gelu.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

constexpr int kMostRows = 64;
constexpr int kStep = 32;  // terms of the depth that a warp takes at a time; a thread has 8 of them
constexpr int kTerms = 8;
constexpr int kSide = 16, kOther = 8;  // rows of the weights and of x in an instruction

// groups: of 8 rows of x. tiles: of 16 rows of the weights that a warp takes. ahead: steps whose weights are
// read at once.
template <int groups, int tiles, int warps, int ahead>
struct Shape {
  static constexpr int kGroups = groups, kTiles = tiles, kWarps = warps, kAhead = ahead;
  static constexpr int kRows = groups * kOther, kCols = tiles * kSide, kThreads = warps * gpu::kWarp;
  static constexpr int kPitch = kCols + 4;  // of a row of sums: the stores of a warp use each bank once
  static constexpr std::size_t kShared = sizeof(float) * warps * kRows * kPitch;
};

template <class T, class Out>
struct Parameters {
  const T* x;
  const T* weight;
  std::int64_t x_stride;
  int M, N, K;
  T* preact;  // may be null
  std::int64_t preact_stride;
  Activation activation;
  const T* bias;        // may be null
  Result<T, Out> rest;  // scale and residual
};

// This thread's terms k to k + 7 of row i, or zeros outside the matrix.
template <class T>
__device__ uint4 terms_of(const T* matrix, std::int64_t stride, int i, int rows, int k, int depth) {
  if (i >= rows || k >= depth) return {};
  return *reinterpret_cast<const uint4*>(matrix + i * stride + k);
}

__device__ inline float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gpu::activate<Activation::gelu_tanh>(x);
    case Activation::gelu_erf:
      return gpu::activate<Activation::gelu_erf>(x);
    case Activation::relu:
      return gpu::activate<Activation::relu>(x);
    case Activation::tanh:
      return gpu::activate<Activation::tanh>(x);
    default:
      return x;
  }
}

// Adds the products of one step. low: the terms of rows i of the tiles, high: of rows i + 8.
template <class T, class S>
__device__ void multiply_step(float (&sums)[S::kTiles][S::kGroups][4], const uint4 (&low)[S::kTiles],
                              const uint4 (&high)[S::kTiles], const uint4 (&x)[S::kGroups]) {
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const std::uint32_t first[4] = {low[tile].x, high[tile].x, low[tile].y, high[tile].y};
    const std::uint32_t second[4] = {low[tile].z, high[tile].z, low[tile].w, high[tile].w};
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      float(&c)[4] = sums[tile][group];
      gpu::multiply<T>(c[0], c[1], c[2], c[3], first, x[group].x, x[group].y);
      gpu::multiply<T>(c[0], c[1], c[2], c[3], second, x[group].z, x[group].w);
    }
  }
}

// Writes the finished results of a block from its warps' sums (warps, rows, pitch).
template <class S, class T, class Out>
__device__ void finish(const Parameters<T, Out>& p, const float* all_sums, int first_col) {
  for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kCols; i += S::kThreads) {
    const int row = i / S::kCols, col = first_col + i % S::kCols;
    if (row >= p.M || col >= p.N) continue;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < S::kWarps; ++warp) {
      sum += all_sums[(warp * S::kRows + row) * S::kPitch + i % S::kCols];
    }
    if (p.bias) sum += gpu::to_float(p.bias[col]);
    if (p.preact) p.preact[row * p.preact_stride + col] = gpu::from_float<T>(sum);
    p.rest.store(row, col, activated(p.activation, sum));
  }
}

template <class S, class T, class Out>
__global__ void __launch_bounds__(S::kThreads) few_rows_kernel(const __grid_constant__ Parameters<T, Out> p) {
  extern __shared__ float all_sums[];
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int i = lane / 4, first_col = static_cast<int>(blockIdx.x) * S::kCols;
  uint4 low[S::kAhead][S::kTiles], high[S::kAhead][S::kTiles];
  const auto load_weights = [&](int k, int step) {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
      const int n = first_col + tile * kSide + i;
      low[step][tile] = terms_of(p.weight, p.K, n, p.N, k, p.K);
      high[step][tile] = terms_of(p.weight, p.K, n + kSide / 2, p.N, k, p.K);
    }
  };
  constexpr int kStride = S::kWarps * kStep;
  const int begin = warp * kStep + lane % 4 * kTerms;
#pragma unroll
  for (int step = 0; step < S::kAhead; ++step) load_weights(begin + step * kStride, step);
  gpu::let_next_kernel_begin();
  gpu::wait_for_kernels_before();

  float sums[S::kTiles][S::kGroups][4] = {};
  for (int slab = 0; slab < p.K; slab += S::kAhead * kStride) {
#pragma unroll
    for (int step = 0; step < S::kAhead; ++step) {
      const int k = begin + slab + step * kStride;
      uint4 x[S::kGroups];
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) {
        x[group] = terms_of(p.x, p.x_stride, group * kOther + i, p.M, k, p.K);
      }
      multiply_step<T, S>(sums, low[step], high[step], x);
      load_weights(k + S::kAhead * kStride, step);
    }
  }

#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = group * kOther + lane % 4 * 2 + c % 2, col = tile * kSide + i + c / 2 * (kSide / 2);
        all_sums[(warp * S::kRows + row) * S::kPitch + col] = sums[tile][group][c];
      }
    }
  }
  __syncthreads();
  finish<S>(p, all_sums, first_col);
}

template <class S, class T, class Out>
void launch(const Context& context, const Parameters<T, Out>& p) {
  gpu::allow_shared(few_rows_kernel<S, T, Out>, S::kShared);
  gpu::launch_overlapped(context, few_rows_kernel<S, T, Out>,
                         dim3(static_cast<unsigned>(ceil_div(p.N, S::kCols))), S::kThreads, S::kShared,
                         "matmul.forward cuda.few_rows", p);
}

template <class T, class Out>
void run(const Context& context, const MatmulForward& args) {
  MatmulForward rest = args;  // what `finish` of the result does
  rest.bias = rest.preact = {};
  rest.activation = Activation::none;
  const Parameters<T, Out> p{.x = static_cast<const T*>(args.x.data),
                             .weight = static_cast<const T*>(args.weight.data),
                             .x_stride = leading_of(args.x),
                             .M = static_cast<int>(args.x.shape[0]),
                             .N = static_cast<int>(args.weight.shape[0]),
                             .K = static_cast<int>(args.x.shape[1]),
                             .preact = static_cast<T*>(args.preact.data),
                             .preact_stride = args.preact ? leading_of(args.preact) : 0,
                             .activation = args.activation,
                             .bias = static_cast<const T*>(args.bias.data),
                             .rest = result_of<T, Out>(rest)};
  if (p.M == 0 || p.N == 0) return;
  if (p.M <= 8) return launch<Shape<1, 1, 16, 2>>(context, p);
  if (p.M <= 16) return launch<Shape<2, 1, 16, 2>>(context, p);
  if (p.M <= 32) return launch<Shape<4, 2, 8, 2>>(context, p);
  launch<Shape<8, 2, 8, 1>>(context, p);
}

void forward(const Context& context, const MatmulForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2) {
      args.out.dtype == DType::f32 ? run<T, float>(context, args) : run<T, T>(context, args);
    }
  });
}

Refusal refuse(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (!device.gpu.at_least(8)) return "needs compute capability 8.0";
  if (p.packed) return kNotPacked;
  if (p.batch_invariant) return "only products of few rows sum in its order";
  if (p.rows_counted) return "does not read the number of rows on the device";
  if (p.M > kMostRows) return "takes at most 64 rows";
  if (!p.aligned_factors || p.K % kTerms != 0) return "reads 16 bytes at a time";
  if (!counts_in_32_bits(extent_of(p))) return kNot32Bits;
  return {};
}

// The launch, then the weights from memory or x from the second-level cache, whichever takes longer: every
// block reads all of x.
double cost(const MatmulForwardProblem& p, const DeviceInfo&) {
  constexpr double kLaunch = 2e-6, kCacheBandwidth = 4e12;
  const double blocks = static_cast<double>(ceil_div(p.N, p.M <= 16 ? 16 : 32));
  const double x_bytes = static_cast<double>(p.M * p.K) * static_cast<double>(size_of(p.dtype));
  return kLaunch + std::max(p.bytes() / kPassBandwidth, blocks * x_bytes / kCacheBandwidth);
}

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulForward, "cuda.few_rows"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = k16Bits,
                                                            .run = matmul::cuda::forward,
                                                            .refuse = matmul::cuda::refuse,
                                                            .cost = matmul::cuda::cost};

}  // namespace warpwright::ops
