// Attention forward in bf16 by AMX or vdpbf16ps, in tiles of kBlock queries × kBlock keys. kTileGroups tiles
// of queries share a tile of packed keys and values.
//   Sᵀ = K·Qᵀ        fp32, one query per lane, so that the softmax is vertical
//   outᵀ = Vᵀ·Pᵀ     P rounded to bf16, sums in fp32
// With AMX the products take 4 · HS FLOP per score at 16 times the rate of fp32. The exponentials and the
// traffic between AMX tiles and vector registers therefore bound it.
//
// GFLOP/s of AMX on one core of a Sapphire Rapids class machine, causal; in parentheses the AVX-512 kernel in
// bf16:
//   HS=64 T=1024  341 (122)    HS=32 T=1024  218 (101)    HS=128 T=1024  323 (103)    HS=64 T=64  113 (74)
#pragma once

#include "ops/attention/cpu/bf16_tiles.hpp"

namespace warpwright::ops::attention::WARPWRIGHT_ISA {
namespace {

// A block of kBlock queries.
struct ForwardGroup {
  Pair* q;           // Qᵀ: (HS / 2, kBlock)
  float* sums;       // outᵀ: (HS, kBlock)
  float *max, *sum;  // (kBlock), in units of ln 2
};

struct Bf16ForwardTiles {
  ForwardGroup groups[kTileGroups];
  bf16* rows;           // of Q or K: (kBlock, HS)
  Pair* pairs;          // of V: (kBlock / 2, HS)
  bf16* v;              // Vᵀ: (HS, kBlock)
  float* scores;        // (kBlock keys, kBlock queries)
  Pair* probabilities;  // (kBlock / 2, kBlock queries)

