// The oracle. Rows are rounded in fp32, as the contract says; everything after that is exact or fp64.
#include <vector>

#include "ops/activation_oracle.hpp"
#include "ops/element.hpp"
#include "ops/int8_linear/round_row.hpp"

namespace warpwright::ops {
namespace {

using namespace int8;

struct RoundedRows {
  std::vector<std::int8_t> elements;
  std::vector<double> scales;
};

RoundedRows rounded(const Tensor& matrix) {
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  RoundedRows result{std::vector<std::int8_t>(static_cast<std::size_t>(rows * columns)),
                     std::vector<double>(static_cast<std::size_t>(rows))};
  visit_dtype(matrix.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::int8_t* to = result.elements.data();
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = matrix.as<T>() + r * matrix.strides[0];
      const RowScale scale = scale_of(row, columns);
      result.scales[static_cast<std::size_t>(r)] = static_cast<double>(scale.scale);
      for (std::int64_t c = 0; c < columns; ++c) *to++ = round_to_int8(static_cast<float>(row[c]), scale);
    }
  });
  return result;
}

void run(const Context&, const Int8Linear& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  const RoundedRows x = rounded(args.x), weight = rounded(args.weight);
  for (std::int64_t m = 0; m < M; ++m) {
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int8_t *a = x.elements.data() + m * K, *b = weight.elements.data() + n * K;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < K; ++k) sum += a[k] * b[k];
      const double scale = x.scales[static_cast<std::size_t>(m)] * weight.scales[static_cast<std::size_t>(n)];
      const double value = static_cast<double>(sum) * scale + (args.bias ? load_element(args.bias, n) : 0);
      store_element(args.out, m * args.out.strides[0] + n, oracle::activate(args.activation, value));
    }
  }
}

Refusal refuse(const Int8LinearProblem& p, const DeviceInfo&) {
  if (p.packed) return "takes no packed weights";
  return {};
}

}  // namespace

WARPWRIGHT_KERNEL(Int8Linear, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run, .refuse = refuse};

}  // namespace warpwright::ops
