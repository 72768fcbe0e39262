// Normalization on a CPU, a row at a time; avx2.cpp and avx512.cpp compile this body for their registers.
// Memory-bound: a row is read from memory once and again from L1 (C ≤ 8,192 in fp32).
//   forward   2 passes of the tensor (x, out), ~8 FLOP an element
//   backward  3 passes (dout, x or out, dx; 4 where something is added), ~12 FLOP an element
#include "ops/cpu/layernorm.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/lost.hpp"

namespace warpwright::ops::layernorm::WARPWRIGHT_ISA {
namespace {

using namespace simd;

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct Rows {
  static void forward(const Context& context, const NormForward& a) {
    const X* x = data_of<const X>(a.x);
    const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
    O* out = data_of<O>(a.out);
    float *mean = data_of<float>(a.mean), *rstd = data_of<float>(a.rstd);
    const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
    const auto eps = static_cast<float>(a.eps);
    const bool centered = a.centered;
    const bool past_caches = goes_past_caches(out, N, C);
    const int threads = context.threads();
#pragma omp parallel num_threads(threads)
    {
// A thread's rows lie behind each other: of each the sums are taken while the one before is normalized.
#pragma omp for schedule(static, 1) nowait
      for (int part = 0; part < threads; ++part) {
        const std::int64_t end = N * (part + 1) / threads;
        RowSums sums{};
        for (std::int64_t row = N * part / threads, first = row; row < end; ++row) {
          const X *from = x + row * C, *next = row + 1 < end ? from + C : from;
          if (row == first) sums = row_sums(from, C, centered ? row_shift(from, C) : 0);
          const RowStatistics s = statistics(sums, from, C, eps, centered);
          sums = normalize_and_sum(from, s, weight, bias, RowOut<O>{out + row * C, past_caches}, C, next,
                                   centered);
          if (mean) mean[row] = s.mean;
          if (rstd) rstd[row] = s.rstd;
        }
      }
      fence();
    }
  }

  struct Backward {
    const O *dout, *out;
    const X *x, *dsum, *kept;
    const P *weight, *bias;
    const float *mean, *rstd;
    const float* inverse;         // beside out: 1/weight, NaN in lost columns
    const std::int32_t* columns;  // of kept, −1 behind the last
    std::int64_t C, K;
    X* dx;
    bool centered, add_dx, past_caches;

    vec weight_at(std::int64_t c, int n) const { return weight ? load_lanes(weight + c, n) : set1(1); }

    // Σg and Σ g·x̂ of a row, and its x̂; from the input.
    TwoSums normalize_x(std::int64_t row, float* x_hat) const {
      const O* d = dout + row * C;
      const X* from = x + row * C;
      const vec m = set1(centered ? mean[row] : 0), r = set1(rstd[row]);
      return sum_row_twice(C, [=, *this](std::int64_t c, int n, vec& sum_g, vec& sum_gx) {
        const vec normalized = (load_lanes(from + c, n) - m) * r, g = load_lanes(d + c, n) * weight_at(c, n);
        store_lanes(x_hat + c, normalized, n);
        sum_g += g;
        sum_gx = fma(g, normalized, sum_gx);
      });
    }
    // The same from the output. What a lost column adds to the sum is taken from x̂ where that is kept.
    TwoSums normalize_out(std::int64_t row, float* x_hat) const {
      const O *d = dout + row * C, *from = out + row * C;
      TwoSums sums = sum_row_twice(C, [=, *this](std::int64_t c, int n, vec& sum_g, vec& sum_gx) {
        const vec dy = load_lanes(d + c, n), y = load_lanes(from + c, n);
        const vec shifted = bias ? y - load_lanes(bias + c, n) : y;
        store_lanes(x_hat + c, shifted * load_lanes(inverse + c, n), n);
        sum_g = fma(dy, weight_at(c, n), sum_g);
        sum_gx = fma(dy, shifted, sum_gx);
      });
      for (std::int64_t k = 0; k < K && columns[k] >= 0; ++k) {
        const std::int32_t c = columns[k];
        const float y = to_float(from[c]), shifted = bias ? y - to_float(bias[c]) : y;
        const float w = weight ? to_float(weight[c]) : 1, m = centered ? mean[row] : 0;
        x_hat[c] = (to_float(kept[row * K + k]) - m) * rstd[row];
        sums.b += to_float(d[c]) * (w * x_hat[c] - shifted);
      }
      return sums;
    }

    // One row: dx, and its share of dweight and dbias added to the part's partial sums. The next row, if
    // there is one, comes from memory meanwhile.
    void run(std::int64_t row, bool last, float* dweight, float* dbias, float* x_hat) const {
      const O *d = dout + row * C, *next_d = last ? d : d + C;
      const RowOut<X> to{dx + row * C, past_caches};
      const X* from = add_dx ? to.row : dsum ? dsum + row * C : nullptr;
      const float inverse_C = 1.0f / static_cast<float>(C);
      const TwoSums sums = out ? normalize_out(row, x_hat) : normalize_x(row, x_hat);
      const vec mean_g = set1(centered ? inverse_C * sums.a : 0), mean_gx = set1(inverse_C * sums.b);
      const vec r = set1(rstd[row]);
      const std::int64_t next = (last ? row : row + 1) * C, size = out ? sizeof(O) : sizeof(X);
      const char* next_y =
          out ? reinterpret_cast<const char*>(out + next) : reinterpret_cast<const char*>(x + next);
      for_each_vector(0, C, [=, *this](std::int64_t c, int n) {
        prefetch(next_d + c);
        prefetch(next_y + c * size);
        const vec dy = load_lanes(d + c, n), normalized = load_lanes(x_hat + c, n);
        store_lanes(dweight + c, fma(dy, normalized, load_lanes(dweight + c, n)), n);
        store_lanes(dbias + c, load_lanes(dbias + c, n) + dy, n);
        const vec gradient = fnma(normalized, mean_gx, dy * weight_at(c, n) - mean_g) * r;
        to.put(c, from ? load_lanes(from + c, n) + gradient : gradient, n);
      });
    }
  };

  // 1/weight by column for the backward from the output.
  static void invert(const P* weight, const P* bias, DType out, std::int64_t C, float* inverse) {
    const auto lost = LostRule<float>::of(out);
    for (std::int64_t c = 0; c < C; ++c) {
      const float w = weight ? to_float(weight[c]) : 1, b = bias ? to_float(bias[c]) : 0;
      inverse[c] = lost(w, b) ? __builtin_nanf("") : 1 / w;
    }
  }

  static void backward(const Context& context, const NormBackward& a) {
    const std::int64_t N = a.dx.shape[0], C = a.dx.shape[1], parts = backward_parts(N);
    auto* scratch =
        static_cast<float*>(context.scratch());  // (parts, 3, C): dweight, dbias, x̂; then 1/weight
    float* inverse = scratch + parts * 3 * C;
    const Backward b{data_of<const O>(a.dout),
                     data_of<const O>(a.out),
                     data_of<const X>(a.x),
                     data_of<const X>(a.dsum),
                     data_of<const X>(a.kept),
                     data_of<const P>(a.weight),
                     data_of<const P>(a.bias),
                     data_of<const float>(a.mean),
                     data_of<const float>(a.rstd),
                     inverse,
                     a.kept_columns ? data_of<const std::int32_t>(a.kept_columns) + 1 : nullptr,
                     C,
                     a.kept_columns ? a.kept_columns.shape[0] - 1 : 0,
                     data_of<X>(a.dx),
                     a.centered,
                     a.dx_store == Store::add,
                     goes_past_caches(data_of<const X>(a.dx), N, C)};
    if (a.out) invert(b.weight, b.bias, a.out.dtype, C, inverse);
    const int threads = context.threads();
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
      for (std::int64_t part = 0; part < parts; ++part) {
        float *dweight = scratch + part * 3 * C, *dbias = dweight + C, *x_hat = dbias + C;
        for (std::int64_t c = 0; c < 2 * C; ++c) dweight[c] = 0;
        for (std::int64_t row = part * N / parts; row < (part + 1) * N / parts; ++row) {
          b.run(row, row + 1 == N, dweight, dbias, x_hat);
        }
      }
      fence();
    }
    const bool add = a.dparameters_store == Store::add;
    add_parts(scratch, parts, C, a.dweight, add);
    add_parts(scratch + C, parts, C, a.dbias, add);
  }

