// Attention backward on a CPU, a tile of kBlock queries × kBlock keys at a time; avx2.cpp and avx512.cpp
// compile this body for their registers. Compute-bound: five products, 10 · HS FLOP and one exponential a
// score.
//   Sᵀ = K·Qᵀ, dPᵀ = V·doutᵀ            queries in the lanes
//   dv += Pᵀ·dout, dk += dSᵀ·Q, dq += dS·K   the head's elements in the lanes
// A (sequence, head) is one task: dk and dv are summed in fp32 for all its keys while the blocks of queries
// pass by, dq for one block; so every sum has one owner and one order.
#include <omp.h>

#include "ops/attention/cpu/few_queries.hpp"

namespace warpwright::ops::attention::WARPWRIGHT_ISA {
namespace {

struct BackwardTiles {
  std::int64_t ld;                        // HSp: HS padded to kLanes
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

// For the queries of a vector and the first `rows` keys: p becomes exp2(p − lse), ds becomes p · (ds − d).
template <bool masked>
inline void score_gradients_vector(float* p, float* ds, std::int64_t rows, vec limits, vec lse, vec d) {
  for (std::int64_t j = 0; j < rows; ++j) {
    vec probability = exp2(load(p + j * kBlock) - lse);
    if constexpr (masked) {
      probability = select_less(set1(static_cast<float>(j)), limits, probability, zero());
    }
    store(p + j * kBlock, probability);
    store(ds + j * kBlock, probability * (load(ds + j * kBlock) - d));
  }
}

inline void score_gradients(const Band& band, std::int64_t queries, const BackwardTiles& t) {
  for (std::int64_t i = 0; i < queries; i += kLanes) {
    const vec lse = load(t.lse + i), d = load(t.d + i);
    // To whole groups of keys, as the products over queries read them.
    const std::int64_t rows = round_up(band.keys_seen(i + kLanes - 1), kRowGroup);
    if (band.keys_seen(i) < rows) {
      score_gradients_vector<true>(t.p + i, t.ds + i, rows, band_limits(band, i), lse, d);
    } else {
      score_gradients_vector<false>(t.p + i, t.ds + i, rows, zero(), lse, d);
    }
  }
}

// dv += Pᵀ·dout and dk += dSᵀ·Q
inline void add_key_gradients(const Band& band, std::int64_t queries, const BackwardTiles& t, float* dk,
                              float* dv) {
  const std::int64_t step = band.masks() ? kRowGroup : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const std::int64_t i = band.first_query(j) / kLanes * kLanes;
    const std::int64_t rows = round_up(at_most(step, band.nk - j), kRowGroup);
    const std::int64_t at = j * kBlock + i, to = j * t.ld;
    product<Layout::rows>(rows, t.ld / kLanes, queries - i, {t.p + at, kBlock}, {t.dout + i * t.ld, t.ld},
                          dv + to, t.ld, Start::add);
    product<Layout::rows>(rows, t.ld / kLanes, queries - i, {t.ds + at, kBlock}, {t.q + i * t.ld, t.ld},
                          dk + to, t.ld, Start::add);
  }
}

// dq += dS·K
inline void add_query_gradients(const Band& band, std::int64_t queries, const BackwardTiles& t) {
  const std::int64_t step = band.masks() ? kRowGroup : kBlock;
  for (std::int64_t i = 0; i < queries; i += step) {
    product<Layout::columns>(round_up(at_most(step, queries - i), kRowGroup), t.ld / kLanes,
                             band.keys_seen(i + step - 1), {t.ds + i, kBlock}, {t.k, t.ld}, t.dq + i * t.ld,
                             t.ld, Start::add);
  }
}

// n rows of sums times a factor.
template <class T>
inline void write_rows(const float* sums, std::int64_t ld, std::int64_t n, std::int64_t HS, float factor,
                       Rows<T> to) {
  for (std::int64_t row = 0; row < n; ++row) {
    for_each_vector(0, HS, [&](std::int64_t d, int lanes) {
      store_lanes(to[row] + d, load(sums + row * ld + d) * set1(factor), lanes);
    });
  }
}

inline void clear(float* to, std::int64_t floats) {
  for (std::int64_t i = 0; i < floats; i += kLanes) store(to + i, zero());
}

template <class T>
struct BackwardHead {
  Sequence sequence;
  std::int64_t HS;
  float scale;
  Rows<const T> q, k, v, out, dout;  // from the sequence's first row on
  Rows<T> dq, dk, dv;
  const float* lse;

