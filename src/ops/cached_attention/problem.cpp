#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/cached_attention/kernels.hpp"
#include "ops/heads.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kAppendName = "cache.append";
constexpr std::string_view kAttentionName = "cached_attention.forward";
constexpr std::int64_t kMostNumbers = std::numeric_limits<std::int32_t>::max();

// The shape (blocks, KH, block_size, HS) of both caches.
Shape require_caches(std::string_view operation, const Tensor& keys, const Tensor& values, DType dtype) {
  require(keys.shape.rank() == 4 && keys.elements() > 0, operation,
          "key_cache must be (blocks, KH, block_size, HS) with no empty axis");
  require_tensor(operation, "key_cache", keys, dtype, keys.shape);
  require_tensor(operation, "value_cache", values, dtype, keys.shape);
  require(keys.shape[0] * keys.shape[2] <= kMostNumbers, operation, "more places than slots can count");
  return keys.shape;
}

bool cache_is_aligned(const Tensor& cache) {
  return begin_at_packs(cache) && cache.shape[3] * static_cast<std::int64_t>(size_of(cache.dtype)) % 16 == 0;
}

}  // namespace

CacheAppendProblem CacheAppend::problem() const {
  require(k.shape.rank() == 3, kAppendName, "k must be (N, KH, HS)");
  const Shape cache = require_caches(kAppendName, key_cache, value_cache, k.dtype);
  const Shape rows{k.shape[0], cache[1], cache[3]};
  require(rows[0] * rows[1] <= kMostNumbers, kAppendName, "more rows and heads than 31 bits can count");
  require_heads(kAppendName, "k", k, k.dtype, rows);
  require_heads(kAppendName, "v", v, k.dtype, rows);
  require_tensor(kAppendName, "slots", slots, DType::i32, {rows[0]});
  return {.N = rows[0],
          .KH = rows[1],
          .HS = rows[2],
          .places = cache[0] * cache[2],
          .dtype = k.dtype,
          .aligned = heads_begin_at_packs(k) && heads_begin_at_packs(v) && cache_is_aligned(key_cache) &&
                     begin_at_packs(value_cache)};
}

CachedAttentionProblem CachedAttention::problem() const {
  require(q.shape.rank() == 3 && q.shape[1] > 0, kAttentionName, "q must be (N, NH, HS) with NH ≥ 1");
  const Shape cache = require_caches(kAttentionName, key_cache, value_cache, q.dtype);
  const std::int64_t N = q.shape[0], NH = q.shape[1], KH = cache[1], HS = cache[3];
  require(NH % KH == 0, kAttentionName,
          fmt::format("the {} heads of the cache must divide the {} of q", KH, NH));
  require_heads(kAttentionName, "q", q, q.dtype, {N, NH, HS});
  require_heads(kAttentionName, "out", out, q.dtype, {N, NH, HS});
  require(block_table.shape.rank() == 2, kAttentionName, "block_table must be (S, most blocks)");
  const std::int64_t S = block_table.shape[0];
  require_tensor(kAttentionName, "block_table", block_table, DType::i32, block_table.shape);
  require_tensor(kAttentionName, "cu_seqlens", cu_seqlens, DType::i32, {S + 1});
  require_tensor(kAttentionName, "lengths", lengths, DType::i32, {S});
  const std::int64_t max_keys = block_table.shape[1] * cache[2];
  require(std::max(N * NH, max_keys) <= kMostNumbers, kAttentionName,
          "more rows and heads, or keys, than 31 bits can count");
  require(window >= 0 && window <= kMostNumbers, kAttentionName, "window must be 0 or a number of 31 bits");
  const bool appends = k || v;
  if (appends) {
    require_heads(kAttentionName, "k", k, q.dtype, {N, KH, HS});
    require_heads(kAttentionName, "v", v, q.dtype, {N, KH, HS});
  }
  return {.sequences = S,
          .N = N,
          .NH = NH,
          .KH = KH,
          .HS = HS,
          .block_size = cache[2],
          .max_keys = max_keys,
          .window = window,
          .dtype = q.dtype,
          .appends = appends,
          .wide = cache[0] * cache[1] * cache[2] > kMostNumbers,
          .aligned = heads_begin_at_packs(q) && heads_begin_at_packs(out) && cache_is_aligned(key_cache) &&
                     begin_at_packs(value_cache) &&
                     (!appends || (heads_begin_at_packs(k) && heads_begin_at_packs(v)))};
}

