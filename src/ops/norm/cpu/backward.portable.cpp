// Normalization backward for any dtypes, shape and instruction set, computed in fp32 (fp64 for fp64). It runs
// the problems that the vector kernels (backward.inl) refuse, with the same passes over memory.
#include "ops/norm/cpu/portable.hpp"

#include <algorithm>
#include <limits>

#include "ops/norm/kernels.hpp"

namespace warpwright::ops {
namespace norm::portable {
namespace {

template <class X, class P, class O>
struct Rows {
  using A = Arithmetic<X>;

  struct Backward {
    const O *dout, *out;
    const X *x, *dsum, *kept;
    const P *weight, *bias;
    const A *mean, *rstd;
    const std::int32_t* columns;  // of kept
    std::int64_t C, K;
    X* dx;
    bool centered, add_dx;

    // Computes x̂ of a row. A lost column without a place gets NaN.
    void normalize(std::int64_t row, A* x_hat) const {
      const A m = centered && mean ? mean[row] : A(0), r = rstd[row];
      if (!out) {
        for (std::int64_t c = 0; c < C; ++c) x_hat[c] = (get<A>(x, row * C + c) - m) * r;
        return;
      }
      const auto lost = LostRule<A>::of(dtype_of<O>);
      for (std::int64_t c = 0; c < C; ++c) {
        const A w = get_or<A>(weight, c, 1), b = get_or<A>(bias, c, 0);
        x_hat[c] = lost(w, b) ? std::numeric_limits<A>::quiet_NaN() : (get<A>(out, row * C + c) - b) / w;
      }
      for (std::int64_t k = 0; k < K && columns[k] >= 0; ++k) {
        x_hat[columns[k]] = (get<A>(kept, row * K + k) - m) * r;
      }
    }

    // Computes dx of one row and adds the row's contribution to the part's dweight and dbias.
    void run(std::int64_t row, A* dweight, A* dbias, A* x_hat) const {
      const std::int64_t first = row * C;
      normalize(row, x_hat);
      const auto g = [&](std::int64_t c) { return get<A>(dout, first + c) * get_or<A>(weight, c, 1); };
      const A sum_g = centered ? sum_row<A>(C, g) : A(0);
      const A sum_gx = sum_row<A>(C, [&](std::int64_t c) {
        const bool unknown = out && x_hat[c] != x_hat[c];
        return unknown ? get<A>(dout, first + c) * (get<A>(out, first + c) - get_or<A>(bias, c, 0))
                       : g(c) * x_hat[c];
      });
      const A mean_g = sum_g / static_cast<A>(C), mean_gx = sum_gx / static_cast<A>(C), r = rstd[row];
      for (std::int64_t c = 0; c < C; ++c) {
        const A d = get<A>(dout, first + c);
        dweight[c] += d * x_hat[c];
        dbias[c] += d;
        A gradient = r * (g(c) - mean_g - x_hat[c] * mean_gx);
        if (dsum) gradient += get<A>(dsum, first + c);
        put(dx, first + c, add_dx ? get<A>(dx, first + c) + gradient : gradient);
      }
    }
  };

  static void backward(const Context& context, const NormBackward& a) {
    const std::int64_t N = a.dx.shape[0], C = a.dx.shape[1], parts = row_parts(N);
    const std::int64_t K = a.lost.places();
    const Backward b{data_of<const O>(a.dout),
                     data_of<const O>(a.out),
                     data_of<const X>(a.x),
                     data_of<const X>(a.dsum),
                     data_of<const X>(a.lost.x),
                     data_of<const P>(a.weight),
                     data_of<const P>(a.bias),
                     data_of<const A>(a.mean),
                     data_of<const A>(a.rstd),
                     a.lost ? data_of<const std::int32_t>(a.lost.columns) + 1 : nullptr,
                     C,
                     K,
                     data_of<X>(a.dx),
                     a.centered,
                     a.dx_store == Store::add};
    auto* scratch = static_cast<A*>(context.scratch());
    const int threads = context.threads();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t part = 0; part < parts; ++part) {
      A *dweight = scratch + part * 3 * C, *dbias = dweight + C, *x_hat = dbias + C;
      std::fill(dweight, x_hat, A(0));
      for (std::int64_t row = part * N / parts; row < (part + 1) * N / parts; ++row) {
        b.run(row, dweight, dbias, x_hat);
      }
    }
    const bool add = a.dparameters_store == Store::add;
    add_parts(scratch, parts, C, a.dweight, add);
    add_parts(scratch + C, parts, C, a.dbias, add);
  }

  static void add_parts(const A* parts, std::int64_t count, std::int64_t C, const Tensor& gradient,
                        bool add) {
    if (!gradient) return;
    visit_dtype(gradient.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* to = data_of<T>(gradient);
      for (std::int64_t c = 0; c < C; ++c) {
        A total = 0;
        for (std::int64_t part = 0; part < count; ++part) total += parts[part * 3 * C + c];
        put(to, c, add ? get<A>(to, c) + total : total);
      }
    });
  }
};

void backward(const Context& context, const NormBackward& args) {
  visit_norm_types(
      args.dx.dtype, args.weight, args.dout.dtype,
      [&]<class X, class P, class O>(NormTypes<X, P, O>) { Rows<X, P, O>::backward(context, args); });
}

}  // namespace
}  // namespace norm::portable

WARPWRIGHT_KERNEL(NormBackward, "cpu.portable"_kernel) = {.needs = Needs::cpu,
                                                          .dtypes = kFloatingDTypes,
                                                          .run = norm::portable::backward,
                                                          .workspace = norm::cpu_backward_workspace,
                                                          .configuration = norm::cpu_backward_configuration};

}  // namespace warpwright::ops
