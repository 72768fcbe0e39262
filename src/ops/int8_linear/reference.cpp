// The oracle. Rows are rounded in fp32, as the contract says; everything after that is exact or fp64.
#include <vector>

#include "ops/activation_oracle.hpp"
#include "ops/element.hpp"
#include "ops/int8_linear/round_row.hpp"

namespace warpwright::ops {
namespace {

using namespace int8;

std::vector<float> factors_in(const Tensor& factors, std::int64_t K) {
  std::vector<float> values(static_cast<std::size_t>(K), 1.0f);
  for (std::int64_t k = 0; factors && k < K; ++k) {
    values[static_cast<std::size_t>(k)] = static_cast<float>(load_element(factors, k));
  }
  return values;
}

// The differences q − z of a row of x, and its scale.
struct Rounded {
  std::vector<int> terms;
  double scale;
};
template <class T>
Rounded rounded_x(const T* row, const std::vector<float>& factors) {
  const auto K = static_cast<std::int64_t>(factors.size());
  const RowScale scale = x_scale(row, factors.data(), K);
  Rounded result{{}, static_cast<double>(scale.scale)};
  for (std::int64_t k = 0; k < K; ++k) {
    const auto value = static_cast<float>(row[k]);
    result.terms.push_back(round_x(value, factors[static_cast<std::size_t>(k)], scale) - scale.zero);
  }
  return result;
}
template <class T>
Rounded rounded_weight(const T* row, const std::vector<float>& factors) {
  const auto K = static_cast<std::int64_t>(factors.size());
  const RowScale scale = weight_scale(row, factors.data(), K);
  Rounded result{{}, static_cast<double>(scale.scale)};
  for (std::int64_t k = 0; k < K; ++k) {
    const auto value = static_cast<float>(row[k]);
    result.terms.push_back(round_weight(value, factors[static_cast<std::size_t>(k)], scale));
  }
  return result;
}

template <class T, class TWeight>
void run_of(const Int8Linear& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  const std::vector<float> factors = factors_in(args.factors, K);
  std::vector<Rounded> weight;
  for (std::int64_t n = 0; n < N; ++n) {
    weight.push_back(rounded_weight(args.weight.as<TWeight>() + n * K, factors));
  }
  for (std::int64_t m = 0; m < M; ++m) {
    const Rounded x = rounded_x(args.x.as<T>() + m * args.x.strides[0], factors);
    for (std::int64_t n = 0; n < N; ++n) {
      const Rounded& w = weight[static_cast<std::size_t>(n)];
      std::int64_t sum = 0;
      for (std::size_t k = 0; k < x.terms.size(); ++k) sum += std::int64_t{x.terms[k]} * w.terms[k];
      const double value =
          static_cast<double>(sum) * x.scale * w.scale + (args.bias ? load_element(args.bias, n) : 0);
      const double before = args.residual ? load_element(args.residual, m * args.residual.strides[0] + n) : 0;
      store_element(args.out, m * args.out.strides[0] + n, before + oracle::activate(args.activation, value));
    }
  }
}

void run(const Context&, const Int8Linear& args) {
  visit_dtype(args.x.dtype, [&](auto x) {
    visit_dtype(args.weight.dtype, [&](auto weight) {
      run_of<typename decltype(x)::type, typename decltype(weight)::type>(args);
    });
  });
}

Refusal refuse(const Int8LinearProblem& p, const DeviceInfo&) {
  if (p.packed) return "takes no packed weights";
  return {};
}

}  // namespace

WARPWRIGHT_KERNEL(Int8Linear, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run, .refuse = refuse};

}  // namespace warpwright::ops
