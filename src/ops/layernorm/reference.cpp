// The oracle: fp64 throughout, in the order of the formulas.
#include <cmath>

#include "ops/element.hpp"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm {

void forward_reference(const Context&, const LayerNormForward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  const Elements x(args.x), weight(args.weight), bias(args.bias), out(args.out), mean(args.mean),
      rstd(args.rstd);
  for (std::int64_t n = 0; n < N; ++n) {
    double m = 0, v = 0;
    for (std::int64_t c = 0; c < C; ++c) m += x[n * C + c];
    m /= static_cast<double>(C);
    for (std::int64_t c = 0; c < C; ++c) v += (x[n * C + c] - m) * (x[n * C + c] - m);
    const double r = 1 / std::sqrt(v / static_cast<double>(C) + static_cast<double>(args.eps));
    for (std::int64_t c = 0; c < C; ++c) out.set(n * C + c, (x[n * C + c] - m) * r * weight[c] + bias[c]);
    if (mean) mean.set(n, m);
    if (rstd) rstd.set(n, r);
  }
}

void backward_reference(const Context&, const LayerNormBackward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  const Elements dout(args.dout), x(args.x), weight(args.weight), mean(args.mean), rstd(args.rstd),
      dx(args.dx), dweight(args.dweight), dbias(args.dbias);
  const auto put = [](const Elements& to, std::int64_t i, double value, Store store) {
    to.set(i, store == Store::add ? to[i] + value : value);
  };
  for (std::int64_t n = 0; n < N; ++n) {
    const auto normalized = [&](std::int64_t c) { return (x[n * C + c] - mean[n]) * rstd[n]; };
    double sum_g = 0, sum_gx = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dout[n * C + c] * weight[c];
      sum_g += g;
      sum_gx += g * normalized(c);
    }
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dout[n * C + c] * weight[c];
      const double centered = g - (sum_g + normalized(c) * sum_gx) / static_cast<double>(C);
      put(dx, n * C + c, rstd[n] * centered, args.dx_store);
    }
  }
  for (std::int64_t c = 0; c < C; ++c) {
    double dw = 0, db = 0;
    for (std::int64_t n = 0; n < N; ++n) {
      dw += dout[n * C + c] * (x[n * C + c] - mean[n]) * rstd[n];
      db += dout[n * C + c];
    }
    put(dweight, c, dw, args.dparameters_store);
    put(dbias, c, db, args.dparameters_store);
  }
}

}  // namespace warpwright::ops::layernorm
