// The derivative of the tanh form of GELU as a textbook writes it, ½(1 + tanh u) + ½x·u'/cosh²u, one number
// per thread, after llm.c. Memory-bound in principle: dout and x are read and dx is written. In practice the
// arithmetic takes longer: tanhf and coshf are some forty instructions each.
//
// Configurations: the threads of a block, and coshf or 1/cosh²u = 1 − tanh²u, which needs no second function.
// x is clamped to [−14, 14], beyond which the derivative is 0 or 1 in fp32: unclamped, 1/cosh²u = 0 would
// meet x² = ∞.
#include "ops/cuda/gelu.cuh"
#include "ops/gelu/gelu.hpp"
#include "ops/options.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::gelu {
namespace {

constexpr std::string_view kOperation = "gelu.backward", kKernel = "cuda.ladder_coshf";

struct Option {
  int threads;
  bool coshf;

  std::string text() const {
    return "block " + std::to_string(threads) + (coshf ? ", tanhf and coshf" : ", tanhf alone");
  }
};
constexpr std::array kOptions{Option{128, true},  Option{256, true},  Option{512, true},
                              Option{1024, true}, Option{128, false}, Option{256, false},
                              Option{512, false}, Option{1024, false}};

template <bool with_coshf>
__global__ void __launch_bounds__(1024)
    differentiate(const float* dout, const float* x, float* dx, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  constexpr float kSqrt2OverPi = kSqrt8OverPi / 2;
  const float c = gpu::clamp_for_gelu(x[i]), square = c * c;
  const float u = kSqrt2OverPi * c * (1 + kCubic * square);
  const float tanh_u = tanhf(u);
  float sech_squared = 1 - tanh_u * tanh_u;
  if constexpr (with_coshf) {
    const float cosh_u = coshf(u);
    sech_squared = 1 / (cosh_u * cosh_u);
  }
  const float slope = kSqrt2OverPi * (1 + 3 * kCubic * square);
  dx[i] = dout[i] * (0.5f * (1 + tanh_u) + 0.5f * c * sech_squared * slope);
}

const Option& option_for(const GeluProblem& p, const DeviceInfo& device) {
  return option_of(kOptions, kOperation, kKernel, p, device);
}

void coshf_backward(const Context& context, const GeluBackward& args) {
  const std::int64_t elements = args.x.elements();
  if (elements == 0) return;
  const Option& option = option_for(args.problem(), context.device());
  const auto kernel = option.coshf ? differentiate<true> : differentiate<false>;
  kernel<<<static_cast<unsigned>((elements + option.threads - 1) / option.threads),
           static_cast<unsigned>(option.threads), 0, context.stream().get()>>>(
      args.dout.as<float>(), args.x.as<float>(), args.dx.as<float>(), elements);
  warpwright::cuda::check_launch("gelu.backward cuda.ladder_coshf");
}

Refusal refuse_coshf(const GeluProblem& p, const DeviceInfo&) {
  if (p.activation != Activation::gelu_tanh) return "computes the tanh form only";
  return {};
}

std::string coshf_configuration(const GeluProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> coshf_configurations(const GeluProblem&, const DeviceInfo&) {
  return configurations_of(kOptions);
}

}  // namespace
}  // namespace warpwright::ops::gelu

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GeluBackward, "cuda.ladder_coshf"_kernel) = {.needs = Needs::gpu,
                                                               .dtypes = {DType::f32},
                                                               .run = gelu::coshf_backward,
                                                               .refuse = gelu::refuse_coshf,
                                                               .configuration = gelu::coshf_configuration,
                                                               .configurations = gelu::coshf_configurations,
                                                               .only_forced = true};

}  // namespace warpwright::ops
