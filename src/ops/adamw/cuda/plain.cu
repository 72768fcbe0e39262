// AdamW on a GPU in its simplest form, to read and to compare with: a launch for each tensor, a thread for
// each parameter. 28 bytes per parameter, in fp32 and in bf16 with its master.
#include "ops/adamw/cuda/master.cuh"
#include "ops/adamw/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

constexpr int kThreads = 512;

struct Rates {
  float beta1, beta2;
  float one_minus_beta1, one_minus_beta2;  // of fp64: 1 − the fp32 β2 would be 1.3e-5 off
  float eps, weight_decay;
};

// remainder: null if the parameter is fp32.
__global__ void __launch_bounds__(kThreads)
    update_tensor(void* parameter, std::int16_t* remainder, const float* gradient, float* m, float* v,
                  std::int64_t elements, const AdamWScalars<float>* scalars, const Rates r) {
  const AdamWScalars<float> s = *scalars;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements || !isfinite(s.gradient_scale)) return;
  float* wide = static_cast<float*>(parameter) + i;
  __nv_bfloat16* narrow = static_cast<__nv_bfloat16*>(parameter) + i;
  float w[1];
  if (remainder) {
    load_masters(narrow, remainder + i, w);
  } else {
    w[0] = *wide;
  }
  const float g = s.gradient_scale * gradient[i];
  const float new_m = r.beta1 * m[i] + r.one_minus_beta1 * g;
  const float new_v = r.beta2 * v[i] + r.one_minus_beta2 * g * g;
  w[0] -= s.learning_rate *
          (new_m / s.bias_correction1 / (sqrtf(new_v / s.bias_correction2) + r.eps) + r.weight_decay * w[0]);
  m[i] = new_m;
  v[i] = new_v;
  if (remainder) {
    store_masters(narrow, remainder + i, w);
  } else {
    *wide = w[0];
  }
}

void run(const Context& context, const AdamW& a, const AdamWTensor& t) {
  const std::int64_t elements = t.parameter.elements();
  if (elements == 0) return;
  const Rates rates{.beta1 = static_cast<float>(a.beta1),
                    .beta2 = static_cast<float>(a.beta2),
                    .one_minus_beta1 = static_cast<float>(1 - a.beta1),
                    .one_minus_beta2 = static_cast<float>(1 - a.beta2),
                    .eps = static_cast<float>(a.eps),
                    .weight_decay = static_cast<float>(t.weight_decay)};
  const auto blocks = static_cast<unsigned>((elements + kThreads - 1) / kThreads);
  update_tensor<<<blocks, kThreads, 0, context.stream().get()>>>(
      t.parameter.data, static_cast<std::int16_t*>(t.remainder.data),
      static_cast<const float*>(t.gradient.data), static_cast<float*>(t.m.data),
      static_cast<float*>(t.v.data), elements, static_cast<const AdamWScalars<float>*>(a.scalars.data),
      rates);
  warpwright::cuda::check_launch("adamw cuda.plain");
}

void plain(const Context& context, const AdamW& args) {
  for (const AdamWTensor& t : args.tensors) run(context, args, t);
}

Refusal refuse_plain(const AdamWProblem& p, const DeviceInfo&) {
  if (!p.masters) return "rounds to nearest, and there are no masters";
  return {};
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AdamW, "cuda.plain"_kernel) = {.needs = Needs::gpu,
                                                 .dtypes = DTypes{DType::f32, DType::bf16},
                                                 .run = adamw_kernels::plain,
                                                 .refuse = adamw_kernels::refuse_plain};

}  // namespace warpwright::ops
