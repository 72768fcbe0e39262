// Normalization forward with Welford's online update, for rows of any length, alignment and dtypes. It is
// there to be read, and to compare its error and speed with: cuda.loop takes mean and variance in two passes,
// cuda.block_row in one pass about a number near the mean, and merges its warps' sums.
//
// A block of four warps owns a row. A thread takes four neighbouring elements at a time and updates the mean
// and M2 = Σ(x − mean)² of the elements so far, which takes a division for each. The threads' states are
// merged by the formula for two sets. The row is then read again from the caches.
// Source: B. P. Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products", 1962; the
// merge: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
// Sample Variances", 1979.
#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/cuda/lost_columns.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * gpu::kWarp, kNeighbours = 4;

template <class A>
struct Moments {
  A count = 0, mean = 0, m2 = 0;

  __device__ void add(A x) {
    count += 1;
    const A delta = x - mean;
    mean += delta / count;
    m2 = fma(delta, x - mean, m2);
  }
  __device__ void merge(const Moments& other) {
    if (other.count == 0) return;
    const A together = count + other.count, share = other.count / together, delta = other.mean - mean;
    mean = count == 0 ? other.mean : fma(delta, share, mean);
    m2 += other.m2;
    if (count > 0) m2 = fma(delta * delta, count * share, m2);
    count = together;
  }
  __device__ Moments of_lane(int distance) const {
    return {__shfl_down_sync(gpu::kAllLanes, count, distance),
            __shfl_down_sync(gpu::kAllLanes, mean, distance), __shfl_down_sync(gpu::kAllLanes, m2, distance)};
  }
};

// The moments of a row about its mean, or about 0 if not centered. Every thread gets the same bits, since the
// warps' moments are merged in order by all.
template <class A, class T>
__device__ Moments<A> moments_of(const T* x, std::int64_t C, bool centered) {
  __shared__ A counts[kWarps], means[kWarps], m2s[kWarps];
  Moments<A> moments;
  for (std::int64_t first = kNeighbours * static_cast<std::int64_t>(threadIdx.x); first < C;
       first += kNeighbours * kThreads) {
#pragma unroll
    for (int k = 0; k < kNeighbours; ++k) {
      if (first + k >= C) break;
      const A value = to_arithmetic<A>(x[first + k]);
      if (centered) {
        moments.add(value);
      } else {
        moments.m2 = fma(value, value, moments.m2);
      }
    }
  }
  if (centered) {
#pragma unroll
    for (int distance = gpu::kWarp / 2; distance > 0; distance /= 2) moments.merge(moments.of_lane(distance));
  } else {
    moments.m2 = gpu::warp_sum(moments.m2);
  }
  if (threadIdx.x % gpu::kWarp == 0) {
    const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
    counts[warp] = moments.count;
    means[warp] = moments.mean;
    m2s[warp] = moments.m2;
  }
  __syncthreads();
  moments = {counts[0], means[0], m2s[0]};
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) {
    if (centered) {
      moments.merge({counts[warp], means[warp], m2s[warp]});
    } else {
      moments.m2 += m2s[warp];
    }
  }
  return moments;
}

template <class X, class P, class O>
struct WelfordRows {
  using A = Arithmetic<X>;
  const X* x;
  const P *weight, *bias;  // may be null
  O* out;
  A *mean, *rstd;  // may be null
  std::int64_t C;
  A eps;
  bool centered;
};

template <class X, class P, class O>
__global__ void __launch_bounds__(kThreads) forward_welford(const __grid_constant__ WelfordRows<X, P, O> a) {
  using A = Arithmetic<X>;
  const std::int64_t row = blockIdx.x, first = row * a.C;
  const Moments<A> moments = moments_of<A>(a.x + first, a.C, a.centered);
  const A rstd = 1 / sqrt(moments.m2 / static_cast<A>(a.C) + a.eps);
  for (std::int64_t c = threadIdx.x; c < a.C; c += kThreads) {
    const A normalized = (to_arithmetic<A>(a.x[first + c]) - moments.mean) * rstd;
    a.out[first + c] =
        from_arithmetic<O>(fma(normalized, element_or<A>(a.weight, c, 1), element_or<A>(a.bias, c, 0)));
  }
  if (threadIdx.x == 0 && a.mean) a.mean[row] = moments.mean;
  if (threadIdx.x == 0 && a.rstd) a.rstd[row] = rstd;
}

template <class X, class P, class O>
void forward_as(const Context& context, const NormForward& args, NormTypes<X, P, O>) {
  using A = Arithmetic<X>;
  const WelfordRows<X, P, O> a{
      data_of<const X>(args.x), data_of<const P>(args.weight), data_of<const P>(args.bias),
      data_of<O>(args.out),     data_of<A>(args.mean),         data_of<A>(args.rstd),
      args.x.shape[1],          static_cast<A>(args.eps),      args.centered};
  if (args.x.shape[0] == 0) return;
  forward_welford<<<static_cast<unsigned>(args.x.shape[0]), kThreads, 0, context.stream().get()>>>(a);
  warpwright::cuda::check_launch("norm.forward cuda.welford");
}

void forward(const Context& context, const NormForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                   [&](auto types) { forward_as(context, args, types); });
  keep_lost_columns(context, args);
}

Refusal refuse(const NormForwardProblem& p, const DeviceInfo&) {
  return p.residual ? "adds no residual" : Refusal();
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormForward, "cuda.welford"_kernel) = {
    .needs = Needs::gpu, .dtypes = kFloatingDTypes, .run = norm::cuda::forward, .refuse = norm::cuda::refuse};

}  // namespace warpwright::ops