void cached::check_slots(const CacheAppend& args) {
  const std::int64_t places = args.key_cache.shape[0] * args.key_cache.shape[2];
  const auto* slots = args.slots.as<std::int32_t>();
  for (std::int64_t n = 0; n < args.slots.shape[0]; ++n) {
    if (slots[n] < places) continue;
    require(false, kAppendName, fmt::format("row {} has the slot {}, the cache has {}", n, slots[n], places));
  }
}

void cached::check_sequences(const CachedAttention& args) {
  const std::int64_t S = args.block_table.shape[0], table = args.block_table.shape[1];
  const std::int64_t blocks = args.key_cache.shape[0], block_size = args.key_cache.shape[2];
  const auto* bounds = args.cu_seqlens.as<std::int32_t>();
  const auto* lengths = args.lengths.as<std::int32_t>();
  require(bounds[0] == 0, kAttentionName, "cu_seqlens must begin with 0");
  for (std::int64_t s = 0; s < S; ++s) {
    require(bounds[s] <= bounds[s + 1] && bounds[s + 1] <= args.q.shape[0], kAttentionName,
            "cu_seqlens must ascend to at most N");
    if (lengths[s] < bounds[s + 1] - bounds[s] || lengths[s] > table * block_size) {
      require(false, kAttentionName,
              fmt::format("sequence {} has {} keys, {} queries and room for {}", s, lengths[s],
                          bounds[s + 1] - bounds[s], table * block_size));
    }
    for (std::int64_t b = 0; b * block_size < lengths[s]; ++b) {
      const std::int32_t block = args.block_table.as<std::int32_t>()[s * table + b];
      if (block >= 0 && block < blocks) continue;
      require(false, kAttentionName,
              fmt::format("sequence {} has the block {}, the cache has {}", s, block, blocks));
    }
  }
}

// The scores of a span; the query, the sums and the softmax of each head of a group.
std::int64_t cached::scratch_floats(std::int64_t group, std::int64_t HS) {
  return padded_head(kSpan + group * (2 * padded_head(HS) + 2));
}
std::size_t cached::workspace(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(device.threads * scratch_floats(p.NH / p.KH, p.HS)) * sizeof(float);
}

std::string CacheAppendProblem::describe() const {
  return fmt::format("N={} KH={} HS={} into {} places {}{}", N, KH, HS, places, name_of(dtype),
                     unaligned_note(aligned));
}
double CacheAppendProblem::bytes() const {
  return 4.0 * static_cast<double>(N * KH * HS) * static_cast<double>(size_of(dtype)) +
         4.0 * static_cast<double>(N);
}

std::string CachedAttentionProblem::describe() const {
  return fmt::format("S={} N={} NH={} KH={} HS={} keys≤{} blocks of {}{}{}{} {}{}", sequences, N, NH, KH, HS,
                     max_keys, block_size, window > 0 ? fmt::format(" window={}", window) : "",
                     appends ? " appends" : "", wide ? " wide" : "", name_of(dtype), unaligned_note(aligned));
}
double CachedAttentionProblem::flops() const {
  const std::int64_t seen = window > 0 ? std::min(window, max_keys) : max_keys;
  return 4.0 * static_cast<double>(N * NH * HS) * static_cast<double>(seen);
}
double CachedAttentionProblem::bytes() const {
  const std::int64_t seen = window > 0 ? std::min(window, max_keys) : max_keys;
  const std::int64_t appended = appends ? N * KH * HS : 0;
  return 2.0 * static_cast<double>(size_of(dtype)) *
         static_cast<double>(sequences * seen * KH * HS + N * NH * HS + appended);
}

}  // namespace warpwright::ops
