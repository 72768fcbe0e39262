// The gated activation on a CPU.
//   forward   3 passes over (N, F): gate, up, out
//   backward  5 passes: dout, gate, up, dgate, dup; 6 with out
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/gelu.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/gate/gate.hpp"

namespace warpwright::ops::gate {
namespace {

using namespace simd;

constexpr std::int64_t kColumns = 4096;  // of a row in a block, a multiple of every vector's length

template <GateActivation activation>
vec act(vec x) {
  if constexpr (activation == GateActivation::gelu_tanh) return gelu_tanh(x);
  if constexpr (activation == GateActivation::gelu_erf) return gelu_erf(x);
  return x / (set1(1.0f) + exp(zero() - x));
}

struct Curve {
  vec value, slope;  // act(x) and act'(x)
};

// silu' is σ(x) + x·σ(x)·σ(−x). With e = e^−|x|, the smaller of σ(x) and σ(−x) is e / (1 + e). x is bounded
// where the slope is 0 or 1 in fp32, so that 0 meets no infinity.
template <GateActivation activation>
Curve curve(vec x) {
  if constexpr (activation == GateActivation::gelu_tanh) return {gelu_tanh(x), gelu_tanh_derivative(x)};
  if constexpr (activation == GateActivation::gelu_erf) return {gelu_erf(x), gelu_erf_derivative(x)};
  const vec c = clamp(x, kSiluBound);
  const vec e = exp(zero() - abs(c));
  const vec large = set1(1.0f) / (set1(1.0f) + e), small = e * large;
  const vec sigmoid = select_less(x, zero(), small, large);
  return {x * sigmoid, fma(c, large * small, sigmoid)};
}

// Calls f(row, column, n) for each vector of the matrix (rows, columns): n columns from `column` on.
template <class F>
void for_each_vector_of_rows(std::int64_t rows, std::int64_t columns, int threads, const F& f) {
  const std::int64_t blocks = (columns + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t task = 0; task < rows * blocks; ++task) {
    const F local = f;  // keeps the captures in registers
    const std::int64_t row = task / blocks, begin = task % blocks * kColumns;
    const std::int64_t end = columns - begin < kColumns ? columns : begin + kColumns;
    for_each_vector(begin, end, [&](std::int64_t column, int n) { local(row, column, n); });
  }
}

template <GateActivation activation, class T>
void run_forward(const GateForward& a, int threads) {
  const T* gate_up = static_cast<const T*>(a.gate_up.data);
  T* out = static_cast<T*>(a.out.data);
  const std::int64_t columns = a.out.shape[1];
  for_each_vector_of_rows(a.out.shape[0], columns, threads, [=](std::int64_t row, std::int64_t i, int n) {
    const T* gate = gate_up + row * 2 * columns + i;
    const vec value = act<activation>(load_lanes(gate, n));
    store_lanes(out + row * columns + i, value * load_lanes(gate + columns, n), n);
  });
}

template <GateActivation activation, class T>
void run_backward(const GateBackward& a, int threads) {
  const T* dout = static_cast<const T*>(a.dout.data);
  const T* gate_up = static_cast<const T*>(a.gate_up.data);
  T *dgate_up = static_cast<T*>(a.dgate_up.data), *out = static_cast<T*>(a.out.data);
  const std::int64_t columns = a.dout.shape[1];
  for_each_vector_of_rows(a.dout.shape[0], columns, threads, [=](std::int64_t row, std::int64_t i, int n) {
    const std::int64_t gate = row * 2 * columns + i, up = gate + columns;
    const vec d = load_lanes(dout + row * columns + i, n), u = load_lanes(gate_up + up, n);
    const vec g = load_lanes(gate_up + gate, n);
    const Curve at = curve<activation>(g);
    if (out) store_lanes(out + row * columns + i, act<activation>(g) * u, n);
    store_lanes(dgate_up + gate, d * u * at.slope, n);
    store_lanes(dgate_up + up, d * at.value, n);
  });
}

void forward(const Context& context, const GateForward& args) {
  visit_activation(args.activation, [&](auto activation) {
    args.out.dtype == DType::f32 ? run_forward<decltype(activation)::value, float>(args, context.threads())
                                 : run_forward<decltype(activation)::value, bf16>(args, context.threads());
  });
}

void backward(const Context& context, const GateBackward& args) {
  visit_activation(args.activation, [&](auto activation) {
    args.dout.dtype == DType::f32 ? run_backward<decltype(activation)::value, float>(args, context.threads())
                                  : run_backward<decltype(activation)::value, bf16>(args, context.threads());
  });
}

}  // namespace
}  // namespace warpwright::ops::gate

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GateForward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = gate::forward};
WARPWRIGHT_KERNEL(GateBackward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = gate::backward};

}  // namespace warpwright::ops
