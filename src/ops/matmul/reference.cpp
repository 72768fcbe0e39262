// The oracle, in fp64 throughout and in the order of the formulas.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/activation_oracle.hpp"
#include "ops/element.hpp"
#include "ops/matmul/kernels.hpp"

namespace warpwright::ops {
namespace {

// A matrix of T, read as fp64.
template <class T>
struct Rows {
  explicit Rows(const Tensor& t) : data(t.as<T>()), stride(t ? t.strides[0] : 0) {}
  double operator()(std::int64_t row, std::int64_t col) const {
    return static_cast<double>(static_cast<Wide>(data[row * stride + col]));
  }
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const T* data;
  std::int64_t stride;
};

// sum += factor · rows[row]
template <class T>
void add(std::vector<double>& sum, double factor, const Rows<T>& rows, std::int64_t row) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * rows(row, static_cast<std::int64_t>(i));
}

void set(const Tensor& t, std::int64_t row, std::int64_t col, double value) {
  store_element(t, row * t.strides[0] + col, value);
}

template <class T>
void forward_of(const MatmulForward& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  const Rows<T> x(args.x), weight(args.weight);
  for (std::int64_t m = 0; m < M; ++m) {
    for (std::int64_t n = 0; n < N; ++n) {
      double sum = args.bias ? load_element(args.bias, n) : 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t k = 0; k < K; ++k) sum += x(m, k) * weight(n, k);
      if (args.preact) set(args.preact, m, n, sum);
      const double value = static_cast<double>(args.scale) * oracle::activate(args.activation, sum);
      const Tensor& residual = args.residual;
      set(args.out, m, n, (residual ? load_element(residual, m * residual.strides[0] + n) : 0) + value);
    }
  }
}

// Computes one row of the result at a time, so that both gradients read their rows in the order of memory.
template <class T>
void dx_of(const MatmulDx& args) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  const Rows<T> dout(args.dout), weight(args.weight), preact(args.preact);
  std::vector<double> sum(static_cast<std::size_t>(K));
  for (std::int64_t m = 0; m < M; ++m) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t n = 0; n < N; ++n) add(sum, dout(m, n), weight, n);
    for (std::int64_t k = 0; k < K; ++k) {
      const double gradient = args.preact ? oracle::derivative(args.activation, preact(m, k)) : 1;
      set(args.dx, m, k, sum[static_cast<std::size_t>(k)] * gradient);
    }
  }
}

template <class T>
void dw_of(const MatmulDw& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  const Rows<T> x(args.x), dout(args.dout);
  const bool accumulate = args.store == Store::add;
  std::vector<double> sum(static_cast<std::size_t>(K));
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t k = 0; k < K; ++k) {
      sum[static_cast<std::size_t>(k)] = accumulate ? load_element(args.dweight, n * K + k) : 0;
    }
    for (std::int64_t m = 0; m < M; ++m) add(sum, dout(m, n), x, m);
    for (std::int64_t k = 0; k < K; ++k) set(args.dweight, n, k, sum[static_cast<std::size_t>(k)]);
    if (!args.dbias) continue;
    double total = accumulate ? load_element(args.dbias, n) : 0;
    for (std::int64_t m = 0; m < M; ++m) total += dout(m, n);
    store_element(args.dbias, n, total);
  }
}

void forward(const Context&, const MatmulForward& args) {
  visit_dtype(args.x.dtype, [&](auto tag) { forward_of<typename decltype(tag)::type>(args); });
}

void dx(const Context&, const MatmulDx& args) {
  visit_dtype(args.dout.dtype, [&](auto tag) { dx_of<typename decltype(tag)::type>(args); });
}

void dw(const Context&, const MatmulDw& args) {
  visit_dtype(args.x.dtype, [&](auto tag) { dw_of<typename decltype(tag)::type>(args); });
}

Refusal refuse_packed(const MatmulForwardProblem& p, const DeviceInfo&) {
  if (p.packed) return matmul::kNotPacked;
  return {};
}

}  // namespace

WARPWRIGHT_KERNEL(MatmulForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = forward, .refuse = refuse_packed};
WARPWRIGHT_KERNEL(MatmulDx, "reference"_kernel) = {.needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = dx};
WARPWRIGHT_KERNEL(MatmulDw, "reference"_kernel) = {.needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = dw};

}  // namespace warpwright::ops
