// Muon's element-wise operations on a CPU. Memory-bound; bytes per element:
//   momentum  16 (gradient and m read and written)
//   scale     8 in fp32, 6 to bf16
//   update    12 in fp32, 10 for bf16 with its master, 6 for bf16 alone
#include "ops/adamw/cpu/master.hpp"
#include "ops/adamw/cpu/rounding.hpp"
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/muon/muon.hpp"

namespace warpwright::ops {
namespace {

using namespace simd;

// Calls f(begin, end) for blocks of `count` elements, on several threads.
template <class F>
void for_each_block_of(std::int64_t count, int threads, const F& f) {
  for_each_block_parallel(
      1, [=](std::int64_t) { return count; }, threads,
      [&](std::int64_t, std::int64_t, std::int64_t begin, std::int64_t end) {
        const FlushSubnormals guard;  // m of a row without gradients shrinks forever
        f(begin, end);
      });
}

const AdamWScalars<float>& scalars_of(const Tensor& scalars) {
  return *static_cast<const AdamWScalars<float>*>(scalars.data);
}

void run_momentum(const Context& context, const MuonMomentum& args) {
  const float gradient_scale = scalars_of(args.scalars).gradient_scale;
  if (!__builtin_isfinite(gradient_scale)) return;
  float *gradient = static_cast<float*>(args.gradient.data), *m = static_cast<float*>(args.m.data);
  const vec scale = set1(gradient_scale), rest = set1(static_cast<float>(1 - args.momentum));
  for_each_block_of(count_elements(args.m), context.threads(), [=](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [=](std::int64_t i, int n) {
      const vec g = load_lanes(gradient + i, n) * scale, old_m = load_lanes(m + i, n);
      const vec new_m = fma(rest, g - old_m, old_m);
      store_lanes(m + i, new_m, n);
      store_lanes(gradient + i, fma(rest, g - new_m, new_m), n);
    });
  });
}

template <class T>
void scale_to(const MuonScale& args, float by, int threads) {
  const float* x = static_cast<const float*>(args.x.data);
  T* out = static_cast<T*>(args.out.data);
  const vec factor = set1(by);
  for_each_block_of(count_elements(args.x), threads, [=](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end,
                    [=](std::int64_t i, int n) { store_lanes(out + i, load_lanes(x + i, n) * factor, n); });
  });
}

void run_scale(const Context& context, const MuonScale& args) {
  const auto* norm = static_cast<const float*>(args.norm.data);
  const double factor = norm ? args.factor / (static_cast<double>(*norm) + kMuonEps) : args.factor;
  const float by = static_cast<float>(factor);
  args.out.dtype == DType::f32 ? scale_to<float>(args, by, context.threads())
                               : scale_to<bf16>(args, by, context.threads());
}

// w −= rate · x + decay · w
struct Step {
  float rate, decay;
};

// Elements [begin, end). The function load_weights(i, lanes) returns the weights: masters, fp32 parameters,
// or bf16 ones without masters. store_weights(i, vector, lanes) stores the new ones.
template <class Load, class X, class Store>
inline void update(const Load& load_weights, const X* x, const Step& s, std::int64_t begin, std::int64_t end,
                   const Store& store_weights) {
  const vec rate = set1(s.rate), decay = set1(s.decay);
  for_each_vector(begin, end, [=](std::int64_t i, int n) {
    const vec w = load_weights(i, n);
    store_weights(i, fnma(rate, load_lanes(x + i, n), fnma(decay, w, w)), n);
  });
}

void update_wide(const MuonUpdate& a, const Step& s, std::int64_t begin, std::int64_t end) {
  float* parameter = static_cast<float*>(a.parameter.data);
  update([=](std::int64_t i, int n) { return load_lanes(parameter + i, n); },
         static_cast<const float*>(a.x.data), s, begin, end,
         [=](std::int64_t i, vec w, int n) { store_lanes(parameter + i, w, n); });
}

void update_master(const MuonUpdate& a, const Step& s, std::int64_t begin, std::int64_t end) {
  using namespace adamw_kernels;
  bf16* parameter = static_cast<bf16*>(a.parameter.data);
  auto* remainder = static_cast<std::int16_t*>(a.remainder.data);
  update([=](std::int64_t i, int n) { return load_masters(parameter + i, remainder + i, n); },
         static_cast<const bf16*>(a.x.data), s, begin, end,
         [=](std::int64_t i, vec w, int n) { store_masters(parameter + i, remainder + i, w, n); });
}

void update_alone(const MuonUpdate& a, const Step& s, std::int64_t begin, std::int64_t end) {
  bf16* parameter = static_cast<bf16*>(a.parameter.data);
  const auto load_weights = [=](std::int64_t i, int n) { return load_lanes(parameter + i, n); };
  adamw_kernels::with_random_bits(
      {static_cast<const std::int32_t*>(a.random.data), a.number, 0}, begin, end,
      [=, &a](std::int64_t first, std::int64_t last, const std::uint16_t* halves) {
        update(load_weights, static_cast<const bf16*>(a.x.data), s, first, last,
               [=](std::int64_t i, vec w, int n) {
                 w = adamw_kernels::round_stochastically(w, halves + (i - first));
                 store_lanes(parameter + i, w, n);
               });
      });
}

void run_update(const Context& context, const MuonUpdate& a) {
  const AdamWScalars<float>& scalars = scalars_of(a.scalars);
  if (!__builtin_isfinite(scalars.gradient_scale)) return;
  const double learning_rate = static_cast<double>(scalars.learning_rate);
  const Step step{.rate = static_cast<float>(learning_rate * a.factor),
                  .decay = static_cast<float>(learning_rate * a.weight_decay)};
  for_each_block_of(count_elements(a.parameter), context.threads(),
                    [&](std::int64_t begin, std::int64_t end) {
                      if (a.parameter.dtype == DType::f32) {
                        update_wide(a, step, begin, end);
                      } else if (a.remainder.data) {
                        update_master(a, step, begin, end);
                      } else {
                        update_alone(a, step, begin, end);
                      }
                    });
}

}  // namespace

WARPWRIGHT_KERNEL(MuonMomentum, kCpu) = {
    .needs = kThisCpu, .dtypes = DTypes{DType::f32}, .run = run_momentum};
WARPWRIGHT_KERNEL(MuonScale, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = run_scale};
WARPWRIGHT_KERNEL(MuonUpdate, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = run_update};

}  // namespace warpwright::ops
