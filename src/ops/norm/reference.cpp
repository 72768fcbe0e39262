// The oracle, in fp64 throughout and in the order of the formulas.
#include <cmath>
#include <limits>
#include <vector>

#include "ops/element.hpp"
#include "ops/norm/kernels.hpp"

namespace warpwright::ops::norm {
namespace {

double element_or(const Elements& tensor, std::int64_t i, double otherwise) {
  return tensor ? tensor[i] : otherwise;
}

std::vector<std::int64_t> lost_columns(const Tensor& weight, const Tensor& bias, DType out, std::int64_t C) {
  std::vector<std::int64_t> lost;
  const auto rule = LostRule<double>::of(out);
  const Elements w(weight), b(bias);
  for (std::int64_t c = 0; c < C; ++c) {
    if (rule(element_or(w, c, 1), element_or(b, c, 0))) lost.push_back(c);
  }
  return lost;
}

// Returns x̂ of every element, computed from the input or from the output.
std::vector<double> normalized_rows(const NormBackward& a, std::int64_t N, std::int64_t C) {
  const Elements x(a.x), out(a.out), weight(a.weight), bias(a.bias), mean(a.mean), rstd(a.rstd),
      kept(a.lost.x);
  std::vector<double> normalized(static_cast<std::size_t>(N * C));
  for (std::int64_t i = 0; i < N * C; ++i) {
    const std::int64_t n = i / C, c = i % C;
    normalized[static_cast<std::size_t>(i)] =
        a.out ? (out[i] - element_or(bias, c, 0)) / element_or(weight, c, 1)
              : (x[i] - (a.centered ? mean[n] : 0)) * rstd[n];
  }
  if (!a.out) return normalized;
  const std::vector<std::int64_t> lost = lost_columns(a.weight, a.bias, a.out.dtype, C);
  const std::int64_t K = a.lost.places();
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(lost.size()); ++k) {
    for (std::int64_t n = 0; n < N; ++n) {
      normalized[static_cast<std::size_t>(n * C + lost[static_cast<std::size_t>(k)])] =
          k < K ? (kept[n * K + k] - (a.centered ? mean[n] : 0)) * rstd[n] : std::nan("");
    }
  }
  return normalized;
}

void backward_reference(const Context&, const NormBackward& args) {
  const std::int64_t N = args.dx.shape[0], C = args.dx.shape[1];
  const Elements dout(args.dout), weight(args.weight), rstd(args.rstd), dx(args.dx), dweight(args.dweight),
      dbias(args.dbias), dsum(args.dsum), out(args.out), bias(args.bias);
  const std::vector<double> normalized = normalized_rows(args, N, C);
  const auto x_hat = [&](std::int64_t n, std::int64_t c) {
    return normalized[static_cast<std::size_t>(n * C + c)];
  };
  const auto put = [](const Elements& to, std::int64_t i, double value, Store store) {
    to.set(i, store == Store::add ? to[i] + value : value);
  };
  for (std::int64_t n = 0; n < N; ++n) {
    double sum_g = 0, sum_gx = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dout[n * C + c] * element_or(weight, c, 1);
      if (args.centered) sum_g += g;
      const bool unknown = args.out && std::isnan(x_hat(n, c));
      sum_gx += unknown ? dout[n * C + c] * (out[n * C + c] - element_or(bias, c, 0)) : g * x_hat(n, c);
    }
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dout[n * C + c] * element_or(weight, c, 1);
      const double centered = g - (sum_g + x_hat(n, c) * sum_gx) / static_cast<double>(C);
      put(dx, n * C + c, element_or(dsum, n * C + c, 0) + rstd[n] * centered, args.dx_store);
    }
  }
  for (std::int64_t c = 0; c < C; ++c) {
    double dw = 0, db = 0;
    for (std::int64_t n = 0; n < N; ++n) {
      dw += dout[n * C + c] * x_hat(n, c);
      db += dout[n * C + c];
    }
    if (dweight) put(dweight, c, dw, args.dparameters_store);
    if (dbias) put(dbias, c, db, args.dparameters_store);
  }
}

// Finds the lost columns and keeps their x.
void keep_columns(const NormForward& args, const Tensor& normalized) {
  if (!args.lost) return;
  const std::int64_t N = normalized.shape[0], C = normalized.shape[1], K = args.lost.places();
  const std::vector<std::int64_t> lost = lost_columns(args.weight, args.bias, args.out.dtype, C);
  const auto count = static_cast<std::int64_t>(lost.size());
  const Elements x(normalized), kept(args.lost.x);
  auto* columns = args.lost.columns.as<std::int32_t>();
  *columns++ = static_cast<std::int32_t>(count);
  for (std::int64_t k = 0; k < K; ++k) {
    columns[k] = k < count ? static_cast<std::int32_t>(lost[static_cast<std::size_t>(k)]) : -1;
    for (std::int64_t n = 0; n < N && k < count; ++n) kept.set(n * K + k, x[n * C + columns[k]]);
  }
}

void normalize(const NormForward& args, const Tensor& normalized) {
  const std::int64_t N = normalized.shape[0], C = normalized.shape[1];
  const Elements x(normalized), weight(args.weight), bias(args.bias), out(args.out), mean(args.mean),
      rstd(args.rstd);
  keep_columns(args, normalized);
  for (std::int64_t n = 0; n < N; ++n) {
    double m = 0, v = 0;
    for (std::int64_t c = 0; c < C && args.centered; ++c) m += x[n * C + c];
    m /= static_cast<double>(C);
    for (std::int64_t c = 0; c < C; ++c) v += (x[n * C + c] - m) * (x[n * C + c] - m);
    const double r = 1 / std::sqrt(v / static_cast<double>(C) + args.eps);
    for (std::int64_t c = 0; c < C; ++c) {
      out.set(n * C + c, (x[n * C + c] - m) * r * element_or(weight, c, 1) + element_or(bias, c, 0));
    }
    if (mean) mean.set(n, m);
    if (rstd) rstd.set(n, r);
  }
}

// A sum that is stored is rounded before its statistics are taken.
void forward_reference(const Context&, const NormForward& args) {
  if (!args.residual) return normalize(args, args.x);
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  std::vector<double> sums(args.sum ? 0 : static_cast<std::size_t>(N * C));
  const Tensor sum = args.sum ? args.sum : Tensor(sums.data(), DType::f64, {N, C});
  const Elements x(args.x), x_bias(args.x_bias), residual(args.residual), to(sum);
  for (std::int64_t i = 0; i < N * C; ++i) to.set(i, x[i] + (x_bias ? x_bias[i % C] : 0) + residual[i]);
  normalize(args, sum);
}

}  // namespace
}  // namespace warpwright::ops::norm

namespace warpwright::ops {

WARPWRIGHT_KERNEL(NormForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = norm::forward_reference};
WARPWRIGHT_KERNEL(NormBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = norm::backward_reference};

}  // namespace warpwright::ops