  template <class T>
  static void add_parts_as(const float* parts, std::int64_t count, std::int64_t C, T* gradient, bool add) {
    for (std::int64_t c = 0; c < C; c += kLanes) {
      const int n = C - c < kLanes ? static_cast<int>(C - c) : kLanes;
      vec total = zero();
      for (std::int64_t part = 0; part < count; ++part) total += load_lanes(parts + part * 3 * C + c, n);
      store_lanes(gradient + c, add ? load_lanes(gradient + c, n) + total : total, n);
    }
  }
  static void add_parts(const float* parts, std::int64_t count, std::int64_t C, const Tensor& gradient,
                        bool add) {
    if (!gradient) return;
    if (gradient.dtype == DType::f32) {
      add_parts_as(parts, count, C, data_of<float>(gradient), add);
    } else {
      add_parts_as(parts, count, C, data_of<P>(gradient), add);
    }
  }
};

// Calls f with the Rows of these dtypes of x, of weight and of out.
template <class F>
void visit_rows(DType x, const Tensor& weight, DType out, const F& f) {
  const bool wide_weight = weight && weight.dtype == DType::f32, wide_out = out == DType::f32;
  if (x == DType::f32) return f(TypeTag<Rows<float, float, float>>{});
  const auto visit = [&](auto tag) {
    using X = typename decltype(tag)::type;
    if (!wide_weight) return f(TypeTag<Rows<X, X, X>>{});
    if (wide_out) return f(TypeTag<Rows<X, float, float>>{});
    f(TypeTag<Rows<X, float, X>>{});
  };
  x == DType::f16 ? visit(TypeTag<f16>{}) : visit(TypeTag<bf16>{});
}

}  // namespace

void forward(const Context& context, const NormForward& args) {
  keep_lost_columns(args, args.x);
  visit_rows(args.x.dtype, args.weight, args.out.dtype,
             [&](auto tag) { decltype(tag)::type::forward(context, args); });
}

void backward(const Context& context, const NormBackward& args) {
  visit_rows(args.dx.dtype, args.weight, args.dout.dtype,
             [&](auto tag) { decltype(tag)::type::backward(context, args); });
}

}  // namespace warpwright::ops::layernorm::WARPWRIGHT_ISA
