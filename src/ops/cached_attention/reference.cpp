// The oracle, in fp64 throughout and in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cached_attention/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::cached {
namespace {

void store_row(const Tensor& rows, std::int64_t n, const Tensor& cache, std::int64_t slot) {
  const std::int64_t KH = rows.shape[1], HS = rows.shape[2], block_size = cache.shape[2];
  for (std::int64_t h = 0; h < KH; ++h) {
    for (std::int64_t d = 0; d < HS; ++d) {
      const double value = load_element(rows, n * rows.strides[0] + h * rows.strides[1] + d);
      store_element(cache, ((slot / block_size * KH + h) * block_size + slot % block_size) * HS + d, value);
    }
  }
}

void append_reference(const Context&, const CacheAppend& args) {
  check_slots(args);
  for (std::int64_t n = 0; n < args.k.shape[0]; ++n) {
    const std::int64_t slot = args.slots.as<std::int32_t>()[n];
    if (slot < 0) continue;
    store_row(args.k, n, args.key_cache, slot);
    store_row(args.v, n, args.value_cache, slot);
  }
}

// One query head of one row of q.
struct Query {
  std::int64_t sequence, row, head;
  Seen seen;
};

void attend(const CachedAttention& args, const Query& query) {
  const std::int64_t KH = args.key_cache.shape[1], block_size = args.key_cache.shape[2],
                     HS = args.key_cache.shape[3];
  const std::int64_t key_head = query.head / (args.q.shape[1] / KH);
  const auto* table = args.block_table.as<std::int32_t>() + query.sequence * args.block_table.shape[1];
  const auto place = [&](std::int64_t j) {
    return ((table[j / block_size] * KH + key_head) * block_size + j % block_size) * HS;
  };
  const std::int64_t q = query.row * args.q.strides[0] + query.head * args.q.strides[1];
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = query.seen.first; j < query.seen.last; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < HS; ++d) {
      score += load_element(args.q, q + d) * load_element(args.key_cache, place(j) + d);
    }
    scores.push_back(static_cast<double>(args.scale) * score);
    largest = std::max(largest, scores.back());
  }
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - largest);
  for (std::int64_t d = 0; d < HS; ++d) {
    double sum = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      sum += scores[i] *
             load_element(args.value_cache, place(query.seen.first + static_cast<std::int64_t>(i)) + d);
    }
    store_element(args.out, query.row * args.out.strides[0] + query.head * args.out.strides[1] + d,
                  scores.empty() ? 0 : sum / total);
  }
}

// Stores row n as key j of a sequence.
void append(const CachedAttention& args, std::int64_t sequence, std::int64_t n, std::int64_t j) {
  const std::int64_t block_size = args.key_cache.shape[2];
  const auto block =
      args.block_table.as<std::int32_t>()[sequence * args.block_table.shape[1] + j / block_size];
  store_row(args.k, n, args.key_cache, block * block_size + j % block_size);
  store_row(args.v, n, args.value_cache, block * block_size + j % block_size);
}

void attention_reference(const Context&, const CachedAttention& args) {
  check_sequences(args);
  const auto* bounds = args.cu_seqlens.as<std::int32_t>();
  for (std::int64_t s = 0; s < args.block_table.shape[0]; ++s) {
    const std::int64_t queries = bounds[s + 1] - bounds[s], keys = args.lengths.as<std::int32_t>()[s];
    for (std::int64_t i = 0; args.k && i < queries; ++i) append(args, s, bounds[s] + i, keys - queries + i);
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t h = 0; h < args.q.shape[1]; ++h) {
        attend(args, {s, bounds[s] + i, h, keys_seen(i, queries, keys, args.window)});
      }
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CacheAppend, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = cached::append_reference};
WARPWRIGHT_KERNEL(CachedAttention, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = cached::attention_reference};

}  // namespace warpwright::ops
