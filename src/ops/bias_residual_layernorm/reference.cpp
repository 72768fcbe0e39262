// The oracle: the sum in fp64, rounded where it is stored, then layer normalization's oracle.
#include <vector>

#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::bias_residual_layernorm {

layernorm::NormForward norm_of(const SumForward& args, const Tensor& x) {
  layernorm::NormForward norm;
  norm.x = x;
  norm.weight = args.weight;
  norm.bias = args.bias;
  norm.out = args.out;
  norm.mean = args.mean;
  norm.rstd = args.rstd;
  norm.eps = args.eps;
  norm.kept_columns = args.kept_columns;
  norm.kept = args.kept;
  norm.centered = !args.rms;
  return norm;
}

void forward_reference(const Context& context, const SumForward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  std::vector<double> sums(static_cast<std::size_t>(N * C));
  const Tensor unrounded(sums.data(), DType::f64, {N, C});
  const Tensor& sum = args.sum ? args.sum : unrounded;
  const Elements x(args.x), x_bias(args.x_bias), residual(args.residual), to(sum);
  for (std::int64_t i = 0; i < N * C; ++i) to.set(i, x[i] + (x_bias ? x_bias[i % C] : 0) + residual[i]);
  if (N > 0) layernorm::forward_reference(context, norm_of(args, sum));
}

}  // namespace warpwright::ops::bias_residual_layernorm
