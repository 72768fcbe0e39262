// AdamW on a CPU. Memory-bound: 28 bytes per parameter in fp32 (parameter, m and v read and written, gradient
// read), 28 for bf16 with its master, 24 for bf16 alone. Stores go through the caches, because the line
// was just read and is there. All tensors together form one row of blocks, and each thread takes an equal
// share.
#include "ops/adamw/cpu/master.hpp"
#include "ops/adamw/cpu/rounding.hpp"
#include "ops/adamw/kernels.hpp"
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/isa.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

using namespace simd;

struct Step {
  float scale, one_minus_beta1, one_minus_beta2, eps;
  float corrected_learning_rate;  // learning_rate / bias_correction1
  float inverse2;                 // 1 / √bias_correction2
  float learning_rate;
};

// Elements [begin, end). The function load_weights(i, lanes) returns the weights: masters, fp32 parameters,
// or bf16 ones without masters. store_weights(i, vector, lanes) stores the new ones.
template <class Load, class Store>
inline void update(const AdamWTensor& t, const Load& load_weights, const Step& s, std::int64_t begin,
                   std::int64_t end, const Store& store_weights) {
  const float* gradient = static_cast<const float*>(t.gradient.data);
  float *m = static_cast<float*>(t.m.data), *v = static_cast<float*>(t.v.data);
  const vec scale = set1(s.scale), a1 = set1(s.one_minus_beta1), a2 = set1(s.one_minus_beta2);
  const vec eps = set1(s.eps), rate = set1(s.corrected_learning_rate), inverse2 = set1(s.inverse2);
  const vec decay = set1(static_cast<float>(static_cast<double>(s.learning_rate) * t.weight_decay));
  for_each_vector(begin, end, [=](std::int64_t i, int n) {
    const vec g = load_lanes(gradient + i, n) * scale;
    const vec old_m = load_lanes(m + i, n), old_v = load_lanes(v + i, n), w = load_weights(i, n);
    const vec new_m = fma(a1, g - old_m, old_m);
    const vec new_v = fma(a2, fma(g, g, zero() - old_v), old_v);
    const vec step = new_m * rate / fma(sqrt(new_v), inverse2, eps);
    const vec new_w = fnma(decay, w, w) - step;
    store_lanes(m + i, new_m, n);
    store_lanes(v + i, new_v, n);
    store_weights(i, new_w, n);
  });
}

void update_wide(const AdamWTensor& t, const Step& s, std::int64_t begin, std::int64_t end) {
  float* parameter = static_cast<float*>(t.parameter.data);
  update(
      t, [=](std::int64_t i, int n) { return load_lanes(parameter + i, n); }, s, begin, end,
      [=](std::int64_t i, vec w, int n) { store_lanes(parameter + i, w, n); });
}

void update_master(const AdamWTensor& t, const Step& s, std::int64_t begin, std::int64_t end) {
  bf16* parameter = static_cast<bf16*>(t.parameter.data);
  auto* remainder = static_cast<std::int16_t*>(t.remainder.data);
  update(
      t, [=](std::int64_t i, int n) { return load_masters(parameter + i, remainder + i, n); }, s, begin, end,
      [=](std::int64_t i, vec w, int n) { store_masters(parameter + i, remainder + i, w, n); });
}

void update_alone(const AdamWTensor& t, const Step& s, const std::int32_t* random, std::int64_t begin,
                  std::int64_t end) {
  bf16* parameter = static_cast<bf16*>(t.parameter.data);
  const auto load_weights = [=](std::int64_t i, int n) { return load_lanes(parameter + i, n); };
  with_random_bits({random, t.number, t.first / kRandomElements}, begin, end,
                   [=](std::int64_t first, std::int64_t last, const std::uint16_t* halves) {
                     update(t, load_weights, s, first, last, [=](std::int64_t i, vec w, int n) {
                       store_lanes(parameter + i, round_stochastically(w, halves + (i - first)), n);
                     });
                   });
}

void run_blocks(const AdamW& a, const Step& s, int threads) {
  const auto elements = [&](std::int64_t i) {
    return count_elements(a.tensors[static_cast<std::size_t>(i)].parameter);
  };
  for_each_block_parallel(static_cast<std::int64_t>(a.tensors.size()), elements, threads,
                          [&](std::int64_t i, std::int64_t, std::int64_t begin, std::int64_t end) {
                            const FlushSubnormals guard;  // m of a row without gradients shrinks forever
                            const AdamWTensor& t = a.tensors[static_cast<std::size_t>(i)];
                            if (t.parameter.dtype == DType::f32) {
                              update_wide(t, s, begin, end);
                            } else if (t.remainder.data) {
                              update_master(t, s, begin, end);
                            } else {
                              update_alone(t, s, static_cast<const std::int32_t*>(a.random.data), begin, end);
                            }
                          });
}

void run(const Context& context, const AdamW& a) {
  const auto& scalars = *static_cast<const AdamWScalars<float>*>(a.scalars.data);
  if (!__builtin_isfinite(scalars.gradient_scale) || a.tensors.empty()) return;
  const Step step{
      .scale = scalars.gradient_scale,
      .one_minus_beta1 = static_cast<float>(1 - a.beta1),
      .one_minus_beta2 = static_cast<float>(1 - a.beta2),
      .eps = static_cast<float>(a.eps),
      .corrected_learning_rate = static_cast<float>(static_cast<double>(scalars.learning_rate) /
                                                    static_cast<double>(scalars.bias_correction1)),
      .inverse2 = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(scalars.bias_correction2))),
      .learning_rate = scalars.learning_rate};
  run_blocks(a, step, context.threads());
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AdamW, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = adamw_kernels::run};

}  // namespace warpwright::ops
