// A cache of keys and values in blocks, and attention of a few new queries of each sequence to it.
//   append     cache[slots[n]] = k[n], v[n] for every row n whose slot is not negative
//   attention  out_i = Σ_j softmax_j(scale · q_i·k_j) v_j over the keys j that query i sees
// Source: W. Kwon et al., "PagedAttention", arXiv:2309.06180; T. Dao et al., "Flash-Decoding", 2023. There is
// no backward.
//
// Cache. Both caches are (blocks, KH, block_size, HS), so that a head's keys of a block are adjacent. Slot s
// is place s mod block_size of block s / block_size. Key j of a sequence is in place j mod block_size of the
// block block_table[sequence, j / block_size].
//
// Heads. KH divides NH: query head h sees key head h / (NH / KH).
//
// Sequences. Sequence s has the queries [cu_seqlens[s], cu_seqlens[s+1]) and lengths[s] keys, which include
// those of the queries themselves. Causal: of Lq queries and Lk keys, query i sees key j if j ≤ i + Lk − Lq.
// With a window W > 0 it sees only the last W of these. If a query sees no key, its out is 0; if all
// its scores are −∞, its out is NaN. The queries may
// end before N; the rows after the last sequence are neither read nor written. A captured launch thus serves
// every batch that fits.
//
// New keys. With k and v, their row n is the key and the value of query n: the last Lq of its sequence's
// keys. They are read from there and stored in their places of the cache, which no other sequence may have.
// Without k and v, the cache has them already. Where kernels overlap (runtime/overlap.hpp), a kernel with k
// and v reads the older keys and the integers before it waits: no kernel that runs meanwhile may write them.
//
// Layout. The rows and heads of q, k, v and out may be strided (strides[2] is 1), so that the parts of a qkv
// product are used in place. The caches and the integers are contiguous. No output may overlap an input.
// Throws Error if a tensor does not fit.
//
// Integers. Every CPU variant checks them before it writes anything, and throws Error; only that slots differ
// is not checked. On a GPU, wrong ones give wrong results, but nothing outside the tensors is accessed.
//
// The bits of a sequence's results do not depend on the other sequences, nor on which blocks it has.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct CacheAppendProblem {
  std::int64_t N = 0, KH = 0, HS = 0, places = 0;  // places: blocks · block_size
  DType dtype = DType::f32;
  bool aligned = true;  // rows and heads begin at multiples of 16 bytes

  bool operator==(const CacheAppendProblem&) const = default;
  std::string describe() const;
  double flops() const { return 0; }
  double bytes() const;
};

struct CacheAppend {
  using Problem = CacheAppendProblem;

  Tensor k, v;                    // (N, KH, HS)
  Tensor slots;                   // (N) int32, distinct ones below blocks · block_size; negative: leave out
  Tensor key_cache, value_cache;  // (blocks, KH, block_size, HS) of the same dtype

  template <class F>
  void visit(F&& f) {
    f("k", k, Access::read);
    f("v", v, Access::read);
    f("slots", slots, Access::read);
    f("key_cache", key_cache, Access::update);
    f("value_cache", value_cache, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct CachedAttentionProblem {
  std::int64_t sequences = 0, N = 0, NH = 0, KH = 0, HS = 0, block_size = 0;
  std::int64_t max_keys = 0;  // of a sequence: what a row of the block table can hold
  std::int64_t window = 0;
  DType dtype = DType::f32;
  bool appends = false;  // with k and v
  bool wide = false;     // 31 bits cannot count the cache's places of all heads
  bool aligned = true;   // rows and heads begin at multiples of 16 bytes

  bool operator==(const CachedAttentionProblem&) const = default;
  std::string describe() const;
  double flops() const;  // for full tables and queries in equal numbers
  double bytes() const;
};

struct CachedAttention {
  using Problem = CachedAttentionProblem;

  Tensor q;                       // (N, NH, HS)
  Tensor k, v;                    // (N, KH, HS), to be appended; or neither
  Tensor key_cache, value_cache;  // (blocks, KH, block_size, HS)
  Tensor block_table;             // (S, most blocks of a sequence) int32
  Tensor cu_seqlens;              // (S + 1) int32, ascending from 0 to at most N
  Tensor lengths;                 // (S) int32, at least the queries of each sequence
  Tensor out;                     // (N, NH, HS)
  float scale = 1;
  std::int64_t window = 0;  // 0: none

  template <class F>
  void visit(F&& f) {
    const Access cache = k ? Access::update : Access::read;
    f("q", q, Access::read);
    f("k", k, Access::read);
    f("v", v, Access::read);
    f("key_cache", key_cache, cache);
    f("value_cache", value_cache, cache);
    f("block_table", block_table, Access::read);
    f("cu_seqlens", cu_seqlens, Access::read);
    f("lengths", lengths, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<CacheAppend>& cache_append_op();
const Op<CachedAttention>& cached_attention_op();

inline void cache_append(Context& context, const CacheAppend& args) {
  call(context, cache_append_op(), args);
}
inline void cached_attention(Context& context, const CachedAttention& args) {
  call(context, cached_attention_op(), args);
}

}  // namespace warpwright::ops
