// The forward for at most 32 rows, in bf16 and fp16, as in generation. It takes the time of reading the
// weights, so each weight is read once, with many reads in flight.
//
// Tensor cores multiply 16 rows of the weights by 8 rows of x (mma.m16n8k16): the instruction's larger side
// is the weights'. A block makes 16 columns of the result, or a cluster does, whose blocks share the depth if
// there are fewer columns than would fill the GPU. A block's warps take 32 terms of the depth at a time in
// turn. The sums are added in the order of the warps, then of the blocks. A thread reads 8 adjacent terms of
// a row of the weights, and the same 8 of a row of x, 16 bytes each, into the registers of two instructions.
// An instruction expects other terms there, but a sum may take its terms in any order that both factors
// share.
//
// In a graph whose kernels overlap, the first weights and the bias are read before the kernels that make x
// have ended. Each kernel also has the weights of the next product brought to the second-level cache.
//
// Such a kernel takes a few microseconds and executes most of its code once, so the code itself, which comes
// from the second-level cache, costs time: addresses advance by constants, and the host does the divisions.
#include <cooperative_groups.h>

#include <bit>
#include <limits>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kMostRows = 32;
constexpr int kStep = 32;  // terms of the depth that a warp takes at a time; a thread has 8 of them
constexpr int kTerms = 8;
constexpr int kSide = 16, kOther = 8;  // rows of the weights and of x in an instruction
constexpr int kWarps = 8, kThreads = kWarps * gpu::kWarp;
constexpr int kStride = kWarps * kStep;  // between the terms of a warp's steps
constexpr int kPitch = kSide + 4;        // of a row of sums: the stores of a warp use each bank once
constexpr int kMostBlocks = 8;           // of a cluster

// groups: of 8 rows of x. ahead: steps whose weights are read at once; together: steps whose x is. blocks:
// for how many on a multiprocessor the registers suffice.
template <int groups, int ahead, int together, int blocks>
struct Shape {
  static constexpr int kGroups = groups, kAhead = ahead, kTogether = together, kBlocks = blocks;
  static constexpr int kRows = groups * kOther, kResults = kRows * kSide;
  static constexpr int kMine = (kResults + kThreads - 1) / kThreads;  // most results of a thread
  static constexpr std::size_t kShared = sizeof(float) * (kWarps * kRows * kPitch + kResults);
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
  const T* bias;               // may be null
  Result<T, Out> rest;         // scale and residual
  int blocks, log_blocks;      // of a cluster, whose blocks share the depth
  int part;                    // terms of the depth for each of them
  const std::byte* next;       // to bring to the second-level cache; may be null
  int next_bytes, next_share;  // of all blocks and of each
};

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

// This thread's part of the weights' rows i and i + 8 in a step.
struct Weights {
  uint4 low, high;
};

// Adds the products of one step.
template <class T, int groups>
__device__ void multiply_step(float (&sums)[2][groups][4], const Weights& w, const uint4 (&x)[groups]) {
  const std::uint32_t first[4] = {w.low.x, w.high.x, w.low.y, w.high.y};
  const std::uint32_t second[4] = {w.low.z, w.high.z, w.low.w, w.high.w};
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    float(&c)[4] = sums[0][group];
    float(&d)[4] = sums[1][group];
    gpu::multiply<T>(c[0], c[1], c[2], c[3], first, x[group].x, x[group].y);
    gpu::multiply<T>(d[0], d[1], d[2], d[3], second, x[group].z, x[group].w);
  }
}

// Sums of the block's part of the depth, of each of its warps in registers.
template <class S, class T, class Out>
class Sums {
 public:
  __device__ Sums(const Parameters<T, Out>& p, int rank, int first_col)
      : lane_(static_cast<int>(threadIdx.x) % gpu::kWarp), warp_(static_cast<int>(threadIdx.x) / gpu::kWarp) {
    const int k = rank * p.part + warp_ * kStep + lane_ % 4 * kTerms;
    left_ = min(p.K, (rank + 1) * p.part) - k;
    // A row outside the matrices is replaced by the last one, and nobody reads its sums.
    low_ = p.weight + static_cast<std::int64_t>(min(first_col + lane_ / 4, p.N - 1)) * p.K + k;
    high_ = p.weight + static_cast<std::int64_t>(min(first_col + lane_ / 4 + kSide / 2, p.N - 1)) * p.K + k;
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      x_[group] = p.x + min(group * kOther + lane_ / 4, p.M - 1) * p.x_stride + k;
    }
  }

  __device__ void load_first_weights() {
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) load_weights(a, a);
  }
  __device__ void multiply() {
    for (;;) {
#pragma unroll
      for (int first = 0; first < S::kAhead; first += S::kTogether) {
        uint4 x[S::kTogether][S::kGroups];
#pragma unroll
        for (int a = 0; a < S::kTogether; ++a) load_x(x[a], first + a);
#pragma unroll
        for (int a = 0; a < S::kTogether; ++a) {
          multiply_step<T>(sums_, weights_[first + a], x[a]);
          load_weights(first + a, first + a + S::kAhead);
        }
      }
      left_ -= S::kAhead * kStride;
      if (left_ + lane_ % 4 * kTerms <= 0) return;
      low_ += S::kAhead * kStride;
      high_ += S::kAhead * kStride;
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) x_[group] += S::kAhead * kStride;
    }
  }
  // Stores them as (warps, rows, pitch).
  __device__ void store(float* to) const {
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = group * kOther + lane_ % 4 * 2 + c % 2, col = lane_ / 4 + c / 2 * (kSide / 2);
        to[(warp_ * S::kRows + row) * kPitch + col] = sums_[0][group][c] + sums_[1][group][c];
      }
    }
  }

 private:
  static __device__ uint4 terms(const T* from, int step, int left) {
    return left > step * kStride ? *reinterpret_cast<const uint4*>(from + step * kStride) : uint4{};
  }
  __device__ void load_x(uint4 (&x)[S::kGroups], int step) const {
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) x[group] = terms(x_[group], step, left_);
  }
  __device__ void load_weights(int a, int step) {
    weights_[a].low = terms(low_, step, left_);
    weights_[a].high = terms(high_, step, left_);
  }

  const int lane_, warp_;
  int left_;  // terms of the part from this thread's first one on
  const T *low_, *high_, *x_[S::kGroups];
  Weights weights_[S::kAhead];
  float sums_[2][S::kGroups][4] = {};  // two, so that an instruction need not wait for the one before
};

