// GELU on a GPU in its simplest form: each thread processes one element, in blocks of 128 threads. It is
// there to be read, and as a baseline for timings.
//   forward   2 passes over the tensor (x, out)
//   backward  3 passes (dout, x, dx)
// The functions are those of ops/cuda/gelu.cuh. The textbook forms fail in the tails: 1 + tanh(u) cancels if
// x is far below 0, and 1/cosh²(u) times an infinite x² is NaN.
#include "ops/cuda/gelu.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gelu/gelu.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::gelu {
namespace {

constexpr int kThreads = 128;

template <Activation activation, class T>
__global__ void __launch_bounds__(kThreads) forward(const T* x, T* out, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elements) out[i] = gpu::from_float<T>(gpu::activate<activation>(gpu::to_float(x[i])));
}

template <Activation activation, class T>
__global__ void __launch_bounds__(kThreads)
    backward(const T* dout, const T* x, T* dx, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const float slope = gpu::activation_derivative<activation>(gpu::to_float(x[i]));
  dx[i] = gpu::from_float<T>(gpu::to_float(dout[i]) * slope);
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

void plain_forward(const Context& context, const GeluForward& args) {
  const std::int64_t elements = args.x.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool tanh = args.activation == Activation::gelu_tanh;
    const auto kernel = tanh ? forward<Activation::gelu_tanh, T> : forward<Activation::gelu_erf, T>;
    kernel<<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(args.x.data), static_cast<T*>(args.out.data), elements);
  });
  warpwright::cuda::check_launch("gelu.forward cuda.plain");
}

void plain_backward(const Context& context, const GeluBackward& args) {
  const std::int64_t elements = args.x.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool tanh = args.activation == Activation::gelu_tanh;
    const auto kernel = tanh ? backward<Activation::gelu_tanh, T> : backward<Activation::gelu_erf, T>;
    kernel<<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(args.dout.data), static_cast<const T*>(args.x.data),
        static_cast<T*>(args.dx.data), elements);
  });
  warpwright::cuda::check_launch("gelu.backward cuda.plain");
}

}  // namespace
}  // namespace warpwright::ops::gelu

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GeluForward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gelu::plain_forward};
WARPWRIGHT_KERNEL(GeluBackward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gelu::plain_backward};

}  // namespace warpwright::ops
