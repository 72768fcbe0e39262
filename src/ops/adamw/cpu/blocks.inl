// AdamW on a CPU. Memory-bound: 28 bytes per parameter in fp32 (parameter, m and v read and written, gradient
// read), 30 for bf16 with an fp32 master, 24 for bf16 alone. Stores go through the caches, because the line
// was just read and is there. All tensors together form one row of blocks, and each thread takes an equal
// share.
#include "ops/adamw/kernels.hpp"
#include "ops/adamw/rounding.hpp"
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

// Elements [begin, end). weights: a master, the fp32 parameter, or bf16 without a master. The function
// store_weights(i, vector, lanes) stores the new weights.
template <class W, class Store>
inline void update(const AdamWTensor& t, const W* weights, const Step& s, std::int64_t begin,
                   std::int64_t end, const Store& store_weights) {
  const float* gradient = static_cast<const float*>(t.gradient.data);
  float *m = static_cast<float*>(t.m.data), *v = static_cast<float*>(t.v.data);
  const vec scale = set1(s.scale), a1 = set1(s.one_minus_beta1), a2 = set1(s.one_minus_beta2);
  const vec eps = set1(s.eps), rate = set1(s.corrected_learning_rate), inverse2 = set1(s.inverse2);
  const vec decay = set1(static_cast<float>(static_cast<double>(s.learning_rate) * t.weight_decay));
  for_each_vector(begin, end, [=](std::int64_t i, int n) {
    const vec g = load_lanes(gradient + i, n) * scale;
    const vec old_m = load_lanes(m + i, n), old_v = load_lanes(v + i, n), w = load_lanes(weights + i, n);
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
  update(t, parameter, s, begin, end,
         [=](std::int64_t i, vec w, int n) { store_lanes(parameter + i, w, n); });
}

void update_master(const AdamWTensor& t, const Step& s, std::int64_t begin, std::int64_t end) {
  float* master = static_cast<float*>(t.master.data);
  bf16* parameter = static_cast<bf16*>(t.parameter.data);
  update(t, master, s, begin, end, [=](std::int64_t i, vec w, int n) {
    store_lanes(master + i, w, n);
    store_lanes(parameter + i, w, n);
  });
}

#if defined(__AVX512F__)
inline ivec times(ivec a, std::uint32_t b) {  // of the lower halves of 64-bit lanes
  return _mm512_mul_epu32(a, _mm512_set1_epi64(b));
}
inline ivec even_lanes(ivec a, ivec b) {  // a0 b0 a2 b2 …
  return _mm512_unpacklo_epi64(a, b);
}
inline ivec odd_lanes(ivec a, ivec b) {
  return _mm512_unpackhi_epi64(a, b);
}
#else
inline ivec times(ivec a, std::uint32_t b) {
  return _mm256_mul_epu32(a, _mm256_set1_epi64x(b));
}
inline ivec even_lanes(ivec a, ivec b) {
  return _mm256_unpacklo_epi64(a, b);
}
inline ivec odd_lanes(ivec a, ivec b) {
  return _mm256_unpackhi_epi64(a, b);
}
#endif

// Philox4x32-10 of kBlocks blocks at once, one in each 64-bit lane: 16 bits for each of
// kRandomElements · kBlocks elements. runtime/philox.hpp computes one block, but an ISA file must not
// instantiate its functions.
constexpr int kBlocks = kLanes / 2;
struct RandomBits {
  alignas(64) std::uint16_t halves[kRandomElements * kBlocks];
};

inline void draw(RandomBits& bits, const std::int32_t* random, std::uint32_t tensor, std::int64_t block) {
  using Lanes = std::uint64_t __attribute__((vector_size(sizeof(ivec))));
  // Even lanes hold the first blocks, because they are stored first. The upper halves are never read.
  Lanes c0{}, c1 = Lanes{} + tensor, c2 = Lanes{} + kRounding;
  Lanes c3 = Lanes{} + static_cast<std::uint32_t>(random[2]);
  for (int b = 0; b < kBlocks; ++b) c0[b] = static_cast<std::uint64_t>(b / 2 + b % 2 * (kBlocks / 2));
  c0 += static_cast<std::uint64_t>(block);
  std::uint32_t k0 = static_cast<std::uint32_t>(random[0]), k1 = static_cast<std::uint32_t>(random[1]);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const Lanes p0 = reinterpret_cast<Lanes>(times(reinterpret_cast<ivec>(c0), 0xD2511F53u));
    const Lanes p1 = reinterpret_cast<Lanes>(times(reinterpret_cast<ivec>(c2), 0xCD9E8D57u));
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0;
  }
  const ivec low = reinterpret_cast<ivec>((c0 & 0xffffffffu) | (c1 << 32));
  const ivec high = reinterpret_cast<ivec>((c2 & 0xffffffffu) | (c3 << 32));
  const ivec first = even_lanes(low, high), second = odd_lanes(low, high);
  __builtin_memcpy(bits.halves, &first, sizeof first);
  __builtin_memcpy(bits.halves + kRandomElements * kBlocks / 2, &second, sizeof second);
}

// The same as stochastically_rounded().
inline vec round_stochastically(vec w, const std::uint16_t* random) {
  using Words = std::uint32_t __attribute__((vector_size(sizeof(vec))));
  using Halves = std::uint16_t __attribute__((vector_size(sizeof(vec) / 2)));
  Halves halves;
  __builtin_memcpy(&halves, random, sizeof halves);
  const Words bits = reinterpret_cast<Words>(w);
  const Words rounded = (bits + __builtin_convertvector(halves, Words)) & 0xffff0000u;
  const Words beyond = reinterpret_cast<Words>((bits & 0x7fffffffu) > kLargestFinite);
  return reinterpret_cast<vec>((bits & beyond) | (rounded & ~beyond));
}

void update_alone(const AdamWTensor& t, const Step& s, const std::int32_t* random, std::int64_t begin,
                  std::int64_t end) {
  bf16* parameter = static_cast<bf16*>(t.parameter.data);
  constexpr std::int64_t kElements = kRandomElements * kBlocks;
  static_assert(kElementwiseBlock % kElements == 0);  // begin is a multiple
  for (std::int64_t first = begin; first < end; first += kElements) {
    RandomBits bits;
    draw(bits, random, t.number, (t.first + first) / kRandomElements);
    const std::uint16_t* halves = bits.halves;
    const std::int64_t last = end - first < kElements ? end : first + kElements;
    update(t, parameter, s, first, last, [=](std::int64_t i, vec w, int n) {
      store_lanes(parameter + i, round_stochastically(w, halves + (i - first)), n);
    });
  }
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
                            } else if (t.master.data) {
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
