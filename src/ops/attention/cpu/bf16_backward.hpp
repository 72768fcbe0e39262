// Attention backward in bf16 by AMX or vdpbf16ps, in tiles of kBlock queries × kBlock keys. kTileGroups tiles
// of queries share a tile of packed keys and values. A (sequence, key head) is one task, as in backward.inl.
//   Sᵀ = K·Qᵀ, dPᵀ = V·doutᵀ                     fp32, one query per lane
//   dv += Pᵀ·dout, dk += dSᵀ·Q, dqᵀ += Kᵀ·dSᵀ    P and dS rounded to bf16, sums in fp32
//
// GFLOP/s of AMX on one core of a Sapphire Rapids class machine, causal; in parentheses the AVX-512 kernel in
// bf16:
//   HS=64 T=1024  409 (127)    HS=32 T=1024  298 (111)    HS=128 T=1024  393 (89)    HS=64 T=64  138 (77)
#pragma once

#include "ops/attention/cpu/bf16_tiles.hpp"

namespace warpwright::ops::attention::WARPWRIGHT_ISA {
namespace {

// A block of kBlock queries.
struct BackwardGroup {
  Pair *q_transposed, *dout_transposed;  // (HS / 2, kBlock)
  Pair *q, *dout;                        // (kBlock / 2, HS)
  float* dq;                             // dqᵀ: (HS, kBlock)
  float *lse, *d;                        // (kBlock), from query_sums()
};

struct Bf16BackwardTiles {
  BackwardGroup groups[kTileGroups];
  bf16 *k, *v;         // (kBlock keys, HS)
  Pair* pairs;         // of K: (kBlock / 2, HS)
  bf16* k_transposed;  // (HS, kBlock)
  float *scores, *dp;  // (kBlock keys, kBlock queries)
  bf16 *p, *ds;        // (kBlock keys, kBlock queries)
  Pair* ds_pairs;      // (kBlock / 2, kBlock queries)

