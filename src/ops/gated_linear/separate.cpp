// The product and the gate by the two operations' own kernels, one after the other.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::gated_linear {
namespace {

const Op<MatmulForward>& product_op(const GatedForwardProblem&) {
  return matmul_forward_op();
}
const Op<GateForward>& gate_op(const GatedForwardProblem&) {
  return gate_forward_op();
}
const Op<MatmulDx>& product_op(const GatedDxProblem&) {
  return matmul_dx_op();
}
const Op<GateBackward>& gate_op(const GatedDxProblem&) {
  return gate_backward_op();
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo& device) {
  return std::max(choose(device, product_op(p), p.product).workspace,
                  choose(device, gate_op(p), p.gate).workspace);
}

template <class Problem>
std::string configuration(const Problem& p, const DeviceInfo& device) {
  return fmt::format("{}, {}", choose(device, product_op(p), p.product).text,
                     choose(device, gate_op(p), p.gate).text);
}

// Seconds, or the nominal cost of a product whose kernel has no prediction.
template <class Problem>
double cost(const Problem& p, const DeviceInfo& device) {
  return choose(device, product_op(p), p.product).variant->cost(p.product, device) +
         p.gate.bytes() / matmul::kPassBandwidth;
}

template <class A>
void run_part(const Context& context, const Op<A>& op, const A& args) {
  planned(context, op, op.problem(args)).variant->run(context, args);
}

void forward(const Context& context, const GatedForward& args) {
  run_part(context, matmul_forward_op(), product_of(args));
  run_part(context, gate_forward_op(), gate_of(args));
}

void dx(const Context& context, const GatedDx& args) {
  run_part(context, matmul_dx_op(), product_of(args));
  run_part(context, gate_backward_op(), gate_of(args));
}

}  // namespace
}  // namespace warpwright::ops::gated_linear

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GatedForward, "cpu.separate"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kCpuDTypes,
    .run = gated_linear::forward,
    .workspace = gated_linear::workspace<GatedForwardProblem>,
    .configuration = gated_linear::configuration<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "cpu.separate"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kCpuDTypes,
    .run = gated_linear::dx,
    .workspace = gated_linear::workspace<GatedDxProblem>,
    .configuration = gated_linear::configuration<GatedDxProblem>};
WARPWRIGHT_KERNEL(GatedForward, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = gated_linear::forward,
    .workspace = gated_linear::workspace<GatedForwardProblem>,
    .cost = gated_linear::cost<GatedForwardProblem>,
    .configuration = gated_linear::configuration<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = gated_linear::dx,
    .workspace = gated_linear::workspace<GatedDxProblem>,
    .cost = gated_linear::cost<GatedDxProblem>,
    .configuration = gated_linear::configuration<GatedDxProblem>};

}  // namespace warpwright::ops