  // A block of queries, packed.
  void pack_queries(const BackwardTiles& t, std::int64_t q0, std::int64_t queries) const {
    const std::int64_t padded = round_up(queries, kLanes);
    pack(q.from(q0), queries, HS, t.q, t.ld, padded);
    pack(dout.from(q0), queries, HS, t.dout, t.ld, padded);
    pack_transposed(t.q, t.ld, padded, scale * kLog2E, t.q_transposed);
    pack_transposed(t.dout, t.ld, padded, 1, t.dout_transposed);
    for (std::int64_t i = 0; i < padded; ++i) {
      // What sees no key, and padding, has probability 0 everywhere.
      const bool sees = i < queries && lse[q0 + i] != -__builtin_inff();
      t.lse[i] = sees ? lse[q0 + i] * kLog2E : __builtin_inff();
      t.d[i] = i < queries ? dot(t.dout + i * t.ld, out[q0 + i], HS) : 0;
    }
    clear(t.dq, padded * t.ld);
  }

  // sums: dk, then dv, a row for each key.
  void block(const BackwardTiles& t, std::int64_t q0, std::int64_t queries, float* sums) const {
    pack_queries(t, q0, queries);
    const std::int64_t keys = keys_seen_before(sequence, q0 + queries);
    for (std::int64_t k0 = 0; k0 < keys; k0 += kBlock) {
      const std::int64_t nk = at_most(kBlock, keys - k0);
      const Band band = band_of(sequence, q0, k0, nk);
      pack(k.from(k0), nk, HS, t.k, t.ld, round_up(nk, kRowGroup));
      pack(v.from(k0), nk, HS, t.v, t.ld, round_up(nk, kRowGroup));
      scores_tile(band, queries, HS, {t.k, t.ld}, t.q_transposed, t.p);
      scores_tile(band, queries, HS, {t.v, t.ld}, t.dout_transposed, t.ds);
      score_gradients(band, queries, t);
      float* dk_sums = sums + k0 * t.ld;
      add_key_gradients(band, queries, t, dk_sums, dk_sums + round_up(sequence.keys, kRowGroup) * t.ld);
      add_query_gradients(band, queries, t);
    }
    write_rows(t.dq, t.ld, queries, HS, scale, dq.from(q0));
  }

  void run(float* scratch, float* sums) const {
    const BackwardTiles t(scratch, HS);
    const std::int64_t rows = round_up(sequence.keys, kRowGroup);
    clear(sums, 2 * rows * t.ld);
    for (std::int64_t q0 = 0; q0 < sequence.queries; q0 += kBlock) {
      block(t, q0, at_most(kBlock, sequence.queries - q0), sums);
    }
    write_rows(sums, t.ld, sequence.keys, HS, scale, dk);
    write_rows(sums + rows * t.ld, t.ld, sequence.keys, HS, 1, dv);
  }
};

template <class T>
void run_backward(const Context& context, const AttentionBackward& a) {
  const std::int64_t Nq = a.q.shape[0], Nk = a.k.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  const Sequences sequences(a);
  const int threads = context.threads();
  auto* scratch = static_cast<float*>(context.scratch());
  float* all_sums = scratch + threads * backward_scratch(HS);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t task = 0; task < sequences.count * NH; ++task) {
    const std::int64_t head = task % NH;
    const Sequence s = sequences[task / NH];
    const BackwardHead<T> work{s,
                               HS,
                               a.scale,
                               rows_of<const T>(a.q, head, s.first_query),
                               rows_of<const T>(a.k, head, s.first_key),
                               rows_of<const T>(a.v, head, s.first_key),
                               rows_of<const T>(a.out, head, s.first_query),
                               rows_of<const T>(a.dout, head, s.first_query),
                               rows_of<T>(a.dq, head, s.first_query),
                               rows_of<T>(a.dk, head, s.first_key),
                               rows_of<T>(a.dv, head, s.first_key),
                               static_cast<const float*>(a.lse.data) + head * Nq + s.first_query};
    // The sums of a head's sequences do not overlap; where a thread has its own they stay in its cache.
    const std::int64_t per_owner = gradient_sums(Nk, sequences.count, HS);
    float* sums = threads <= NH ? all_sums + omp_get_thread_num() * per_owner
                                : all_sums + head * per_owner + gradient_sums(s.first_key, s.index, HS);
    work.run(scratch + omp_get_thread_num() * backward_scratch(HS), sums);
  }
}

}  // namespace

void backward(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  args.q.dtype == DType::f32 ? run_backward<float>(context, args) : run_backward<bf16>(context, args);
}

}  // namespace warpwright::ops::attention::WARPWRIGHT_ISA
