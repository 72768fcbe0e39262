// Attention forward on a CPU, one tile of kBlock queries × kBlock keys at a time. Compute-bound: 4 · HS FLOP
// and one exponential per score.
//   Sᵀ = K·Qᵀ    one query per lane, so that the softmax's maxima and sums are vertical
//   out = P·V    one element of the head per lane; the sums are rescaled while they are loaded
// K and V of a tile are packed as fp32 rows, Q as its transpose times scale · log2 e. For a tile that a mask
// or a window cuts, only the vectors of queries that see some key are computed.
//
// GFLOP/s on one core of a Sapphire Rapids class machine (196 GFLOP/s of fp32 FMA), fp32, causal:
//   HS=64 T=1024  AVX-512 112 (57%)  AVX2 78        HS=32 T=1024  AVX-512 103     HS=128 T=1024  AVX-512 102
//   HS=64 T=64    AVX-512  62        AVX2 50: q, k, v and out, one page per row, come from beyond L2
#include "ops/attention/cpu/few_queries.hpp"
#include "ops/cpu/isa.hpp"

namespace warpwright::ops::attention {
namespace {

inline float scalar(float x) {
  return x;
}
inline float scalar(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

// A thread's tiles (HSp: HS rounded up to a multiple of kLanes). For each query it also keeps the running
// maximum of its scores in units of ln 2, the sum of their exponentials, and the last factor by which that
// sum was multiplied.
struct ForwardTiles {
  std::int64_t ld;      // HSp
  float* q_transposed;  // (HSp, kBlock)
  float *k, *v;         // (kBlock, HSp)
  float* scores;        // (kBlock keys, kBlock queries)
  float* sums;          // (kBlock queries, HSp)
  float *max, *sum, *factor;

  ForwardTiles(float* scratch, std::int64_t HS) : ld(round_up(HS, kLanes)) {
    const auto take = [&](std::int64_t floats) {
      float* start = scratch;
      scratch += floats;
      return start;
    };
    q_transposed = take(ld * kBlock);
    k = take(ld * kBlock);
    v = take(ld * kBlock);
    sums = take(ld * kBlock);
    scores = take(kBlock * kBlock);
    max = take(kBlock);
    sum = take(kBlock);
    factor = take(kBlock);
  }
};

// One step of the online softmax for a vector of queries: replaces these rows of its scores by exponentials.
template <class LaneMask>
inline void softmax_vector(float* scores, Range rows, const LaneMask& mask, float* running_max,
                           float* running_sum, float* factor) {
  const vec hidden = set1(-__builtin_inff());
  const auto score = [&](std::int64_t j) { return mask(j, load(scores + j * kBlock), hidden); };
  const vec before = load(running_max);
  vec largest = before;
  for (std::int64_t j = rows.begin; j < rows.end; ++j) largest = max(largest, score(j));
  // A query that has seen no key keeps −inf. The shift is then 0, so that its exponentials are 0.
  const vec shift = select_less(hidden, largest, largest, zero());
  vec sum = zero();
  for (std::int64_t j = rows.begin; j < rows.end; ++j) {
    const vec p = exp2(score(j) - shift);
    sum = sum + p;
    store(scores + j * kBlock, p);
  }
  const vec rescale = exp2(before - shift);
  store(running_max, largest);
  store(running_sum, fma(load(running_sum), rescale, sum));
  store(factor, rescale);
}

// Adds the bias, in units of ln 2, to the scores of a tile's queries [q0, …) and keys [k0, …). Scores of keys
// that are not visible become −inf.
template <class T>
inline void add_pairs(const Pairs<T>& pairs, std::int64_t q0, std::int64_t queries, std::int64_t k0,
                      std::int64_t keys, float* scores) {
  for (std::int64_t i = 0; i < queries; ++i) {
    const T* bias = pairs.bias ? pairs.bias + (q0 + i) * pairs.ld_bias + k0 : nullptr;
    const std::uint8_t* visible = pairs.visible ? pairs.visible + (q0 + i) * pairs.ld_visible + k0 : nullptr;
    for (std::int64_t j = 0; j < keys; ++j) {
      float& score = scores[j * kBlock + i];
      if (bias) score += scalar(bias[j]) * kLog2E;
      if (visible && visible[j] == 0) score = -__builtin_inff();
    }
  }
}

inline void softmax_tile(const Band& band, const ForwardTiles& t) {
  for (std::int64_t i = 0; i < band.queries; i += kLanes) {
    const Range keys = band.keys_seen(i, kLanes);
    with_mask(band, i, keys, [&](const auto& mask) {
      softmax_vector(t.scores + i, keys, mask, t.max + i, t.sum + i, t.factor + i);
    });
  }
}

inline void add_values_tile(const Band& band, const ForwardTiles& t) {
  const std::int64_t step = band.masks() ? kRowGroup : kBlock;
  for (std::int64_t i = 0; i < band.queries; i += step) {
    const Range keys = band.keys_seen(i, step);
    product<Layout::columns>(round_up(at_most(step, band.queries - i), kRowGroup), t.ld / kLanes, keys.size(),
                             {t.scores + keys.begin * kBlock + i, kBlock}, {t.v + keys.begin * t.ld, t.ld},
                             t.sums + i * t.ld, t.ld, Start::scale, t.factor + i);
  }
}

template <class T>
inline void write_block(const ForwardTiles& t, std::int64_t q0, std::int64_t queries,
                        const ForwardHead<T>& head) {
  for (std::int64_t i = 0; i < queries; ++i) {
    const vec inverse = set1(t.sum[i] == 0 ? 0 : 1 / t.sum[i]);
    for_each_vector(0, head.HS, [&](std::int64_t d, int lanes) {
      store_lanes(head.out[q0 + i] + d, load(t.sums + i * t.ld + d) * inverse, lanes);
    });
    if (head.lse) head.lse[q0 + i] = Softmax{t.max[i], t.sum[i]}.lse();
  }
}

template <class T>
inline void forward_block(const ForwardHead<T>& head, std::int64_t q0, float* scratch) {
  const ForwardTiles t(scratch, head.HS);
  const std::int64_t queries = at_most(kBlock, head.sequence.queries - q0);
  const std::int64_t padded = round_up(queries, kLanes);
  pack(head.q.from(q0), queries, head.HS, t.sums, t.ld, padded);
  pack_transposed(t.sums, t.ld, padded, head.scale * kLog2E, t.q_transposed);
  clear(t.sums, padded * t.ld);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    store(t.max + i, set1(-__builtin_inff()));
    store(t.sum + i, zero());
  }
  const Range keys = head.sequence.keys_seen(q0, queries);
  for (std::int64_t k0 = first_tile(keys); k0 < keys.end; k0 += kBlock) {
    const Band band = band_of(head.sequence, q0, queries, k0);
    pack(head.k.from(k0), band.nk, head.HS, t.k, t.ld, round_up(band.nk, kRowGroup));
    scores_tile(band, head.HS, {t.k, t.ld}, t.q_transposed, t.scores);
    if (head.pairs) add_pairs(head.pairs, q0, queries, k0, band.nk, t.scores);
    softmax_tile(band, t);
    pack(head.v.from(k0), band.nk, head.HS, t.v, t.ld, band.nk);
    add_values_tile(band, t);
  }
  write_block(t, q0, queries, head);
}

template <class T>
void run_forward(const Context& context, const AttentionForward& a) {
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t per_thread = forward_scratch(a.q.shape[2]);
  for_each_query_block<T>(context, a, kBlock, [&](const ForwardHead<T>& head, std::int64_t q0, int thread) {
    float* own = scratch + thread * per_thread;
    head.sequence.queries > kFewQueries || head.pairs ? forward_block(head, q0, own)
                                                      : forward_queries(head, own);
  });
}

void forward(const Context& context, const AttentionForward& args) {
  check_sequences(args);
  args.q.dtype == DType::f32 ? run_forward<float>(context, args) : run_forward<bf16>(context, args);
}

}  // namespace
}  // namespace warpwright::ops::attention

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, kCpu) = {.needs = kThisCpu,
                                             .dtypes = kCpuDTypes,
                                             .run = attention::forward,
                                             .refuse = attention::refuse_large_heads,
                                             .workspace = attention::forward_workspace};

}  // namespace warpwright::ops
