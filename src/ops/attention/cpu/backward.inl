// Attention backward on a CPU, one tile of kBlock queries × kBlock keys at a time. Compute-bound: five
// products, 10 · HS FLOP and one exponential per score.
//   Sᵀ = K·Qᵀ, dPᵀ = V·doutᵀ                 one query per lane
//   dv += Pᵀ·dout, dk += dSᵀ·Q, dq += dS·K   one element of the head per lane
//
// A (sequence, key head) is one task. It sums dk and dv in fp32 for all its keys while the blocks of queries
// pass, of one query head after the other, and dq for one block. Every sum thus has one owner and one order
// for any number of threads.
//
// GFLOP/s on one core of a Sapphire Rapids class machine (196 GFLOP/s of fp32 FMA), fp32, causal:
//   HS=64 T=1024  AVX-512 118 (60%)  AVX2 78        HS=32 T=1024  AVX-512 109     HS=128 T=1024  AVX-512 112
//   HS=64 T=64    AVX-512  66        AVX2 51
#include "ops/attention/cpu/gradients.hpp"
#include "ops/cpu/isa.hpp"

namespace warpwright::ops::attention {
namespace {

struct BackwardTiles {
  std::int64_t ld;                        // HSp: HS rounded up to a multiple of kLanes
  float *q, *dout;                        // (kBlock queries, HSp)
  float *q_transposed, *dout_transposed;  // (HSp, kBlock queries)
  float *k, *v;                           // (kBlock keys, HSp)
  float *p, *ds;                          // (kBlock keys, kBlock queries)
  float* dq;                              // (kBlock queries, HSp)
  float *lse, *d;                         // (kBlock queries): lse in units of ln 2; dout·out

