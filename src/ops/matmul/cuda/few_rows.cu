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
#include <cooperative_groups.h>

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
constexpr int kPitch = kSide + 4;  // of a row of sums: the stores of a warp use each bank once
constexpr int kMostBlocks = 8;     // of a cluster

// groups: of 8 rows of x. ahead: steps whose weights are read at once; together: steps whose x is. blocks:
// for how many on a multiprocessor the registers suffice.
template <int groups, int ahead, int together, int blocks>
struct Shape {
  static constexpr int kGroups = groups, kAhead = ahead, kTogether = together, kBlocks = blocks;
  static constexpr int kRows = groups * kOther;
  static constexpr std::size_t kShared = sizeof(float) * (kWarps * kRows * kPitch + kRows * kSide);
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
  const T* bias;          // may be null
  Result<T, Out> rest;    // scale and residual
  int blocks;             // of a cluster, whose blocks share the depth
  const std::byte* next;  // to bring to the second-level cache; may be null
  std::int64_t next_bytes;
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

// This thread's part of the weights' rows i and i + 8 in a step.
struct Weights {
  uint4 low, high;
};

// Adds the products of one step.
template <class T, int groups>
__device__ void multiply_step(float (&sums)[groups][4], const Weights& w, const uint4 (&x)[groups]) {
  const std::uint32_t first[4] = {w.low.x, w.high.x, w.low.y, w.high.y};
  const std::uint32_t second[4] = {w.low.z, w.high.z, w.low.w, w.high.w};
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    float(&c)[4] = sums[group];
    gpu::multiply<T>(c[0], c[1], c[2], c[3], first, x[group].x, x[group].y);
    gpu::multiply<T>(c[0], c[1], c[2], c[3], second, x[group].z, x[group].w);
  }
}

// A block's columns and its part of the depth, in steps.
struct Part {
  int rank, first_col, begin, end;
};
__device__ inline Part part_of(int blocks, int K) {
  const int block = static_cast<int>(blockIdx.x), rank = block % blocks, steps = (K + kStep - 1) / kStep;
  const int each = (steps + blocks - 1) / blocks;
  return {rank, block / blocks * kSide, rank * each, min(rank * each + each, steps)};
}

// Sums of the block's part of the depth, of each of its warps in registers.
template <class S, class T, class Out>
class Sums {
 public:
  __device__ Sums(const Parameters<T, Out>& p, const Part& part)
      : p_(p),
        part_(part),
        lane_(static_cast<int>(threadIdx.x) % gpu::kWarp),
        warp_(static_cast<int>(threadIdx.x) / gpu::kWarp) {}

  __device__ void load_first_weights() {
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) load_weights(a, part_.begin + warp_ + a * kWarps);
  }
  __device__ void multiply() {
    constexpr int kTogether = S::kTogether;
    for (int slab = part_.begin; slab < part_.end; slab += S::kAhead * kWarps) {
#pragma unroll
      for (int first = 0; first < S::kAhead; first += kTogether) {
        uint4 x[kTogether][S::kGroups];
#pragma unroll
        for (int a = 0; a < kTogether; ++a) load_x(x[a], slab + warp_ + (first + a) * kWarps);
#pragma unroll
        for (int a = 0; a < kTogether; ++a) {
          multiply_step<T>(sums_, weights_[first + a], x[a]);
          load_weights(first + a, slab + warp_ + (first + a + S::kAhead) * kWarps);
        }
      }
    }
  }
  // Stores them as (warps, rows, pitch).
  __device__ void store(float* to) const {
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = group * kOther + lane_ % 4 * 2 + c % 2, col = lane_ / 4 + c / 2 * (kSide / 2);
        to[(warp_ * S::kRows + row) * kPitch + col] = sums_[group][c];
      }
    }
  }

 private:
  // This thread's first term of a step; K outside the block's part.
  __device__ int depth(int step) const {
    return step < part_.end ? step * kStep + lane_ % 4 * kTerms : p_.K;
  }
  __device__ void load_x(uint4 (&x)[S::kGroups], int step) const {
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      x[group] = terms_of(p_.x, p_.x_stride, group * kOther + lane_ / 4, p_.M, depth(step), p_.K);
    }
  }
  __device__ void load_weights(int a, int step) {
    const int n = part_.first_col + lane_ / 4, k = depth(step);
    weights_[a].low = terms_of(p_.weight, p_.K, n, p_.N, k, p_.K);
    weights_[a].high = terms_of(p_.weight, p_.K, n + kSide / 2, p_.N, k, p_.K);
  }

  const Parameters<T, Out>& p_;
  const Part part_;
  const int lane_, warp_;
  Weights weights_[S::kAhead];
  float sums_[S::kGroups][4] = {};
};

