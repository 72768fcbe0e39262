// AdamW on a CPU; avx2.cpp and avx512.cpp compile this body for their registers. Memory-bound: 28 bytes a
// parameter in fp32 (parameter, m and v read and written, gradient read), 30 with bf16 beside an fp32 master.
// Stores go through the caches: a line that was just read is there, and a store past the caches measured
// 20% slower. All tensors together are one row of blocks, of which each thread takes an equal share.
#include "ops/adamw/kernels.hpp"
#include "ops/cpu/elementwise.hpp"

namespace warpwright::ops::adamw_kernels::WARPWRIGHT_ISA {
namespace {

using namespace simd;

struct Step {
  float scale, one_minus_beta1, one_minus_beta2, eps;
  float rate;      // lr / c1
  float inverse2;  // 1 / √c2
  float lr;
};

template <class T>
inline void update(const AdamWTensor& t, const Step& s, std::int64_t begin, std::int64_t end) {
  constexpr bool has_master = sizeof(T) == 2;
  T* parameter = static_cast<T*>(t.parameter.data);
  float* master = static_cast<float*>(has_master ? t.master.data : t.parameter.data);
  const float* gradient = static_cast<const float*>(t.gradient.data);
  float *m = static_cast<float*>(t.m.data), *v = static_cast<float*>(t.v.data);
  const vec scale = set1(s.scale), a1 = set1(s.one_minus_beta1), a2 = set1(s.one_minus_beta2);
  const vec eps = set1(s.eps), rate = set1(s.rate), inverse2 = set1(s.inverse2);
  const vec decay = set1(static_cast<float>(static_cast<double>(s.lr) * t.weight_decay));
  for_each_vector(begin, end, [=](std::int64_t i, int n) {
    const vec g = load_lanes(gradient + i, n) * scale;
    const vec old_m = load_lanes(m + i, n), old_v = load_lanes(v + i, n), w = load_lanes(master + i, n);
    const vec new_m = fma(a1, g - old_m, old_m);
    const vec new_v = fma(a2, fma(g, g, zero() - old_v), old_v);
    const vec step = new_m * rate / fma(sqrt(new_v), inverse2, eps);
    const vec new_w = fnma(decay, w, w) - step;
    store_lanes(m + i, new_m, n);
    store_lanes(v + i, new_v, n);
    store_lanes(master + i, new_w, n);
    if constexpr (has_master) store_lanes(parameter + i, new_w, n);
  });
}

void run_blocks(const AdamW& a, const Step& s, int threads) {
  const auto elements = [&](std::int64_t i) {
    return count_elements(a.tensors[static_cast<std::size_t>(i)].parameter);
  };
  for_each_block_parallel(static_cast<std::int64_t>(a.tensors.size()), elements, threads,
                          [&](std::int64_t i, std::int64_t, std::int64_t begin, std::int64_t end) {
                            const FlushSubnormals guard;  // m of a row without gradients shrinks for ever
                            const AdamWTensor& t = a.tensors[static_cast<std::size_t>(i)];
                            t.parameter.dtype == DType::f32 ? update<float>(t, s, begin, end)
                                                            : update<bf16>(t, s, begin, end);
                          });
}

}  // namespace

void run(const Context& context, const AdamW& a) {
  const auto* schedule = static_cast<const float*>(a.schedule.data);
  const float lr = schedule[0], c1 = schedule[1], c2 = schedule[2], scale = schedule[3];
  if (!__builtin_isfinite(scale) || a.tensors.empty()) return;
  const Step step{scale,
                  static_cast<float>(1 - a.beta1),
                  static_cast<float>(1 - a.beta2),
                  static_cast<float>(a.eps),
                  static_cast<float>(static_cast<double>(lr) / static_cast<double>(c1)),
                  static_cast<float>(1 / __builtin_sqrt(static_cast<double>(c2))),
                  lr};
  run_blocks(a, step, context.threads());
}

}  // namespace warpwright::ops::adamw_kernels::WARPWRIGHT_ISA
