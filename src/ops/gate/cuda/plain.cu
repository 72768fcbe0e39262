// The gated activation on a GPU in its simplest form: each thread processes one element, in blocks of 128
// threads. It is there to be read, and as a baseline for timings.
//   forward   3 passes over (N, F): gate, up, out
//   backward  5 passes: dout, gate, up, dgate, dup; 6 with out
#include "ops/cuda/vector.cuh"
#include "ops/gate/cuda/curve.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::gate {
namespace {

constexpr int kThreads = 128;

template <GateActivation activation, class T>
__global__ void __launch_bounds__(kThreads)
    forward(const T* gate_up, T* out, std::int64_t elements, std::int64_t columns) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t gate = i + i / columns * columns, up = gate + columns;
  const float value = act<activation, float>(gpu::to_float(gate_up[gate]));
  out[i] = gpu::from_float<T>(value * gpu::to_float(gate_up[up]));
}

template <GateActivation activation, class T>
__global__ void __launch_bounds__(kThreads) backward(const T* dout, const T* gate_up, T* dgate_up, T* out,
                                                     std::int64_t elements, std::int64_t columns) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t gate = i + i / columns * columns, up = gate + columns;
  const float d = gpu::to_float(dout[i]), u = gpu::to_float(gate_up[up]);
  const float g = gpu::to_float(gate_up[gate]);
  const Curve at = curve<activation>(g);
  if (out) out[i] = gpu::from_float<T>(act<activation, float>(g) * u);
  dgate_up[gate] = gpu::from_float<T>(d * u * at.slope);
  dgate_up[up] = gpu::from_float<T>(d * at.value);
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

void plain_forward(const Context& context, const GateForward& a) {
  const std::int64_t elements = a.out.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(a.out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(a.activation, [&](auto activation) {
      forward<decltype(activation)::value, T><<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
          static_cast<const T*>(a.gate_up.data), static_cast<T*>(a.out.data), elements, a.out.shape[1]);
    });
  });
  warpwright::cuda::check_launch("gate.forward cuda.plain");
}

void plain_backward(const Context& context, const GateBackward& a) {
  const std::int64_t elements = a.dout.elements();
  if (elements == 0) return;
  gpu::visit_gpu_dtype(a.dout.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(a.activation, [&](auto activation) {
      backward<decltype(activation)::value, T><<<blocks_for(elements), kThreads, 0, context.stream().get()>>>(
          static_cast<const T*>(a.dout.data), static_cast<const T*>(a.gate_up.data),
          static_cast<T*>(a.dgate_up.data), static_cast<T*>(a.out.data), elements, a.dout.shape[1]);
    });
  });
  warpwright::cuda::check_launch("gate.backward cuda.plain");
}

}  // namespace
}  // namespace warpwright::ops::gate

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GateForward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gate::plain_forward};
WARPWRIGHT_KERNEL(GateBackward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gate::plain_backward};

}  // namespace warpwright::ops
