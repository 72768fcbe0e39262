// GELU on a GPU; each thread processes 16 bytes of each tensor. It is memory-bound, but only just: in bf16, a
// multiprocessor of an H200 can issue about 26 instructions per element while the forward's bytes are moved.
//   forward   2 passes over the tensor (x, out)
//   backward  3 passes (dout, x, dx)
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gelu.cuh"
#include "ops/gelu/gelu.hpp"

namespace warpwright::ops::gelu {
namespace {

template <Activation activation, class T>
struct Forward {
  const T* x;
  T* out;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const auto px = gpu::Packed<T, N>::load_streaming(x + i);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = gpu::activate_stored_as<activation, T>(px[j]);
    gpu::Packed<T, N>::from_floats(values).store(out + i);
  }
};

template <Activation activation, class T>
struct Backward {
  const T *dout, *x;
  T* dx;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const auto d = gpu::Packed<T, N>::load_streaming(dout + i), px = gpu::Packed<T, N>::load_streaming(x + i);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = d[j] * gpu::activation_derivative<activation>(px[j]);
    gpu::Packed<T, N>::from_floats(values).store(dx + i);
  }
};

template <Activation activation, class T>
void run_forward(const Context& context, const GeluForward& a) {
  const Forward<activation, T> f{static_cast<const T*>(a.x.data), static_cast<T*>(a.out.data)};
  gpu::for_each_element<T>(a.x.elements(), gpu::aligned16(f.x, f.out), f, context.stream().get(),
                           "gelu.forward cuda.packed");
}

template <Activation activation, class T>
void run_backward(const Context& context, const GeluBackward& a) {
  const Backward<activation, T> f{static_cast<const T*>(a.dout.data), static_cast<const T*>(a.x.data),
                                  static_cast<T*>(a.dx.data)};
  gpu::for_each_element<T>(a.x.elements(), gpu::aligned16(f.dout, f.x, f.dx), f, context.stream().get(),
                           "gelu.backward cuda.packed");
}

void packed_forward(const Context& context, const GeluForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.activation == Activation::gelu_tanh ? run_forward<Activation::gelu_tanh, T>(context, args)
                                             : run_forward<Activation::gelu_erf, T>(context, args);
  });
}

void packed_backward(const Context& context, const GeluBackward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.activation == Activation::gelu_tanh ? run_backward<Activation::gelu_tanh, T>(context, args)
                                             : run_backward<Activation::gelu_erf, T>(context, args);
  });
}

std::string packs(const GeluProblem& p, const DeviceInfo&) {
  return p.aligned ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::gelu

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GeluForward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gelu::packed_forward, .configuration = gelu::packs};
WARPWRIGHT_KERNEL(GeluBackward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gelu::packed_backward, .configuration = gelu::packs};

}  // namespace warpwright::ops
