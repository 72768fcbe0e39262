// The oracle: the sum in fp64, rounded where it is stored, then layer normalization's oracle.
#include <vector>

#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops {
namespace {

using namespace bias_residual_layernorm;

void forward(const Context& context, const SumForward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  std::vector<double> sums(args.sum ? 0 : static_cast<std::size_t>(N * C));
  const Tensor unrounded(sums.data(), DType::f64, {N, C});
  const Tensor& sum = args.sum ? args.sum : unrounded;
  const Elements x(args.x), x_bias(args.x_bias), residual(args.residual), to(sum);
  for (std::int64_t i = 0; i < N * C; ++i) to.set(i, x[i] + (x_bias ? x_bias[i % C] : 0) + residual[i]);
  layernorm::forward_reference(context, norm_of(args, sum));
}

}  // namespace

WARPWRIGHT_KERNEL(BiasResidualLayerNormForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run_as_sum<forward>};
WARPWRIGHT_KERNEL(ResidualLayerNormForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run_as_sum<forward>};

}  // namespace warpwright::ops
