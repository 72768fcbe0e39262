// The product and the gate by the two operations' own kernels, one after the other. dx keeps d between them:
// in out, if that is given, and otherwise in scratch after the product's own.
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

// The place of d in scratch, after the product's own.
std::size_t after(std::size_t workspace) {
  return (workspace + 255) / 256 * 256;
}
std::size_t bytes_of_d(const GatedForwardProblem&) {
  return 0;
}
std::size_t bytes_of_d(const GatedDxProblem& p) {
  return p.gate.out_again ? 0
                          : static_cast<std::size_t>(p.gate.rows * p.gate.columns) * size_of(p.gate.dtype);
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo& device) {
  const std::size_t product = choose(device, product_op(p), p.product).workspace;
  return std::max(after(product) + bytes_of_d(p), choose(device, gate_op(p), p.gate).workspace);
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
const Choice<A>& run_planned(const Context& context, const Op<A>& op, const typename A::Problem& problem,
                             const A& args) {
  const Choice<A>& choice = planned(context, op, problem);
  choice.variant->run(context, args);
  return choice;
}

void forward(const Context& context, const GatedForward& args) {
  const GatedForwardProblem p = args.problem();
  run_planned(context, matmul_forward_op(), p.product, product_of(args));
  run_planned(context, gate_forward_op(), p.gate, gate_of(args));
}

void dx(const Context& context, const GatedDx& args) {
  const GatedDxProblem p = args.problem();
  Tensor d = args.out;
  if (!d) {
    const std::size_t product = planned(context, matmul_dx_op(), p.product).workspace;
    d = Tensor(static_cast<std::byte*>(context.scratch()) + after(product), p.dtype,
               {p.gate.rows, p.gate.columns}, args.gate_up.device);
  }
  run_planned(context, matmul_dx_op(), p.product, product_of(args, d));
  run_planned(context, gate_backward_op(), p.gate, gate_of(args, d));
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
