// The residual connection on a GPU; each thread processes 16 bytes of each tensor. Memory-bound.
//   forward   3 passes over the tensor (a, b, out), 1 FLOP per element
//   backward  5 passes (dout once, da and db twice each), 2 FLOP per element
#include "ops/cuda/elementwise.cuh"
#include "ops/residual/residual.hpp"

namespace warpwright::ops {
namespace {

template <class T>
struct Forward {
  const T *a, *b;
  T* out;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const auto pa = gpu::Packed<T, N>::load_streaming(a + i), pb = gpu::Packed<T, N>::load_streaming(b + i);
    float sum[N];
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = pa[j] + pb[j];
    gpu::Packed<T, N>::from_floats(sum).store(out + i);
  }
};

template <class T>
struct Backward {
  const T* dout;
  T *da, *db;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const auto d = gpu::Packed<T, N>::load_streaming(dout + i);
    const auto pa = gpu::Packed<T, N>::load_streaming(da + i), pb = gpu::Packed<T, N>::load_streaming(db + i);
    float sum_a[N], sum_b[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum_a[j] = pa[j] + d[j];
      sum_b[j] = pb[j] + d[j];
    }
    gpu::Packed<T, N>::from_floats(sum_a).store(da + i);
    gpu::Packed<T, N>::from_floats(sum_b).store(db + i);
  }
};

std::string packs(const ResidualProblem& p, const DeviceInfo&) {
  return p.aligned ? "16 bytes" : "elements";
}

void run_forward(const Context& context, const ResidualForward& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Forward<T> f{static_cast<const T*>(args.a.data), static_cast<const T*>(args.b.data),
                       static_cast<T*>(args.out.data)};
    gpu::for_each_element<T>(args.out.elements(), gpu::aligned16(f.a, f.b, f.out), f, context.stream().get(),
                             "residual.forward cuda.packed");
  });
}

void run_backward(const Context& context, const ResidualBackward& args) {
  gpu::visit_gpu_dtype(args.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Backward<T> f{static_cast<const T*>(args.dout.data), static_cast<T*>(args.da.data),
                        static_cast<T*>(args.db.data)};
    gpu::for_each_element<T>(args.dout.elements(), gpu::aligned16(f.dout, f.da, f.db), f,
                             context.stream().get(), "residual.backward cuda.packed");
  });
}

}  // namespace

WARPWRIGHT_KERNEL(ResidualForward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = run_forward, .configuration = packs};
WARPWRIGHT_KERNEL(ResidualBackward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = run_backward, .configuration = packs};

}  // namespace warpwright::ops