// This thread's results: numbers first_ + j·stride_ of the block's (rows, columns), all in one column.
template <class S, class T, class Out>
class Results {
 public:
  __device__ Results(const Parameters<T, Out>& p, int rank, int first_col)
      : p_(p),
        first_(rank * kThreads + static_cast<int>(threadIdx.x)),
        stride_(p.blocks * kThreads),
        col_(first_col + static_cast<int>(threadIdx.x) % kSide),
        bias_(p.bias && col_ < p.N ? gpu::to_float(p.bias[col_]) : 0.0f) {}

  __device__ void load_residual() {
#pragma unroll
    for (int j = 0; j < S::kMine; ++j) {
      const std::int64_t at = row(j) * p_.rest.residual_stride + col_;
      if (p_.rest.residual && has(j)) residual_[j] = gpu::to_float(p_.rest.residual[at]);
    }
  }
  // Adds the sums of the block's warps and, in a cluster, of its blocks. `mine` has room for the block's.
  __device__ void gather(const float* sums, float* mine) {
#if __CUDA_ARCH__ >= 900
    if (p_.blocks > 1) {
      cg::cluster_group cluster = cg::this_cluster();
      for (int i = static_cast<int>(threadIdx.x); i < S::kResults; i += kThreads) mine[i] = of_warps(sums, i);
      cluster.sync();
#pragma unroll
      for (int j = 0; j < S::kMine; ++j) {
        if (!has(j)) continue;
        for (int block = 0; block < p_.blocks; ++block) {
          sum_[j] += cluster.map_shared_rank(mine, block)[first_ + j * stride_];
        }
      }
      cluster.barrier_arrive();
      return;
    }
#endif
#pragma unroll
    for (int j = 0; j < S::kMine; ++j) {
      if (has(j)) sum_[j] = of_warps(sums, first_ + j * stride_);
    }
  }
  __device__ void store() const {
#pragma unroll
    for (int j = 0; j < S::kMine; ++j) {
      if (!has(j)) continue;
      const float sum = sum_[j] + bias_;
      if (p_.preact) p_.preact[row(j) * p_.preact_stride + col_] = gpu::from_float<T>(sum);
      p_.rest.data[row(j) * p_.rest.stride + col_] =
          gpu::from_float<Out>(activated(p_.activation, sum) * p_.rest.scale + residual_[j]);
    }
  }

 private:
  __device__ int row(int j) const {
    return (first_ + j * stride_) / kSide;
  }
  __device__ bool has(int j) const {
    return row(j) < p_.M && col_ < p_.N;
  }
  static __device__ float of_warps(const float* sums, int i) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += sums[(warp * S::kRows + i / kSide) * kPitch + i % kSide];
    }
    return sum;
  }

  const Parameters<T, Out>& p_;
  const int first_, stride_, col_;
  const float bias_;
  float residual_[S::kMine] = {}, sum_[S::kMine] = {};
};

// This block's share of the next weights.
template <class T, class Out>
__device__ void fetch_next(const Parameters<T, Out>& p) {
#if __CUDA_ARCH__ >= 900
  const int first = static_cast<int>(blockIdx.x) * p.next_share;
  const int bytes = min(p.next_share, p.next_bytes - first);
  if (threadIdx.x != 0 || bytes <= 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p.next + first), "r"(bytes));
#endif
}

