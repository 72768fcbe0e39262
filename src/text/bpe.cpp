#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "text/keyed_hash.hpp"

namespace warpwright::text {
namespace {

// Up to this length, scanning all pairs for each merge is faster than a heap.
constexpr std::size_t kScanLimit = 48;
constexpr std::uint32_t kNowhere = 0xffffffff;

}  // namespace

MergeTable::MergeTable(std::size_t merges) : slots_(std::bit_ceil(std::max<std::size_t>(2 * merges, 2))) {
  mask_ = slots_.size() - 1;
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots_.size()));
  multiplier_ = hash_key() | 1;
}

bool MergeTable::insert(MergePair pair, Merge merge) {
  const std::uint64_t key = key_of(pair.left, pair.right);
  std::size_t i = slot_of(key);
  while (slots_[i].key != kEmpty) {
    if (slots_[i].key == key) return false;
    i = (i + 1) & mask_;
  }
  slots_[i] = {key, merge};
  return true;
}

std::size_t WordMerger::merge(const MergeTable& table, std::span<TokenId> ids) {
  if (ids.size() < 2) return ids.size();
  return ids.size() <= kScanLimit ? merge_by_scan(table, ids) : merge_by_heap(table, ids);
}

std::size_t WordMerger::merge_by_scan(const MergeTable& table, std::span<TokenId> ids) {
  std::size_t count = ids.size();
  merges_.resize(kScanLimit);
  for (std::size_t i = 0; i + 1 < count; ++i) merges_[i] = table.find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges_[i].rank < merges_[best].rank) best = i;
    }
    if (merges_[best].rank == MergeTable::kNoRank) break;
    ids[best] = merges_[best].result;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) merges_[i] = merges_[i + 1];
    if (best + 1 < count) merges_[best] = table.find(ids[best], ids[best + 1]);
    if (best > 0) merges_[best - 1] = table.find(ids[best - 1], ids[best]);
  }
  return count;
}

// Looks up the pair that starts at `left` and, if it merges, appends it to the heap's array. A heap entry is
// valid only while its rank equals the one in merges_, since a merge changes or removes the neighbouring
// pairs.
void WordMerger::push(const MergeTable& table, std::span<const TokenId> ids, std::uint32_t left) {
  const std::uint32_t right = next_[left];
  merges_[left] = right == kNowhere ? MergeTable::Merge{} : table.find(ids[left], ids[right]);
  if (merges_[left].rank == MergeTable::kNoRank) return;
  heap_.push_back((static_cast<std::uint64_t>(merges_[left].rank) << 32) | left);
}

std::size_t WordMerger::merge_by_heap(const MergeTable& table, std::span<TokenId> ids) {
  if (ids.size() >= kNowhere) {
    throw Error("a single word is over 4 GiB long", "tokenizer", "break the text with white space");
  }
  const auto count = static_cast<std::uint32_t>(ids.size());
  merges_.resize(count);
  next_.resize(count);
  previous_.resize(count);
  std::iota(next_.begin(), next_.end(), 1u);
  next_.back() = kNowhere;
  std::iota(previous_.begin(), previous_.end(), kNowhere);  // kNowhere, 0, 1, …
  heap_.clear();
  for (std::uint32_t i = 0; i < count; ++i) push(table, ids, i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const auto push_up = [&](std::uint32_t left) {
    const std::size_t before = heap_.size();
    push(table, ids, left);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const std::uint64_t entry = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<std::uint32_t>(entry);
    if (merges_[left].rank != entry >> 32) continue;
    const std::uint32_t right = next_[left];
    ids[left] = merges_[left].result;
    merges_[right].rank = MergeTable::kNoRank;
    next_[left] = next_[right];
    if (next_[left] != kNowhere) previous_[next_[left]] = left;
    push_up(left);
    if (previous_[left] != kNowhere) push_up(previous_[left]);
  }
  std::size_t left_over = 0;
  for (std::uint32_t i = 0; i != kNowhere; i = next_[i]) ids[left_over++] = ids[i];
  return left_over;
}

}  // namespace warpwright::text
