// The gated activation on a GPU; each thread processes 16 bytes of each half.
//   forward   3 passes over (N, F): gate, up, out
//   backward  5 passes: dout, gate, up, dgate, dup; 6 with out
// If F is a multiple of a pack's lanes, no pack crosses a row and both halves of every row begin at packs.
// Otherwise each thread processes one element.
#include "ops/cuda/elementwise.cuh"
#include "ops/gate/cuda/curve.cuh"

namespace warpwright::ops::gate {
namespace {

template <GateActivation activation, class T>
struct Forward {
  const T* gate_up;
  T* out;
  std::int64_t columns;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const T* gate = gate_up + i + row_of(i, columns) * columns;
    const auto g = gpu::Packed<T, N>::load_streaming(gate);
    const auto u = gpu::Packed<T, N>::load_streaming(gate + columns);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = act<activation, T>(g[j]) * u[j];
    gpu::Packed<T, N>::from_floats(values).store(out + i);
  }
};

template <GateActivation activation, class T>
struct Backward {
  const T *dout, *gate_up;
  T *dgate_up, *out;
  std::int64_t columns;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t gate = i + row_of(i, columns) * columns;
    const auto d = gpu::Packed<T, N>::load_streaming(dout + i);
    const auto g = gpu::Packed<T, N>::load_streaming(gate_up + gate);
    const auto u = gpu::Packed<T, N>::load_streaming(gate_up + gate + columns);
    float dgate[N], dup[N], values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Curve at = curve<activation>(g[j]);
      dgate[j] = d[j] * u[j] * at.slope;
      dup[j] = d[j] * at.value;
      if (out) values[j] = act<activation, T>(g[j]) * u[j];
    }
    gpu::Packed<T, N>::from_floats(dgate).store(dgate_up + gate);
    gpu::Packed<T, N>::from_floats(dup).store(dgate_up + gate + columns);
    if (out) gpu::Packed<T, N>::from_floats(values).store(out + i);
  }
};

bool in_packs(const GateProblem& p) {
  return p.aligned && p.columns % static_cast<std::int64_t>(16 / size_of(p.dtype)) == 0;
}

void packed_forward(const Context& context, const GateForward& a) {
  const bool packs = in_packs(a.problem());
  gpu::visit_gpu_dtype(a.out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(a.activation, [&](auto activation) {
      const Forward<decltype(activation)::value, T> f{static_cast<const T*>(a.gate_up.data),
                                                      static_cast<T*>(a.out.data), a.out.shape[1]};
      gpu::for_each_element<T>(a.out.elements(), packs, f, context.stream().get(),
                               "gate.forward cuda.packed");
    });
  });
}

void packed_backward(const Context& context, const GateBackward& a) {
  const bool packs = in_packs(a.problem());
  gpu::visit_gpu_dtype(a.dout.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(a.activation, [&](auto activation) {
      const Backward<decltype(activation)::value, T> f{
          static_cast<const T*>(a.dout.data), static_cast<const T*>(a.gate_up.data),
          static_cast<T*>(a.dgate_up.data), static_cast<T*>(a.out.data), a.dout.shape[1]};
      gpu::for_each_element<T>(a.dout.elements(), packs, f, context.stream().get(),
                               "gate.backward cuda.packed");
    });
  });
}

std::string packs(const GateProblem& p, const DeviceInfo&) {
  return in_packs(p) ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::gate

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GateForward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gate::packed_forward, .configuration = gate::packs};
WARPWRIGHT_KERNEL(GateBackward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = gate::packed_backward, .configuration = gate::packs};

}  // namespace warpwright::ops