  Bf16BackwardTiles(float* scratch, std::int64_t HS) {
    const auto take = [&](std::int64_t floats) {
      float* start = scratch;
      scratch += floats;
      return start;
    };
    const auto take_pairs = [&](std::int64_t pairs_wanted) {
      return reinterpret_cast<Pair*>(take(pairs_wanted));
    };
    const auto take_bf16 = [&](std::int64_t wanted) { return reinterpret_cast<bf16*>(take(wanted / 2)); };
    for (BackwardGroup& g : groups) {
      g.q_transposed = take_pairs(HS / 2 * kBlock);
      g.dout_transposed = take_pairs(HS / 2 * kBlock);
      g.q = take_pairs(HS / 2 * kBlock);
      g.dout = take_pairs(HS / 2 * kBlock);
      g.dq = take(HS * kBlock);
      g.lse = take(kBlock);
      g.d = take(kBlock);
    }
    k = take_bf16(kBlock * HS);
    v = take_bf16(kBlock * HS);
    pairs = take_pairs(HS / 2 * kBlock);
    k_transposed = take_bf16(HS * kBlock);
    scores = take(kBlock * kBlock);
    dp = take(kBlock * kBlock);
    p = take_bf16(kBlock * kBlock);
    ds = take_bf16(kBlock * kBlock);
    ds_pairs = take_pairs(kBlock / 2 * kBlock);
  }
};

// Writes P and dS of keys j and j + 1 for the vector of queries from i on.
inline void write_gradients(const Bf16BackwardTiles& t, std::int64_t j, std::int64_t i, const RoundedRows& p,
                            const RoundedRows& ds) {
  p.store_rows(t.p + j * kBlock + i, t.p + (j + 1) * kBlock + i);
  ds.store_rows(t.ds + j * kBlock + i, t.ds + (j + 1) * kBlock + i);
  ds.store_pairs(t.ds_pairs + j / 2 * kBlock + i);
}

// Computes P and dS of these rows, which begin and end at multiples of 2, for the vector of queries from i
// on.
template <class LaneMask>
inline void score_gradients_rows(const Bf16BackwardTiles& t, std::int64_t i, Range rows, float scale,
                                 const LaneMask& mask, vec lse, vec d) {
  const vec c = set1(scale);
  const auto probability = [&](std::int64_t j) {
    return mask(j, exp2(fma(load(t.scores + j * kBlock + i), c, zero() - lse)), zero());
  };
  const auto dp = [&](std::int64_t j) { return load(t.dp + j * kBlock + i) - d; };
  for (std::int64_t j = rows.begin; j < rows.end; j += 2) {
    const vec p0 = probability(j), p1 = probability(j + 1);
    write_gradients(t, j, i, {p0, p1}, {p0 * dp(j), p1 * dp(j + 1)});
  }
}

inline void score_gradients_group(const Band& band, float scale, const Bf16BackwardTiles& t,
                                  const BackwardGroup& g) {
  const std::int64_t padded = round_up(band.nk, kTileDepth);
  const RoundedRows none(zero(), zero());
  for (std::int64_t i = 0; i < round_up(band.queries, kTileDepth); i += kLanes) {
    // The padding after the last vector with queries is also read; it must be 0.
    const Range rows = i < band.queries ? band.keys_seen(i, kLanes).widened(2) : Range{0, 0};
    const vec lse = load(g.lse + i), d = load(g.d + i);
    for (std::int64_t j = 0; j < rows.begin; j += 2) write_gradients(t, j, i, none, none);
    with_mask(band, i, rows,
              [&](const auto& mask) { score_gradients_rows(t, i, rows, scale, mask, lse, d); });
    for (std::int64_t j = rows.end; j < padded; j += 2) write_gradients(t, j, i, none, none);
  }
}

// dv += Pᵀ·dout and dk += dSᵀ·Q
inline void add_key_gradients(const Band& band, std::int64_t HS, const Bf16BackwardTiles& t,
                              const BackwardGroup& g, float* dk, float* dv) {
  const std::int64_t score_row = kBlock * static_cast<std::int64_t>(sizeof(bf16));
  const std::int64_t pair_row = HS * static_cast<std::int64_t>(sizeof(Pair));
  const std::int64_t step = band.masks() ? 2 * kTile : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const Range queries = band.queries_seeing(j, step).widened(kTileDepth);
    const std::int64_t i = queries.begin, steps = queries.size() / kTileDepth, at = j * kBlock + i;
    const std::int64_t M = (at_most(step, band.nk - j) + kTile - 1) / kTile;
    tile_product(M, HS / kTile, steps, {t.p + at, score_row}, {g.dout + i / 2 * HS, pair_row}, dv + j * HS,
                 HS, true);
    tile_product(M, HS / kTile, steps, {t.ds + at, score_row}, {g.q + i / 2 * HS, pair_row}, dk + j * HS, HS,
                 true);
  }
}

inline void start_group(const BackwardHead<bf16>& head, std::int64_t q0, std::int64_t queries, bf16* rows,
                        const BackwardGroup& g) {
  const std::int64_t HS = head.HS, padded = round_up(queries, kTileDepth);
  pack_rows(head.q.from(q0), queries, HS, padded, rows);
  transpose_pairs(rows, padded, HS / 2, g.q_transposed, kBlock);
  pack_rows(head.dout.from(q0), queries, HS, padded, rows);
  transpose_pairs(rows, padded, HS / 2, g.dout_transposed, kBlock);
  pack_pairs(head.q.from(q0), queries, HS, padded, g.q);
  pack_pairs(head.dout.from(q0), queries, HS, padded, g.dout);
  query_sums(head, q0, queries, padded, g.lse, g.d);
  clear(g.dq, HS * kBlock);
}

// Processes the queries of kTileGroups groups from q0 on.
inline void backward_groups(const BackwardHead<bf16>& head, std::int64_t q0, const Bf16BackwardTiles& t) {
  const std::int64_t HS = head.HS, end = at_most(q0 + kTileGroups * kBlock, head.sequence.queries);
  const auto group = [&](std::int64_t first) { return t.groups[(first - q0) / kBlock]; };
  for (std::int64_t i = q0; i < end; i += kBlock)
    start_group(head, i, at_most(kBlock, end - i), t.k, group(i));
  const Range keys = head.sequence.keys_seen(q0, end - q0);
  for (std::int64_t k0 = first_tile(keys); k0 < keys.end; k0 += kBlock) {
    const std::int64_t nk = at_most(kBlock, keys.end - k0);
    const std::int64_t padded = round_up(nk, kTileDepth);
    pack_rows(head.k.from(k0), nk, HS, padded, t.k);
    pack_rows(head.v.from(k0), nk, HS, padded, t.v);
    pack_pairs(head.k.from(k0), nk, HS, padded, t.pairs);
    transpose_pairs(t.pairs, padded / 2, HS, reinterpret_cast<Pair*>(t.k_transposed), kBlock / 2);
    float* dk = head.sums + k0 * HS;
    for (std::int64_t i = q0; i < end; i += kBlock) {
      const Band band = band_of(head.sequence, i, at_most(kBlock, end - i), k0);
      if (band.empty()) continue;
      scores_by_tiles(band, HS, t.k, group(i).q_transposed, t.scores);
      scores_by_tiles(band, HS, t.v, group(i).dout_transposed, t.dp);
      score_gradients_group(band, head.scale * kLog2E, t, group(i));
      add_key_gradients(band, HS, t, group(i), dk, dk + head.sum_rows() * HS);
      add_by_tiles(band, HS, t.k_transposed, t.ds_pairs, group(i).dq);
    }
  }
  const auto scale = [&](std::int64_t) { return set1(head.scale); };
  for (std::int64_t i = q0; i < end; i += kBlock) {
    write_transposed(group(i).dq, at_most(kBlock, end - i), HS, scale, head.dq.from(i));
  }
}

void backward(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t HS = args.q.shape[2], per_thread = tiles_backward_scratch(HS);
  float* sums = scratch + context.threads() * per_thread;
  for_each_key_head<bf16>(context, args, sums, [&](const KeyHead<bf16>& keys, int thread) {
    [[maybe_unused]] const TileSession session;
    const Bf16BackwardTiles t(scratch + thread * per_thread, HS);
    sum_key_gradients(keys, HS, [&](const BackwardHead<bf16>& head) {
      for (std::int64_t q0 = 0; q0 < head.sequence.queries; q0 += kTileGroups * kBlock)
        backward_groups(head, q0, t);
    });
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::WARPWRIGHT_ISA
