// GELU on a CPU.
//   forward   2 passes over the tensor (x, out), ~25 FLOP and a division per element
//   backward  3 passes (dout, x, dx), ~35 FLOP and a division per element
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/gelu.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/gelu/gelu.hpp"

namespace warpwright::ops::gelu {
namespace {

using namespace simd;

template <Activation activation, class T>
void run_forward(const GeluForward& a, int threads) {
  const T* x = static_cast<const T*>(a.x.data);
  T* out = static_cast<T*>(a.out.data);
  for_each_vector_parallel(a.x.elements(), threads, [=](std::int64_t i, int n) {
    store_lanes(out + i, activate<activation>(load_lanes(x + i, n)), n);
  });
}

template <Activation activation, class T>
void run_backward(const GeluBackward& a, int threads) {
  const T* dout = static_cast<const T*>(a.dout.data);
  const T* x = static_cast<const T*>(a.x.data);
  T* dx = static_cast<T*>(a.dx.data);
  for_each_vector_parallel(a.x.elements(), threads, [=](std::int64_t i, int n) {
    const vec slope = activation_derivative<activation>(load_lanes(x + i, n));
    store_lanes(dx + i, load_lanes(dout + i, n) * slope, n);
  });
}

template <class T>
void forward_as(const GeluForward& a, int threads) {
  a.activation == Activation::gelu_tanh ? run_forward<Activation::gelu_tanh, T>(a, threads)
                                        : run_forward<Activation::gelu_erf, T>(a, threads);
}

template <class T>
void backward_as(const GeluBackward& a, int threads) {
  a.activation == Activation::gelu_tanh ? run_backward<Activation::gelu_tanh, T>(a, threads)
                                        : run_backward<Activation::gelu_erf, T>(a, threads);
}

void forward(const Context& context, const GeluForward& args) {
  args.x.dtype == DType::f32 ? forward_as<float>(args, context.threads())
                             : forward_as<bf16>(args, context.threads());
}

void backward(const Context& context, const GeluBackward& args) {
  args.x.dtype == DType::f32 ? backward_as<float>(args, context.threads())
                             : backward_as<bf16>(args, context.threads());
}

}  // namespace
}  // namespace warpwright::ops::gelu

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GeluForward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = gelu::forward};
WARPWRIGHT_KERNEL(GeluBackward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = gelu::backward};

}  // namespace warpwright::ops