  Bf16ForwardTiles(float* scratch, std::int64_t HS) {
    const auto take = [&](std::int64_t floats) {
      float* start = scratch;
      scratch += floats;
      return start;
    };
    for (ForwardGroup& g : groups) {
      g.q = reinterpret_cast<Pair*>(take(HS / 2 * kBlock));
      g.sums = take(HS * kBlock);
      g.max = take(kBlock);
      g.sum = take(kBlock);
    }
    rows = reinterpret_cast<bf16*>(take(HS / 2 * kBlock));
    pairs = reinterpret_cast<Pair*>(take(HS / 2 * kBlock));
    v = reinterpret_cast<bf16*>(take(HS / 2 * kBlock));
    scores = take(kBlock * kBlock);
    probabilities = reinterpret_cast<Pair*>(take(kBlock / 2 * kBlock));
  }
};

// One step of the online softmax for a vector of queries over these rows of the tile, which begin and end at
// multiples of 2. Writes the probabilities as pairs, and 0 for the other rows up to `padded`. Returns the
// factor for the sums so far.
template <class LaneMask>
inline vec softmax_pairs(const float* scores, Range rows, std::int64_t padded, float scale,
                         const LaneMask& mask, float* running_max, float* running_sum, Pair* probabilities) {
  const vec hidden = set1(-__builtin_inff()), c = set1(scale);
  const vec before = load(running_max);
  vec largest = before;
  for (std::int64_t j = rows.begin; j < rows.end; ++j)
    largest = max(largest, mask(j, load(scores + j * kBlock) * c, hidden));
  const vec shift = select_less(hidden, largest, largest, zero());
  const auto probability = [&](std::int64_t j) {
    return exp2(mask(j, fma(load(scores + j * kBlock), c, zero() - shift), hidden));
  };
  vec sum0 = zero(), sum1 = zero();
  const auto write = [&](std::int64_t j, vec even, vec odd) {
    RoundedRows(even, odd).store_pairs(probabilities + j / 2 * kBlock);
  };
  std::int64_t j = 0;
  for (; j < rows.begin; j += 2) write(j, zero(), zero());
  for (; j < rows.end; j += 2) {
    const vec even = probability(j), odd = probability(j + 1);
    sum0 = sum0 + even;
    sum1 = sum1 + odd;
    write(j, even, odd);
  }
  for (; j < padded; j += 2) write(j, zero(), zero());
  // If a query has seen no key, there is nothing to rescale.
  const vec rescale = select_less(hidden, before, exp2(before - shift), set1(1.0f));
  store(running_max, largest);
  store(running_sum, fma(load(running_sum), rescale, sum0 + sum1));
  return rescale;
}

inline void softmax_group(const Band& band, std::int64_t HS, float scale, const Bf16ForwardTiles& t,
                          const ForwardGroup& g) {
  const std::int64_t padded = round_up(band.nk, kTileDepth);
  for (std::int64_t i = 0; i < band.queries; i += kLanes) {
    const Range rows = band.keys_seen(i, kLanes).widened(2);
    const vec rescale = with_mask(band, i, rows, [&](const auto& mask) {
      return softmax_pairs(t.scores + i, rows, padded, scale, mask, g.max + i, g.sum + i,
                           t.probabilities + i);
    });
    if (_mm512_cmp_ps_mask(rescale, set1(1.0f), _CMP_NEQ_UQ) == 0) continue;
    for (std::int64_t d = 0; d < HS; ++d) {
      float* sums = g.sums + d * kBlock + i;
      store(sums, load(sums) * rescale);
    }
  }
}

inline void start_group(const ForwardHead<bf16>& head, std::int64_t q0, std::int64_t queries, bf16* rows,
                        const ForwardGroup& g) {
  const std::int64_t padded = round_up(queries, kTile);
  pack_rows(head.q.from(q0), queries, head.HS, padded, rows);
  transpose_pairs(rows, padded, head.HS / 2, g.q, kBlock);
  clear(g.sums, head.HS * kBlock);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    store(g.max + i, set1(-__builtin_inff()));
    store(g.sum + i, zero());
  }
}

inline void write_group(const ForwardHead<bf16>& head, std::int64_t q0, std::int64_t queries,
                        const ForwardGroup& g) {
  const auto inverse = [&](std::int64_t i) {
    const vec sum = load(g.sum + i);
    return select_less(zero(), sum, set1(1.0f) / sum, sum);  // 0 and NaN are kept
  };
  write_transposed(g.sums, queries, head.HS, inverse, head.out.from(q0));
  for (std::int64_t i = 0; head.lse && i < queries; ++i) head.lse[q0 + i] = Softmax{g.max[i], g.sum[i]}.lse();
}

// Processes the queries of kTileGroups groups from q0 on.
inline void forward_groups(const ForwardHead<bf16>& head, std::int64_t q0, float* scratch) {
  const std::int64_t HS = head.HS;
  const Bf16ForwardTiles t(scratch, HS);
  const std::int64_t end = at_most(q0 + kTileGroups * kBlock, head.sequence.queries);
  const auto group = [&](std::int64_t first) { return t.groups[(first - q0) / kBlock]; };
  for (std::int64_t i = q0; i < end; i += kBlock)
    start_group(head, i, at_most(kBlock, end - i), t.rows, group(i));
  const Range keys = head.sequence.keys_seen(q0, end - q0);
  for (std::int64_t k0 = first_tile(keys); k0 < keys.end; k0 += kBlock) {
    const std::int64_t nk = at_most(kBlock, keys.end - k0);
    const std::int64_t padded = round_up(nk, kTileDepth);
    pack_rows(head.k.from(k0), nk, HS, padded, t.rows);
    pack_pairs(head.v.from(k0), nk, HS, padded, t.pairs);
    transpose_pairs(t.pairs, padded / 2, HS, reinterpret_cast<Pair*>(t.v), kBlock / 2);
    for (std::int64_t i = q0; i < end; i += kBlock) {
      const Band band = band_of(head.sequence, i, at_most(kBlock, end - i), k0);
      if (band.empty()) continue;
      scores_by_tiles(band, HS, t.rows, group(i).q, t.scores);
      softmax_group(band, HS, head.scale * kLog2E, t, group(i));
      add_by_tiles(band, HS, t.v, t.probabilities, group(i).sums);
    }
  }
  for (std::int64_t i = q0; i < end; i += kBlock) write_group(head, i, at_most(kBlock, end - i), group(i));
}

void forward(const Context& context, const AttentionForward& args) {
  check_sequences(args);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t per_thread = tiles_forward_scratch(args.q.shape[2]);
  for_each_query_block<bf16>(context, args, kTileGroups * kBlock,
                             [&](const ForwardHead<bf16>& head, std::int64_t q0, int thread) {
                               float* own = scratch + thread * per_thread;
                               if (head.sequence.queries <= kFewQueries) return forward_queries(head, own);
                               [[maybe_unused]] const TileSession session;
                               forward_groups(head, q0, own);
                             });
}

}  // namespace
}  // namespace warpwright::ops::attention::WARPWRIGHT_ISA