template <class S, class T, class Out>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    few_rows_kernel(const __grid_constant__ Parameters<T, Out> p) {
  extern __shared__ float all_sums[];
  const int rank = static_cast<int>(blockIdx.x) & (p.blocks - 1);
  const int first_col = static_cast<int>(blockIdx.x >> p.log_blocks) * kSide;
  Sums<S, T, Out> sums(p, rank, first_col);
  sums.load_first_weights();
  Results<S, T, Out> results(p, rank, first_col);
  fetch_next(p);
  gpu::let_next_kernel_begin();
  gpu::wait_for_kernels_before();

  results.load_residual();
  sums.multiply();
  sums.store(all_sums);
  __syncthreads();
  results.gather(all_sums, all_sums + kWarps * S::kRows * kPitch);
  results.store();
#if __CUDA_ARCH__ >= 900
  if (p.blocks > 1) cg::this_cluster().barrier_wait();  // nobody leaves while others read its sums
#endif
}

// Blocks of a cluster: more while the columns alone do not fill the GPU and a warp has more steps than it
// reads at once.
int blocks_of(std::int64_t N, std::int64_t K, int ahead, const DeviceInfo& device) {
  if (!device.gpu.runs_hopper_code()) return 1;
  const std::int64_t tiles = ceil_div(N, kSide), steps = ceil_div(K, kStep);
  int blocks = 1;
  while (blocks < kMostBlocks && tiles * blocks < device.gpu.multiprocessors &&
         steps > blocks * kWarps * ahead) {
    blocks *= 2;
  }
  return blocks;
}

template <class S, class T, class Out>
void launch(const Context& context, Parameters<T, Out> p) {
  p.blocks = blocks_of(p.N, p.K, S::kAhead, context.device());
  p.log_blocks = std::countr_zero(static_cast<unsigned>(p.blocks));
  p.part = static_cast<int>(ceil_div(ceil_div(p.K, kStep), p.blocks)) * kStep;
  const std::int64_t grid = ceil_div(p.N, kSide) * p.blocks;
  constexpr int kLine = 128;
  p.next_share = static_cast<int>(ceil_div(ceil_div(p.next_bytes, grid), kLine)) * kLine;
  gpu::allow_shared(few_rows_kernel<S, T, Out>, S::kShared);
  cudaLaunchAttribute attributes[] = {{}, gpu::overlap_attribute()};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(p.blocks), 1, 1};
  const int first = p.blocks > 1 ? 0 : 1, end = gpu::overlaps(context) ? 2 : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = S::kShared;
  config.stream = context.stream().get();
  config.attrs = attributes + first;
  config.numAttrs = static_cast<unsigned>(end - first);
  warpwright::cuda::check(cudaLaunchKernelEx(&config, few_rows_kernel<S, T, Out>, p),
                          "matmul.forward cuda.few_rows");
}

// Less than half of the 50 MB that Hopper's second-level cache holds: this product's own weights come, too.
int next_bytes(const Tensor& weight) {
  constexpr std::size_t kMost = 20 << 20;
  return begin_at_packs(weight) ? static_cast<int>(std::min(weight.bytes(), kMost) / 16 * 16) : 0;
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
                             .rest = result_of<T, Out>(rest),
                             .blocks = 1,
                             .log_blocks = 0,
                             .part = 0,
                             .next = static_cast<const std::byte*>(args.next_weight.data),
                             .next_bytes = args.next_weight ? next_bytes(args.next_weight) : 0,
                             .next_share = 0};
  if (p.M == 0 || p.N == 0) return;
  // With three blocks on a multiprocessor, a thread has 80 registers, and the compiler spills. So three are
  // for products whose columns two blocks could not hold at once.
  const bool two_suffice = ceil_div(p.N, kSide) <= 2 * context.device().gpu.multiprocessors;
  if (p.M <= 8 && two_suffice) return launch<Shape<1, 4, 4, 2>>(context, p);
  if (p.M <= 8) return launch<Shape<1, 4, 4, 3>>(context, p);
  if (p.M <= 16) return launch<Shape<2, 4, 2, 2>>(context, p);
  launch<Shape<4, 2, 2, 2>>(context, p);
}

void forward(const Context& context, const MatmulForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2) {
      args.out.dtype == DType::f32 ? run<T, float>(context, args) : run<T, T>(context, args);
    }
  });
}

Refusal refuse(const MatmulForwardProblem& p, const DeviceInfo&) {
  if (p.packed) return kNotPacked;
  if (p.batch_invariant) return "only products of few rows sum in its order";
  if (p.rows_counted) return "does not read the number of rows on the device";
  if (p.M > kMostRows) return "takes at most 32 rows";
  if (!p.aligned_factors || p.K % kTerms != 0) return "reads 16 bytes at a time";
  constexpr std::int64_t kMostTerms = std::numeric_limits<std::int32_t>::max() - (1 << 16);  // runs ahead
  if (!counts_in_32_bits(extent_of(p)) || p.K > kMostTerms) return kNot32Bits;
  return {};
}

// The launch, then the weights from memory or x from the second-level cache, whichever takes longer: every
// block reads all of x.
double cost(const MatmulForwardProblem& p, const DeviceInfo&) {
  constexpr double kLaunch = 2e-6, kCacheBandwidth = 2.5e12;
  const auto tiles = static_cast<double>(ceil_div(p.N, kSide));
  const double x_bytes = static_cast<double>(p.M * p.K) * static_cast<double>(size_of(p.dtype));
  return kLaunch + std::max(p.bytes() / kPassBandwidth, tiles * x_bytes / kCacheBandwidth);
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
