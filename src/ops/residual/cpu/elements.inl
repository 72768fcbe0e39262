// The residual connection on a CPU. Memory-bound.
//   forward   3 passes over the tensor (a, b, out), 1 FLOP per element
//   backward  5 passes (dout once, da and db twice each), 2 FLOP per element
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/residual/residual.hpp"

namespace warpwright::ops {
namespace {

using namespace simd;

template <class T>
void run_forward(const ResidualForward& args, int threads) {
  const T* a = static_cast<const T*>(args.a.data);
  const T* b = static_cast<const T*>(args.b.data);
  T* out = static_cast<T*>(args.out.data);
  for_each_vector_parallel(args.out.elements(), threads, [=](std::int64_t i, int n) {
    store_lanes(out + i, load_lanes(a + i, n) + load_lanes(b + i, n), n);
  });
}

template <class T>
void run_backward(const ResidualBackward& args, int threads) {
  const T* dout = static_cast<const T*>(args.dout.data);
  T* da = static_cast<T*>(args.da.data);
  T* db = static_cast<T*>(args.db.data);
  for_each_vector_parallel(args.dout.elements(), threads, [=](std::int64_t i, int n) {
    const vec d = load_lanes(dout + i, n);
    store_lanes(da + i, load_lanes(da + i, n) + d, n);
    store_lanes(db + i, load_lanes(db + i, n) + d, n);
  });
}

void forward(const Context& context, const ResidualForward& args) {
  args.out.dtype == DType::f32 ? run_forward<float>(args, context.threads())
                               : run_forward<bf16>(args, context.threads());
}

void backward(const Context& context, const ResidualBackward& args) {
  args.dout.dtype == DType::f32 ? run_backward<float>(args, context.threads())
                                : run_backward<bf16>(args, context.threads());
}

}  // namespace

WARPWRIGHT_KERNEL(ResidualForward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = forward};
WARPWRIGHT_KERNEL(ResidualBackward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = backward};

}  // namespace warpwright::ops
