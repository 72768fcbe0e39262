// Layer normalization on a CPU, a row at a time; avx2.cpp and avx512.cpp compile this body for their
// registers. Memory-bound: a row is read from memory once and again from L1 (C ≤ 8,192 in fp32).
//   forward   2 passes of the tensor (x, out), ~8 FLOP an element
//   backward  3 passes (dout, x, dx; 4 where dx is +=), ~12 FLOP an element
#include "ops/cpu/layernorm.hpp"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm::WARPWRIGHT_ISA {
namespace {

using namespace simd;

template <class T>
void forward_rows(const T* x, const T* weight, const T* bias, T* out, float* mean, float* rstd,
                  std::int64_t N, std::int64_t C, float eps, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t row = 0; row < N; ++row) {
    const RowStatistics s = statistics(x + row * C, C, eps);
    normalize(x + row * C, s, weight, bias, out + row * C, C);
    if (mean) mean[row] = s.mean;
    if (rstd) rstd[row] = s.rstd;
  }
}

template <class T>
struct Backward {
  const T *dout, *x, *weight;
  const float *mean, *rstd;
  T* dx;
  std::int64_t C;
  bool add_dx;
};

// One row: dx, and its share of dweight and dbias added to the part's partial sums.
template <class T>
inline void backward_row(const Backward<T>& b, std::int64_t row, float* dweight, float* dbias) {
  const T* dout = b.dout + row * b.C;
  const T* x = b.x + row * b.C;
  T* dx = b.dx + row * b.C;
  const vec m = set1(b.mean[row]), r = set1(b.rstd[row]);
  const vec inverse_C = set1(1.0f / static_cast<float>(b.C));
  const vec mean_g = inverse_C * set1(sum_row(b.C, [&](std::int64_t c, int n) {
                       return load_lanes(dout + c, n) * load_lanes(b.weight + c, n);
                     }));
  const vec mean_gx = inverse_C * set1(sum_row(b.C, [&](std::int64_t c, int n) {
                        const vec normalized = (load_lanes(x + c, n) - m) * r;
                        return load_lanes(dout + c, n) * load_lanes(b.weight + c, n) * normalized;
                      }));
  for (std::int64_t c = 0; c < b.C; c += kLanes) {
    const int n = b.C - c < kLanes ? static_cast<int>(b.C - c) : kLanes;
    const vec d = load_lanes(dout + c, n);
    const vec normalized = (load_lanes(x + c, n) - m) * r;
    store_lanes(dweight + c, fma(d, normalized, load_lanes(dweight + c, n)), n);
    store_lanes(dbias + c, load_lanes(dbias + c, n) + d, n);
    const vec centered = fnma(normalized, mean_gx, d * load_lanes(b.weight + c, n) - mean_g);
    const vec gradient = centered * r;
    store_lanes(dx + c, b.add_dx ? load_lanes(dx + c, n) + gradient : gradient, n);
  }
}

// partials: (parts, 2, C): dweight and dbias of each part.
template <class T>
void backward_rows(const Backward<T>& b, std::int64_t N, std::int64_t parts, float* partials, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) {
    float* dweight = partials + part * 2 * b.C;
    for (std::int64_t c = 0; c < 2 * b.C; ++c) dweight[c] = 0;
    for (std::int64_t row = part * N / parts; row < (part + 1) * N / parts; ++row) {
      backward_row(b, row, dweight, dweight + b.C);
    }
  }
}

void reduce_parts(const float* partials, std::int64_t parts, std::int64_t C, float* gradient, bool add) {
  for (std::int64_t c = 0; c < C; c += kLanes) {
    const int n = C - c < kLanes ? static_cast<int>(C - c) : kLanes;
    vec total = zero();
    for (std::int64_t part = 0; part < parts; ++part) total += load_lanes(partials + part * 2 * C + c, n);
    store_lanes(gradient + c, add ? load_lanes(gradient + c, n) + total : total, n);
  }
}

template <class T>
void run_forward(const Context& context, const LayerNormForward& a) {
  forward_rows(static_cast<const T*>(a.x.data), static_cast<const T*>(a.weight.data),
               static_cast<const T*>(a.bias.data), static_cast<T*>(a.out.data),
               static_cast<float*>(a.mean.data), static_cast<float*>(a.rstd.data), a.x.shape[0], a.x.shape[1],
               a.eps, context.threads());
}

template <class T>
void run_backward(const Context& context, const LayerNormBackward& a) {
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1], parts = backward_parts(N);
  const Backward<T> b{static_cast<const T*>(a.dout.data),
                      static_cast<const T*>(a.x.data),
                      static_cast<const T*>(a.weight.data),
                      static_cast<const float*>(a.mean.data),
                      static_cast<const float*>(a.rstd.data),
                      static_cast<T*>(a.dx.data),
                      C,
                      a.dx_store == Store::add};
  auto* partials = static_cast<float*>(context.scratch());
  backward_rows(b, N, parts, partials, context.threads());
  const bool add = a.dparameters_store == Store::add;
  reduce_parts(partials, parts, C, static_cast<float*>(a.dweight.data), add);
  reduce_parts(partials + C, parts, C, static_cast<float*>(a.dbias.data), add);
}

}  // namespace

void forward(const Context& context, const LayerNormForward& args) {
  args.x.dtype == DType::f32 ? run_forward<float>(context, args) : run_forward<bf16>(context, args);
}

void backward(const Context& context, const LayerNormBackward& args) {
  args.x.dtype == DType::f32 ? run_backward<float>(context, args) : run_backward<bf16>(context, args);
}

}  // namespace warpwright::ops::layernorm::WARPWRIGHT_ISA
