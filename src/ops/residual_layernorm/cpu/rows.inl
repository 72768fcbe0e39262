// The residual connection and layer normalization on a CPU, a row at a time; avx2.cpp and avx512.cpp compile
// this body for their registers. Memory-bound: 4 passes of the tensor (x, y, residual, out), ~9 FLOP an
// element; the row's own second and third reading come from L1.
#include "ops/cpu/layernorm.hpp"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops::residual_layernorm::WARPWRIGHT_ISA {
namespace {

using namespace simd;

template <class T>
struct Rows {
  const T *x, *y, *weight, *bias;
  T *residual, *out;
  float *mean, *rstd;
  std::int64_t N, C;
  float eps;
};

template <class T>
void forward_rows(const Rows<T>& a, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t row = 0; row < a.N; ++row) {
    const std::int64_t first = row * a.C;
    T* residual = a.residual + first;
    for_each_vector(first, first + a.C, [&](std::int64_t i, int n) {
      store_lanes(a.residual + i, load_lanes(a.x + i, n) + load_lanes(a.y + i, n), n);
    });
    const RowStatistics s = statistics(residual, a.C, a.eps);
    normalize(residual, s, a.weight, a.bias, a.out + first, a.C);
    if (a.mean) a.mean[row] = s.mean;
    if (a.rstd) a.rstd[row] = s.rstd;
  }
}

template <class T>
void run(const Context& context, const ResidualLayerNormForward& a) {
  const Rows<T> rows{static_cast<const T*>(a.x.data),
                     static_cast<const T*>(a.y.data),
                     static_cast<const T*>(a.weight.data),
                     static_cast<const T*>(a.bias.data),
                     static_cast<T*>(a.residual.data),
                     static_cast<T*>(a.out.data),
                     static_cast<float*>(a.mean.data),
                     static_cast<float*>(a.rstd.data),
                     a.x.shape[0],
                     a.x.shape[1],
                     a.eps};
  forward_rows(rows, context.threads());
}

}  // namespace

void forward(const Context& context, const ResidualLayerNormForward& args) {
  args.x.dtype == DType::f32 ? run<float>(context, args) : run<bf16>(context, args);
}

}  // namespace warpwright::ops::residual_layernorm::WARPWRIGHT_ISA