  BackwardTiles(float* scratch, std::int64_t HS) : ld(round_up(HS, kLanes)) {
    const auto take = [&](std::int64_t floats) {
      float* start = scratch;
      scratch += floats;
      return start;
    };
    q = take(ld * kBlock);
    dout = take(ld * kBlock);
    q_transposed = take(ld * kBlock);
    dout_transposed = take(ld * kBlock);
    k = take(ld * kBlock);
    v = take(ld * kBlock);
    dq = take(ld * kBlock);
    p = take(kBlock * kBlock);
    ds = take(kBlock * kBlock);
    lse = take(kBlock);
    d = take(kBlock);
  }
};

// For a vector of queries and these rows of keys: p becomes exp2(p − lse), and ds becomes p · (ds − d).
template <class LaneMask>
inline void score_gradients_vector(float* p, float* ds, Range rows, const LaneMask& mask, vec lse, vec d) {
  for (std::int64_t j = rows.begin; j < rows.end; ++j) {
    const vec probability = mask(j, exp2(load(p + j * kBlock) - lse), zero());
    store(p + j * kBlock, probability);
    store(ds + j * kBlock, probability * (load(ds + j * kBlock) - d));
  }
}

inline void score_gradients(const Band& band, const BackwardTiles& t) {
  for (std::int64_t i = 0; i < band.queries; i += kLanes) {
    const vec lse = load(t.lse + i), d = load(t.d + i);
    // The products over queries read whole groups of keys.
    const Range rows = band.keys_seen(i, kLanes).widened(kRowGroup);
    with_mask(band, i, rows,
              [&](const auto& mask) { score_gradients_vector(t.p + i, t.ds + i, rows, mask, lse, d); });
  }
}

// dv += Pᵀ·dout and dk += dSᵀ·Q
inline void add_key_gradients(const Band& band, const BackwardTiles& t, float* dk, float* dv) {
  const std::int64_t step = band.masks() ? kRowGroup : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const Range queries = band.queries_seeing(j, step);
    const std::int64_t i = queries.begin / kLanes * kLanes, n = queries.end - i;
    const std::int64_t rows = round_up(at_most(step, band.nk - j), kRowGroup);
    const std::int64_t at = j * kBlock + i, to = j * t.ld;
    product<Layout::rows>(rows, t.ld / kLanes, n, {t.p + at, kBlock}, {t.dout + i * t.ld, t.ld}, dv + to,
                          t.ld, Start::add);
    product<Layout::rows>(rows, t.ld / kLanes, n, {t.ds + at, kBlock}, {t.q + i * t.ld, t.ld}, dk + to, t.ld,
                          Start::add);
  }
}

// dq += dS·K
inline void add_query_gradients(const Band& band, const BackwardTiles& t) {
  const std::int64_t step = band.masks() ? kRowGroup : kBlock;
  for (std::int64_t i = 0; i < band.queries; i += step) {
    const Range keys = band.keys_seen(i, step);
    product<Layout::columns>(round_up(at_most(step, band.queries - i), kRowGroup), t.ld / kLanes, keys.size(),
                             {t.ds + keys.begin * kBlock + i, kBlock}, {t.k + keys.begin * t.ld, t.ld},
                             t.dq + i * t.ld, t.ld, Start::add);
  }
}

// Packs a block of queries.
template <class T>
inline void pack_queries(const BackwardHead<T>& head, std::int64_t q0, std::int64_t queries,
                         const BackwardTiles& t) {
  const std::int64_t padded = round_up(queries, kLanes);
  pack(head.q.from(q0), queries, head.HS, t.q, t.ld, padded);
  pack(head.dout.from(q0), queries, head.HS, t.dout, t.ld, padded);
  pack_transposed(t.q, t.ld, padded, head.scale * kLog2E, t.q_transposed);
  pack_transposed(t.dout, t.ld, padded, 1, t.dout_transposed);
  query_sums(head, q0, queries, padded, t.lse, t.d);
  clear(t.dq, padded * t.ld);
}

template <class T>
inline void backward_block(const BackwardHead<T>& head, std::int64_t q0, const BackwardTiles& t) {
  const std::int64_t queries = at_most(kBlock, head.sequence.queries - q0);
  pack_queries(head, q0, queries, t);
  const Range keys = head.sequence.keys_seen(q0, queries);
  for (std::int64_t k0 = first_tile(keys); k0 < keys.end; k0 += kBlock) {
    const Band band = band_of(head.sequence, q0, queries, k0);
    pack(head.k.from(k0), band.nk, head.HS, t.k, t.ld, round_up(band.nk, kRowGroup));
    pack(head.v.from(k0), band.nk, head.HS, t.v, t.ld, round_up(band.nk, kRowGroup));
    scores_tile(band, head.HS, {t.k, t.ld}, t.q_transposed, t.p);
    scores_tile(band, head.HS, {t.v, t.ld}, t.dout_transposed, t.ds);
    score_gradients(band, t);
    float* dk = head.sums + k0 * t.ld;
    add_key_gradients(band, t, dk, dk + head.sum_rows() * t.ld);
    add_query_gradients(band, t);
  }
  write_rows(t.dq, t.ld, queries, head.HS, head.scale, head.dq.from(q0));
}

template <class T>
void run_backward(const Context& context, const AttentionBackward& a) {
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t HS = a.q.shape[2], per_thread = backward_scratch(HS);
  float* sums = scratch + context.threads() * per_thread;
  for_each_key_head<T>(context, a, sums, [&](const KeyHead<T>& keys, int thread) {
    const BackwardTiles t(scratch + thread * per_thread, HS);
    sum_key_gradients(keys, t.ld, [&](const BackwardHead<T>& head) {
      for (std::int64_t q0 = 0; q0 < head.sequence.queries; q0 += kBlock) backward_block(head, q0, t);
    });
  });
}

void backward(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  args.q.dtype == DType::f32 ? run_backward<float>(context, args) : run_backward<bf16>(context, args);
}

}  // namespace
}  // namespace warpwright::ops::attention

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionBackward, kCpu) = {.needs = kThisCpu,
                                              .dtypes = kCpuDTypes,
                                              .run = attention::backward,
                                              .refuse = attention::refuse_large_heads,
                                              .workspace = attention::backward_workspace};

}  // namespace warpwright::ops
