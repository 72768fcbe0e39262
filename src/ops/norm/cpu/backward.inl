// Normalization backward on a CPU, one row at a time. Memory-bound: 3 passes over the tensor (dout, x or out,
// dx; a 4th if something is added), ~14 FLOP per element. A row is read from memory once; its second read
// hits L1 (C ≤ 8,192 in fp32).
#include "ops/norm/cpu/types.hpp"

namespace warpwright::ops {
namespace {

using namespace norm;
using namespace simd;

// A product that no compiler fuses with the following sum, so that g − Σg/C is exactly 0 in a row of one
// column.
inline vec rounded_product(vec a, vec b) {
  return fma(a, b, zero());
}
inline wide rounded_product(wide a, wide b) {
  return {rounded_product(a.a, b.a), rounded_product(a.b, b.b)};
}

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct Rows {
  template <bool from_out>
  struct Backward {
    const O *dout, *out;
    const X *x, *dsum, *kept;
    const P *weight, *bias;
    const float *mean, *rstd;
    // From the output: 1/weight. For lost columns it is 0 if they are kept, otherwise NaN.
    const float* inverse;
    const std::int32_t* columns;  // of kept, −1 after the last
    std::int64_t C, K;
    X* dx;
    bool centered, add_dx, past_caches;

    using Y = std::conditional_t<from_out, O, X>;

    const Y* y() const {
      if constexpr (from_out) {
        return out;
      } else {
        return x;
      }
    }
    template <class At>
    auto weight_at(At at) const {
      return weight ? at.load(weight) : at.set1(1);
    }
    float mean_of(std::int64_t row) const { return centered ? mean[row] : 0; }
    float center(std::int64_t row) const { return from_out ? 0 : mean_of(row); }

    // x̂ without the factor rstd. From the output: x̂ without the factor 1/weight.
    template <class At>
    auto distance(const Y* from, vec center, At at) const {
      const auto value = at.load(from);
      if constexpr (!from_out) return value - center;
      return bias ? value - at.load(bias) : value;
    }
    // Adds to Σg and Σ(g·x̂). From the input, the second sum lacks the factor rstd.
    template <class V>
    static void add(V dy, V distance, V w, V& sum_g, V& sum_gx) {
      if constexpr (from_out) {
        sum_g = fma(dy, w, sum_g);
        sum_gx = fma(dy, distance, sum_gx);
      } else {
        const V g = rounded_product(dy, w);
        sum_g += g;
        sum_gx = fma(g, distance, sum_gx);
      }
    }

    template <class V>
    static V gradient_of(V dy, V w, V x_hat, vec mean_g, vec mean_gx, vec r) {
      return fnma(x_hat, mean_gx, rounded_product(dy, w) - mean_g) * r;
    }

    // x̂ of a column that is lost and kept, with dout and weight for its gradients.
    struct Kept {
      float x_hat, dy, weight;
      std::int64_t at;  // index among all elements
    };
    template <class F>
    void for_each_kept(std::int64_t row, const F& f) const {
      for (std::int64_t k = 0; k < K && columns[k] >= 0; ++k) {
        const std::int32_t c = columns[k];
        f(k, Kept{(to_float(kept[row * K + k]) - mean_of(row)) * rstd[row], to_float(dout[row * C + c]),
                  weight ? to_float(weight[c]) : 1, row * C + c});
      }
    }
    void add_kept(std::int64_t row, TwoSums& sums) const {
      for_each_kept(row, [&](std::int64_t, const Kept& e) {
        const float y = to_float(out[e.at]), shifted = bias ? y - to_float(bias[e.at - row * C]) : y;
        sums.b += e.dy * (e.weight * e.x_hat - shifted);
      });
    }

    // Computes dx of the rows [begin, end) and adds their contributions to the part's dweight and dbias.
    // Meanwhile it computes both sums of the next row while that row is read from memory. From the output,
    // the vector code uses x̂ = 0 for kept columns; their dx is computed separately for each row, in
    // `patched`.
    void run(std::int64_t begin, std::int64_t end, float* dweight, float* dbias, float* patched) const {
      const float inverse_C = 1.0f / static_cast<float>(C);
      TwoSums sums;
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t next = row + 1 < end ? row + 1 : row;
        const O *d = dout + row * C, *next_d = dout + next * C;
        const Y *from = y() + row * C, *next_from = y() + next * C;
        const RowOut<X> to{dx + row * C, past_caches};
        const X* added = add_dx ? to.row : dsum ? dsum + row * C : nullptr;
        const vec m = set1(center(row)), next_m = set1(center(next)), r = set1(rstd[row]);
        if (row == begin) {
          sums = sum_row_twice<X>(C, [&](auto at, auto& a, auto& b) {
            add(at.load(d), distance(from, m, at), weight_at(at), a, b);
          });
        }
        if constexpr (from_out) add_kept(row, sums);
        if constexpr (!from_out) sums.b *= rstd[row];
        const vec mean_g = set1(centered ? sums.a * inverse_C : 0), mean_gx = set1(sums.b * inverse_C);
        if constexpr (from_out) {
          for_each_kept(row, [&](std::int64_t k, const Kept& e) {
            dweight[place_of<X>(e.at - row * C, C)] += e.dy * e.x_hat;
            const vec gradient = gradient_of(set1(e.dy), set1(e.weight), set1(e.x_hat), mean_g, mean_gx, r);
            store_lanes(patched + k, added ? load_lanes(added + (e.at - row * C), 1) + gradient : gradient,
                        1);
          });
        }
        sums = sum_row_twice<X>(C, [&](auto at, auto& a, auto& b) {
          prefetch_ahead(at, next_d);
          prefetch_ahead(at, next_from);
          const auto w = weight_at(at);
          add(at.load(next_d), distance(next_from, next_m, at), w, a, b);
          const auto dy = at.load(d);
          auto x_hat = distance(from, m, at);
          if constexpr (from_out) {
            x_hat = x_hat * at.load_as_it_is(inverse);
          } else {
            x_hat = x_hat * r;
          }
          at.store_as_it_is(dweight, fma(dy, x_hat, at.load_as_it_is(dweight)));
          at.store_as_it_is(dbias, at.load_as_it_is(dbias) + dy);
          const auto gradient = gradient_of(dy, w, x_hat, mean_g, mean_gx, r);
          to.put(at, added ? at.load(added) + gradient : gradient);
        });
        if constexpr (from_out) {
          for_each_kept(row, [&](std::int64_t k, const Kept& e) {
            store_lanes(dx + e.at, load_lanes(patched + k, 1), 1);
          });
        }
      }
    }
  };