// The sum of result i of the block's (rows, columns) over its warps.
template <class S>
__device__ float sum_of_warps(const float* sums, int i) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    sum += sums[(warp * S::kRows + i / kSide) * kPitch + i % kSide];
  }
  return sum;
}

template <class T, class Out>
__device__ void store_result(const Parameters<T, Out>& p, int row, int col, float sum) {
  if (p.preact) p.preact[row * p.preact_stride + col] = gpu::from_float<T>(sum);
  p.rest.store(row, col, activated(p.activation, sum));
}

// Makes the results from the sums of all blocks of the cluster, a share of them in each block. `mine`: this
// block's, over its warps.
template <class S, class T, class Out>
__device__ void finish_together(const Parameters<T, Out>& p, const Part& part, float* mine, float bias) {
#if __CUDA_ARCH__ >= 900
  cg::cluster_group cluster = cg::this_cluster();
  constexpr int kResults = S::kRows * kSide, kMine = (kResults + 2 * kThreads - 1) / (2 * kThreads);
  const int first = part.rank * kThreads + static_cast<int>(threadIdx.x), stride = p.blocks * kThreads;
  cluster.sync();
  float sums[kMine] = {};
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int i = first + j * stride;
    if (i >= kResults) continue;
    for (int block = 0; block < p.blocks; ++block) sums[j] += cluster.map_shared_rank(mine, block)[i];
  }
  cluster.barrier_arrive();
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int i = first + j * stride, row = i / kSide, col = part.first_col + i % kSide;
    if (i < kResults && row < p.M && col < p.N) store_result(p, row, col, sums[j] + bias);
  }
  cluster.barrier_wait();  // nobody leaves while others read its sums
#endif
}

// This block's share of the next weights.
template <class T, class Out>
__device__ void fetch_next(const Parameters<T, Out>& p) {
#if __CUDA_ARCH__ >= 900
  constexpr std::int64_t kLine = 128;
  const std::int64_t share = (p.next_bytes / gridDim.x / kLine + 1) * kLine, first = blockIdx.x * share;
  const std::int64_t bytes = min(share, p.next_bytes - first) / 16 * 16;
  if (threadIdx.x != 0 || bytes <= 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p.next + first),
               "r"(static_cast<unsigned>(bytes)));
#endif
}

template <class S, class T, class Out>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    few_rows_kernel(const __grid_constant__ Parameters<T, Out> p) {
  extern __shared__ float all_sums[];
  const Part part = part_of(p.blocks, p.K);
  Sums<S, T, Out> sums(p, part);
  sums.load_first_weights();
  // Of the only column for which this thread finishes results.
  const int own_col = part.first_col + static_cast<int>(threadIdx.x) % kSide;
  const float bias = p.bias && own_col < p.N ? gpu::to_float(p.bias[own_col]) : 0.0f;
  fetch_next(p);
  gpu::let_next_kernel_begin();
  gpu::wait_for_kernels_before();

  sums.multiply();
  sums.store(all_sums);
  __syncthreads();
  constexpr int kResults = S::kRows * kSide;
  if (p.blocks == 1) {
    for (int i = static_cast<int>(threadIdx.x); i < kResults; i += kThreads) {
      if (i / kSide < p.M && own_col < p.N) {
        store_result(p, i / kSide, own_col, sum_of_warps<S>(all_sums, i) + bias);
      }
    }
    return;
  }
  float* const mine = all_sums + kWarps * S::kRows * kPitch;
  for (int i = static_cast<int>(threadIdx.x); i < kResults; i += kThreads) {
    mine[i] = sum_of_warps<S>(all_sums, i);
  }
  finish_together<S>(p, part, mine, bias);
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
  gpu::allow_shared(few_rows_kernel<S, T, Out>, S::kShared);
  cudaLaunchAttribute attributes[] = {{}, gpu::overlap_attribute()};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(p.blocks), 1, 1};
  const int first = p.blocks > 1 ? 0 : 1, end = gpu::overlaps(context) ? 2 : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.N, kSide) * p.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = S::kShared;
  config.stream = context.stream().get();
  config.attrs = attributes + first;
  config.numAttrs = static_cast<unsigned>(end - first);
  warpwright::cuda::check(cudaLaunchKernelEx(&config, few_rows_kernel<S, T, Out>, p),
                          "matmul.forward cuda.few_rows");
}

// Less than half of the 50 MB that Hopper's second-level cache holds: this product's own weights come, too.
std::int64_t next_bytes(const Tensor& weight) {
  constexpr std::size_t kMost = 20 << 20;
  return begin_at_packs(weight) ? static_cast<std::int64_t>(std::min(weight.bytes(), kMost)) : 0;
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
                             .next = static_cast<const std::byte*>(args.next_weight.data),
                             .next_bytes = args.next_weight ? next_bytes(args.next_weight) : 0};
  if (p.M == 0 || p.N == 0) return;
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
