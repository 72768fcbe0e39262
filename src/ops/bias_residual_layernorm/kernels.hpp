// Shared by the kernels, which also compute ops/residual_layernorm.
#pragma once

#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/residual_layernorm/residual_layernorm.hpp"

namespace warpwright::ops::bias_residual_layernorm {

// The arguments as kernels take them. kept_columns and kept are those of sum, as in ops/layernorm.
struct SumForward : BiasResidualLayerNormForward {
  Tensor kept_columns{}, kept{};
};
SumForward as_sum(const BiasResidualLayerNormForward& args);
SumForward as_sum(const ResidualLayerNormForward& args);

// A kernel of these arguments as one of an operation's own.
template <auto kernel, class Args>
void run_as_sum(const Context& context, const Args& args) {
  kernel(context, as_sum(args));
}

// The normalization after the addition, of x: the sum.
layernorm::NormForward norm_of(const SumForward& args, const Tensor& x);

// If sum is not stored, the scratch of the CPU's kernels holds a row of it for each part of the rows.
std::size_t cpu_workspace(const BiasResidualLayerNormProblem& p, const DeviceInfo& device);
std::string cpu_parts(const BiasResidualLayerNormProblem& p, const DeviceInfo& device);
std::string cpu_parts(const ResidualLayerNormProblem& p, const DeviceInfo& device);

}  // namespace warpwright::ops::bias_residual_layernorm