  // 1/weight of each column, for the backward from the output.
  static void invert(const P* weight, const P* bias, DType out, std::int64_t C, float* inverse) {
    const auto lost = LostRule<float>::of(out);
    for (std::int64_t c = 0; c < C; ++c) {
      const float w = weight ? to_float(weight[c]) : 1, b = bias ? to_float(bias[c]) : 0;
      inverse[place_of<X>(c, C)] = lost(w, b) ? __builtin_nanf("") : 1 / w;
    }
  }

  template <bool from_out>
  static void backward_as(const Context& context, const NormBackward& a) {
    const std::int64_t N = a.dx.shape[0], C = a.dx.shape[1], parts = row_parts(N);
    // (parts, 3, C): dweight, dbias, dx of the kept columns; then 1/weight
    auto* scratch = static_cast<float*>(context.scratch());
    float* inverse = scratch + parts * 3 * C;
    const Backward<from_out> b{data_of<const O>(a.dout),
                               data_of<const O>(a.out),
                               data_of<const X>(a.x),
                               data_of<const X>(a.dsum),
                               data_of<const X>(a.lost.x),
                               data_of<const P>(a.weight),
                               data_of<const P>(a.bias),
                               data_of<const float>(a.mean),
                               data_of<const float>(a.rstd),
                               inverse,
                               a.lost ? data_of<const std::int32_t>(a.lost.columns) + 1 : nullptr,
                               C,
                               a.lost.places(),
                               data_of<X>(a.dx),
                               a.centered,
                               a.dx_store == Store::add,
                               goes_past_caches(data_of<const X>(a.dx), N, C)};
    if constexpr (from_out) {
      invert(b.weight, b.bias, a.out.dtype, C, inverse);
      for (std::int64_t k = 0; k < b.K && b.columns[k] >= 0; ++k) inverse[place_of<X>(b.columns[k], C)] = 0;
    }
    const int threads = context.threads();
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
      for (std::int64_t part = 0; part < parts; ++part) {
        float *dweight = scratch + part * 3 * C, *dbias = dweight + C, *patched = dbias + C;
        for (std::int64_t c = 0; c < 2 * C; ++c) dweight[c] = 0;
        b.run(part * N / parts, (part + 1) * N / parts, dweight, dbias, patched);
      }
      fence();
    }
    const bool add = a.dparameters_store == Store::add;
    add_parts(scratch, parts, C, a.dweight, add);
    add_parts(scratch + C, parts, C, a.dbias, add);
  }
  static void backward(const Context& context, const NormBackward& a) {
    a.out ? backward_as<true>(context, a) : backward_as<false>(context, a);
  }

  template <class T>
  static void add_parts_as(const float* parts, std::int64_t count, std::int64_t C, T* gradient, bool add) {
    for_each_pair<X>(C, [=](auto at) {
      auto total = at.set1(0);
      for (std::int64_t part = 0; part < count; ++part) total += at.load_as_it_is(parts + part * 3 * C);
      at.store(gradient, add ? at.load(gradient) + total : total);
    });
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

void backward(const Context& context, const NormBackward& args) {
  visit_norm_types(
      args.dx.dtype, args.weight, args.dout.dtype,
      [&]<class X, class P, class O>(NormTypes<X, P, O>) { Rows<X, P, O>::backward(context, args); });
}

}  // namespace

WARPWRIGHT_KERNEL(NormBackward, kCpu) = {.needs = kThisCpu,
                                         .dtypes = kVectorDTypes,
                                         .run = backward,
                                         .workspace = cpu_backward_workspace,
                                         .configuration = cpu_backward_configuration};

}  // namespace warpwright::ops
