// The residual connection on a GPU in its simplest form: each thread processes one element, and the loads are
// marked for early eviction from the caches. It is there to be read, and as a baseline for timings.
//   forward   3 passes over the tensor (a, b, out), 1 FLOP per element
//   backward  5 passes (dout once, da and db twice each), 2 FLOP per element
#include "ops/cuda/vector.cuh"
#include "ops/residual/residual.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ float read(const T* p) {
  return gpu::to_float(__ldcs(p));
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward(const T* a, const T* b, T* out, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elements) out[i] = gpu::from_float<T>(read(a + i) + read(b + i));
}

template <class T>
__global__ void __launch_bounds__(kThreads) backward(const T* dout, T* da, T* db, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  da[i] = gpu::from_float<T>(read(da + i) + read(dout + i));
  db[i] = gpu::from_float<T>(read(db + i) + read(dout + i));
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

void run_forward(const Context& context, const ResidualForward& args) {
  const std::int64_t elements = args.out.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward<<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(args.a.data), static_cast<const T*>(args.b.data),
        static_cast<T*>(args.out.data), elements);
  });
  warpwright::cuda::check_launch("residual.forward cuda.plain");
}

void run_backward(const Context& context, const ResidualBackward& args) {
  const std::int64_t elements = args.dout.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(args.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward<<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(args.dout.data), static_cast<T*>(args.da.data), static_cast<T*>(args.db.data),
        elements);
  });
  warpwright::cuda::check_launch("residual.backward cuda.plain");
}

}  // namespace

WARPWRIGHT_KERNEL(ResidualForward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = run_forward};
WARPWRIGHT_KERNEL(ResidualBackward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = run_backward};

}  // namespace warpwright::ops
