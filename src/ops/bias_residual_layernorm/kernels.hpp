// The kernels that variants.cpp chooses from, here and in ops/residual_layernorm.
#pragma once

#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::bias_residual_layernorm {

// What the kernels get. kept_columns and kept: of sum, as in ops/layernorm.
struct SumForward : BiasResidualLayerNormForward {
  Tensor kept_columns{}, kept{};
};

// The normalization behind the addition, of x: what that left.
layernorm::NormForward norm_of(const SumForward& args, const Tensor& x);

void forward_reference(const Context& context, const SumForward& args);

// Bytes of scratch of the CPU's kernels, where sum is not stored: a row of it for each part of the rows.
std::size_t cpu_workspace(const BiasResidualLayerNormProblem& p, const DeviceInfo& device);

namespace portable {
void forward(const Context& context, const SumForward& args);
}  // namespace portable

namespace avx2 {
void forward(const Context& context, const SumForward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const SumForward& args);
}  // namespace avx512

namespace cuda {
// Whether rows fit in registers.
std::string refuse_warp_row(std::int64_t C, DType dtype, const DeviceInfo& device);
template <class Problem>
std::string refuse_warp_row_of(const Problem& p, const DeviceInfo& device) {
  return refuse_warp_row(p.C, p.dtype, device);
}
std::string refuse_any_row(DType dtype, const DeviceInfo& device);
template <class Problem>
std::string refuse_any(const Problem& p, const DeviceInfo& device) {
  return refuse_any_row(p.dtype, device);
}

// Whether it is an encoder's: rows of 16 bits and up to kStateColumns numbers, of which only out is asked
// for.
inline constexpr std::int64_t kStateColumns = 1024;
std::string refuse_state_row(const BiasResidualLayerNormProblem& p, const DeviceInfo& device);

void state_row_forward(const Context& context, const SumForward& args);
void warp_row_forward(const Context& context, const SumForward& args);
void warp_loop_forward(const Context& context, const SumForward& args);
}  // namespace cuda

}  // namespace warpwright::ops::bias_residual_layernorm
