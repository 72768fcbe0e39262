// Layer normalization backward with dweight and dbias gathered in shared memory. A block takes as many rows
// at a time as it has warps:
//   1. each warp takes the two means of its row,
//   2. each thread goes down its columns over these rows, in order: dx, and its columns' sums of dweight and
//      dbias, which no other thread touches, so that nothing has to be added atomically.
// Reads dout and x twice, the second time from the caches. Any row length that fits in shared memory, any
// alignment.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/layernorm/cuda/column_sums.cuh"

namespace warpwright::ops::layernorm::cuda {
namespace {

constexpr int kThreads = kSharedPartialsRows * gpu::kWarp;

struct Row {
  float mean, rstd, mean_g, mean_gx;
};

template <class T>
struct Arguments {
  const T *dout, *x, *weight;
  const float *mean, *rstd;
  T* dx;
  float* parts;  // (blocks, 2, C)
  std::int64_t N, C;
  bool add_dx;
};

template <class T>
__device__ Row row_of(const Arguments<T>& a, std::int64_t row) {
  const T *dout = a.dout + row * a.C, *x = a.x + row * a.C;
  const float m = a.mean[row], r = a.rstd[row];
  float sum_g = 0, sum_gx = 0;
  for (std::int64_t c = threadIdx.x % gpu::kWarp; c < a.C; c += gpu::kWarp) {
    const float g = gpu::to_float(dout[c]) * gpu::to_float(a.weight[c]);
    sum_g += g;
    sum_gx += g * (gpu::to_float(x[c]) - m) * r;
  }
  const auto C = static_cast<float>(a.C);
  return {m, r, gpu::warp_sum(sum_g) / C, gpu::warp_sum(sum_gx) / C};
}

template <class T>
__global__ void __launch_bounds__(kThreads) backward_shared(Arguments<T> a) {
  __shared__ Row rows[kSharedPartialsRows];
  extern __shared__ float dweight[];  // (2, C)
  float* dbias = dweight + a.C;
  for (std::int64_t c = threadIdx.x; c < a.C; c += kThreads) dweight[c] = dbias[c] = 0;

  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kSharedPartialsRows;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSharedPartialsRows; first < a.N;
       first += stride) {
    const int count = a.N - first < kSharedPartialsRows ? static_cast<int>(a.N - first) : kSharedPartialsRows;
    const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
    if (warp < count) {
      const Row row = row_of(a, first + warp);
      if (threadIdx.x % gpu::kWarp == 0) rows[warp] = row;
    }
    __syncthreads();
    for (std::int64_t c = threadIdx.x; c < a.C; c += kThreads) {
      const float weight = gpu::to_float(a.weight[c]);
      float dw = dweight[c], db = dbias[c];
      for (int i = 0; i < count; ++i) {
        const std::int64_t at = (first + i) * a.C + c;
        const float d = gpu::to_float(a.dout[at]);
        const float normalized = (gpu::to_float(a.x[at]) - rows[i].mean) * rows[i].rstd;
        dw = fmaf(d, normalized, dw);
        db += d;
        float gradient = rows[i].rstd * (d * weight - rows[i].mean_g - normalized * rows[i].mean_gx);
        if (a.add_dx) gradient += gpu::to_float(a.dx[at]);
        a.dx[at] = gpu::from_float<T>(gradient);
      }
      dweight[c] = dw;
      dbias[c] = db;
    }
    __syncthreads();
  }
  float* part = a.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * a.C;
  for (std::int64_t c = threadIdx.x; c < a.C; c += kThreads) {
    part[c] = dweight[c];
    part[a.C + c] = dbias[c];
  }
}

}  // namespace

void shared_partials_backward(const Context& context, const NormBackward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  const int blocks = shared_partials_parts(N, context.device());
  auto* parts = static_cast<float*>(context.scratch());
  const cudaStream_t stream = context.stream().get();
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (blocks == 0) return;
    const Arguments<T> a{static_cast<const T*>(args.dout.data),
                         static_cast<const T*>(args.x.data),
                         static_cast<const T*>(args.weight.data),
                         static_cast<const float*>(args.mean.data),
                         static_cast<const float*>(args.rstd.data),
                         static_cast<T*>(args.dx.data),
                         parts,
                         N,
                         C,
                         args.dx_store == Store::add};
    const std::size_t shared = shared_partials_bytes(C);
    gpu::allow_shared(backward_shared<T>, shared);
    backward_shared<<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(a);
    warpwright::cuda::check_launch("layernorm.backward cuda.shared_partials");
  });
  add_column_sums(parts, blocks, args, stream);
}

}  // namespace warpwright::ops::layernorm::cuda
