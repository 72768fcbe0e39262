// Normalization for any dtypes, shape and instruction set, computed in fp32, or in fp64 with fp64. It runs
// what the vector kernels (rows.inl) refuse, in the same passes over memory.
#include "ops/layernorm/cpu/portable.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/element.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/lost.hpp"

namespace warpwright::ops {
namespace layernorm {
namespace portable {
namespace {

template <class X, class P, class O>
struct Rows {
  using A = Arithmetic<X>;

  static void forward(const Context& context, const NormForward& a) {
    const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
    const X* x = data_of<const X>(a.x);
    const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
    O* out = data_of<O>(a.out);
    A *mean = data_of<A>(a.mean), *rstd = data_of<A>(a.rstd);
    const int threads = context.threads();
    const bool centered = a.centered;
    const A eps = static_cast<A>(a.eps);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t row = 0; row < N; ++row) {
      const RowStatistics<A> s = normalize_row<A>(x + row * C, weight, bias, out + row * C, C, eps, centered);
      if (mean) mean[row] = s.mean;
      if (rstd) rstd[row] = s.rstd;
    }
  }

  struct Backward {
    const O *dout, *out;
    const X *x, *dsum, *kept;
    const P *weight, *bias;
    const A *mean, *rstd;
    const std::int32_t* columns;  // of kept
    std::int64_t C, K;
    X* dx;
    bool centered, add_dx;

    // x̂ of a row; NaN in a lost column without a place.
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

    // One row: dx, and its share of dweight and dbias added to the part's partial sums.
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
    const std::int64_t N = a.dx.shape[0], C = a.dx.shape[1], parts = backward_parts(N);
    const std::int64_t K = a.kept_columns ? a.kept_columns.shape[0] - 1 : 0;
    const Backward b{data_of<const O>(a.dout),
                     data_of<const O>(a.out),
                     data_of<const X>(a.x),
                     data_of<const X>(a.dsum),
                     data_of<const X>(a.kept),
                     data_of<const P>(a.weight),
                     data_of<const P>(a.bias),
                     data_of<const A>(a.mean),
                     data_of<const A>(a.rstd),
                     a.kept_columns ? data_of<const std::int32_t>(a.kept_columns) + 1 : nullptr,
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

// Calls f with the Rows of these dtypes of x, of weight and of out.
template <class F>
void visit_rows(DType x, const Tensor& weight, DType out, const F& f) {
  visit_dtype(x, [&](auto tag) {
    using X = typename decltype(tag)::type;
    if constexpr (sizeof(X) == 2) {
      if (weight && weight.dtype == DType::f32) {
        return out == DType::f32 ? f(TypeTag<Rows<X, float, float>>{}) : f(TypeTag<Rows<X, float, X>>{});
      }
    }
    f(TypeTag<Rows<X, X, X>>{});
  });
}

void forward(const Context& context, const NormForward& args) {
  keep_lost_columns(args, args.x);
  visit_rows(args.x.dtype, args.weight, args.out.dtype,
             [&](auto tag) { decltype(tag)::type::forward(context, args); });
}

void backward(const Context& context, const NormBackward& args) {
  visit_rows(args.dx.dtype, args.weight, args.dout.dtype,
             [&](auto tag) { decltype(tag)::type::backward(context, args); });
}

}  // namespace
}  // namespace portable

void keep_lost_columns(const NormForward& a, const Tensor& x) {
  if (!a.kept_columns) return;
  const std::int64_t N = x.shape[0], C = x.shape[1], K = a.kept_columns.shape[0] - 1;
  std::int32_t *count = a.kept_columns.as<std::int32_t>(), *columns = count + 1;
  std::fill(count, columns + K, -1);
  *count = 0;
  const auto lost = LostRule<double>::of(a.out.dtype);
  const Elements weight(a.weight), bias(a.bias);
  for (std::int64_t c = 0; c < C; ++c) {
    if (!lost(weight ? weight[c] : 1, bias ? bias[c] : 0)) continue;
    if (*count < K) columns[*count] = static_cast<std::int32_t>(c);
    ++*count;
  }
  const std::size_t size = size_of(x.dtype);
  const auto* from = static_cast<const std::byte*>(x.data);
  auto* to = static_cast<std::byte*>(a.kept.data);
  const std::int64_t found = std::min<std::int64_t>(*count, K);
  for (std::int64_t row = 0; row < N; ++row) {
    for (std::int64_t k = 0; k < found; ++k) {
      std::memcpy(to + static_cast<std::size_t>(row * K + k) * size,
                  from + static_cast<std::size_t>(row * C + columns[k]) * size, size);
    }
  }
}

}  // namespace layernorm

WARPWRIGHT_KERNEL(LayerNormForward, "cpu.portable"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::portable::forward>};
WARPWRIGHT_KERNEL(RMSNormForward, "cpu.portable"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::portable::forward>};
WARPWRIGHT_KERNEL(LayerNormBackward, "cpu.portable"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::portable::backward>,
    .workspace = layernorm::cpu_backward_workspace,
    .configuration = layernorm::cpu_backward_parts};
WARPWRIGHT_KERNEL(RMSNormBackward, "cpu.portable"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::portable::backward>,
    .workspace = layernorm::cpu_backward_workspace,
    .configuration = layernorm::cpu_backward_parts};

}  // namespace warpwright::ops
