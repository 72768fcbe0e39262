// Shared by the kernels.
#pragma once

#include "ops/cached_attention/cached_attention.hpp"

namespace warpwright::ops::cached {

// Throws Error for slots, or for tables, offsets and lengths, that do not fit. Every CPU variant calls them
// first.
void check_slots(const CacheAppend& args);
void check_sequences(const CachedAttention& args);

// For the kernels of a CPU: the keys that run at once, a head in whole vectors, and the scratch of a thread.
inline constexpr std::int64_t kSpan = 64;
constexpr std::int64_t padded_head(std::int64_t HS) {
  return (HS + 15) / 16 * 16;
}
std::int64_t scratch_floats(std::int64_t group, std::int64_t HS);
std::size_t workspace(const CachedAttentionProblem& problem, const DeviceInfo& device);

// The keys that query i of a sequence sees: [first, last).
struct Seen {
  std::int64_t first, last;
};
constexpr Seen keys_seen(std::int64_t i, std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t last = i + keys - queries + 1;
  return {window > 0 && last > window ? last - window : 0, last};
}

}  // namespace warpwright::ops::cached
