// Pooling on a GPU. Each block has one sequence and 8 packs of columns, and its warps share the rows. The
// warps' parts are combined in shared memory in a fixed order, which depends only on the sequence.
// Memory-bound: x is read once in lines of 128 bytes, with four loads in flight per thread. Normalization is
// a second kernel with one warp per vector.
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/pooling/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::pooling {
namespace {

constexpr int kThreads = 256, kPacks = 8, kRows = kThreads / kPacks;

template <class T, class TOut>
struct Arguments {
  const T* x;
  const std::int32_t* bounds;  // may be null
  TOut* out;
  int N, S, C;
  bool normalize;
};

// The larger of a and b, or NaN if either is NaN.
__device__ float larger(float a, float b) {
  return a > b || a != a ? a : b;
}

template <Pooling kind>
__device__ float join(float a, float b) {
  return kind == Pooling::max ? larger(a, b) : a + b;
}

template <Pooling kind, int lanes, class T, class TOut>
__global__ void __launch_bounds__(kThreads) pool_columns(const Arguments<T, TOut> a) {
  using Pack = gpu::Packed<T, lanes>;
  __shared__ float parts[kRows][kPacks * lanes + 1];
  const int s = static_cast<int>(blockIdx.x);
  const int pack = static_cast<int>(threadIdx.x) % kPacks, row = static_cast<int>(threadIdx.x) / kPacks;
  const int c = (static_cast<int>(blockIdx.y) * kPacks + pack) * lanes;
  const auto bound = [&](int at) { return a.bounds ? min(max(__ldg(a.bounds + at), 0), a.N) : at; };
  const int first = bound(s), all = max(bound(s + 1) - first, 0);
  const int count = kind == Pooling::cls ? min(all, 1) : all;
  const float neutral = kind == Pooling::max ? -INFINITY : 0.0f;
  float values[lanes];
#pragma unroll
  for (int j = 0; j < lanes; ++j) values[j] = neutral;
  gpu::wait_for_kernels_before();
  if (c < a.C) {
    const T* x = a.x + static_cast<std::int64_t>(first) * a.C + c;
#pragma unroll 4
    for (int r = row; r < count; r += kRows) {
      const Pack p = Pack::load(x + static_cast<std::int64_t>(r) * a.C);
#pragma unroll
      for (int j = 0; j < lanes; ++j) values[j] = join<kind>(values[j], p[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < lanes; ++j) parts[row][pack * lanes + j] = values[j];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x),
            to = static_cast<int>(blockIdx.y) * kPacks * lanes + column;
  if (column >= kPacks * lanes || to >= a.C) return;
  float total = neutral;
  const int used = min(count, kRows);
  for (int r = 0; r < used; ++r) total = join<kind>(total, parts[r][column]);
  if (kind == Pooling::mean) total /= static_cast<float>(count);
  if (kind == Pooling::mean_sqrt) total /= sqrtf(static_cast<float>(count));
  a.out[static_cast<std::int64_t>(s) * a.C + to] = gpu::from_float<TOut>(count == 0 ? 0.0f : total);
}

template <class TOut>
__global__ void __launch_bounds__(kThreads) normalize_rows(TOut* out, int S, int C) {
  const int s =
      static_cast<int>(blockIdx.x) * (kThreads / gpu::kWarp) + static_cast<int>(threadIdx.x) / gpu::kWarp;
  if (s >= S) return;
  TOut* row = out + static_cast<std::int64_t>(s) * C;
  float square = 0;
  for (int c = static_cast<int>(threadIdx.x) % gpu::kWarp; c < C; c += gpu::kWarp) {
    const float value = gpu::to_float(row[c]);
    square = fmaf(value, value, square);
  }
  const float norm = sqrtf(gpu::warp_sum(square));
  const float inverse = 1 / (norm < kLeastNorm ? kLeastNorm : norm);
  for (int c = static_cast<int>(threadIdx.x) % gpu::kWarp; c < C; c += gpu::kWarp) {
    row[c] = gpu::from_float<TOut>(gpu::to_float(row[c]) * inverse);
  }
}

template <Pooling kind, class T, class TOut>
void launch(const Context& context, const Arguments<T, TOut>& a) {
  constexpr int kLanes = gpu::kPackedLanes<T>;
  const bool packed = a.C % kLanes == 0 && gpu::aligned16(a.x);
  const int columns = kPacks * (packed ? kLanes : 1);
  const dim3 grid(static_cast<unsigned>(a.S), static_cast<unsigned>((a.C + columns - 1) / columns));
  const auto kernel = packed ? pool_columns<kind, kLanes, T, TOut> : pool_columns<kind, 1, T, TOut>;
  gpu::launch_overlapped(context, kernel, grid, kThreads, 0, "pooling.forward cuda.columns", a);
  if (!a.normalize) return;
  constexpr int kWarps = kThreads / gpu::kWarp;
  normalize_rows<<<static_cast<unsigned>((a.S + kWarps - 1) / kWarps), kThreads, 0, context.stream().get()>>>(
      a.out, a.S, a.C);
  warpwright::cuda::check_launch("pooling.forward cuda.columns");
}

template <class T, class TOut>
void run(const Context& context, const PoolingForward& args) {
  const Arguments<T, TOut> a{static_cast<const T*>(args.x.data),
                             static_cast<const std::int32_t*>(args.cu_seqlens.data),
                             static_cast<TOut*>(args.out.data),
                             static_cast<int>(args.x.shape[0]),
                             static_cast<int>(args.out.shape[0]),
                             static_cast<int>(args.out.shape[1]),
                             args.normalize};
  if (a.S == 0) return;
  switch (args.kind) {
    case Pooling::mean:
      return launch<Pooling::mean>(context, a);
    case Pooling::cls:
      return launch<Pooling::cls>(context, a);
    case Pooling::max:
      return launch<Pooling::max>(context, a);
    case Pooling::mean_sqrt:
      return launch<Pooling::mean_sqrt>(context, a);
  }
}

void columns_forward(const Context& context, const PoolingForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.out.dtype == DType::f32 ? run<T, float>(context, args) : run<T, T>(context, args);
  });
}

std::string packs(const PoolingProblem& p, const DeviceInfo&) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(p.dtype));
  return p.aligned && p.C % lanes == 0 ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::pooling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PoolingForward, "cuda.columns"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = kGpuDTypes,
                                                            .run = pooling::columns_forward,
                                                            .configuration = pooling::packs};

}  // namespace warpwright::ops
