// The oracle, in fp64 throughout and in the order of the formulas.
#include <cmath>
#include <vector>

#include "ops/element.hpp"
#include "ops/head_norm/head_norm.hpp"

namespace warpwright::ops::head_norm {
namespace {

// The place of head h of row n.
std::int64_t at(const Tensor& t, std::int64_t n, std::int64_t h) {
  return n * t.strides[0] + h * t.strides[1];
}

void forward_reference(const Context&, const HeadNormForward& a) {
  const std::int64_t N = a.x.shape[0], NH = a.x.shape[1], HS = a.x.shape[2];
  const Elements q_weight(a.q_weight), k_weight(a.k_weight), rstd(a.rstd);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < NH; ++h) {
      const Elements& weight = h < a.q_heads ? q_weight : k_weight;
      const std::int64_t from = at(a.x, n, h), to = at(a.out, n, h);
      double squares = 0;
      for (std::int64_t i = 0; i < HS; ++i) squares += std::pow(load_element(a.x, from + i), 2);
      const double r = 1 / std::sqrt(squares / static_cast<double>(HS) + a.eps);
      for (std::int64_t i = 0; i < HS; ++i)
        store_element(a.out, to + i, load_element(a.x, from + i) * r * weight[i]);
      if (rstd) rstd.set(n * NH + h, r);
    }
  }
}

void backward_reference(const Context&, const HeadNormBackward& a) {
  const std::int64_t N = a.x.shape[0], NH = a.x.shape[1], HS = a.x.shape[2];
  const Elements q_weight(a.q_weight), k_weight(a.k_weight), rstd(a.rstd);
  const Elements dq_weight(a.dq_weight), dk_weight(a.dk_weight);
  if (a.dweights_store == Store::assign) {
    for (std::int64_t i = 0; i < HS; ++i) dq_weight.set(i, 0), dk_weight.set(i, 0);
  }
  std::vector<double> g(static_cast<std::size_t>(HS)), x_hat(g);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < NH; ++h) {
      const Elements& weight = h < a.q_heads ? q_weight : k_weight;
      const Elements& dweight = h < a.q_heads ? dq_weight : dk_weight;
      const double r = rstd[n * NH + h];
      double mean = 0;
      for (std::int64_t i = 0; i < HS; ++i) {
        const auto e = static_cast<std::size_t>(i);
        const double dout = load_element(a.dout, at(a.dout, n, h) + i);
        x_hat[e] = load_element(a.x, at(a.x, n, h) + i) * r;
        g[e] = dout * weight[i];
        mean += g[e] * x_hat[e] / static_cast<double>(HS);
        dweight.add(i, dout * x_hat[e]);
      }
      for (std::int64_t i = 0; i < HS; ++i) {
        const auto e = static_cast<std::size_t>(i);
        store_element(a.dx, at(a.dx, n, h) + i, r * (g[e] - x_hat[e] * mean));
      }
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::head_norm

namespace warpwright::ops {

WARPWRIGHT_KERNEL(HeadNormForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = head_norm::forward_reference};
WARPWRIGHT_KERNEL(HeadNormBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = head_norm::backward_reference};

}  // namespace warpwright::ops
