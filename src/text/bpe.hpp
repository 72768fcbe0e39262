// Byte-pair merges: the table of ranked pairs, and the merging of one word.
//
// The rule: while any two neighbours have a merge, apply the merge of lowest rank, and the leftmost of equal
// ones (openai/gpt-2, encoder.py; Hugging Face tokenizers, models/bpe/word.rs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace warpwright::text {

using TokenId = std::uint32_t;

struct MergePair {
  TokenId left, right;
  bool operator==(const MergePair&) const = default;
};

// Maps a pair of ids to its merge. Open addressing, at most half full, so most look-ups touch one cache line.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = 0xffffffff;

  struct Merge {
    std::uint32_t rank = kNoRank;  // kNoRank: the pair does not merge
    TokenId result = 0;
  };

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t merges);  // room for this many

  // Adds a merge. If the pair is already in the table, it changes nothing and returns false.
  bool insert(MergePair pair, Merge merge);

  Merge find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };

  static std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(left) << 32) | right;
  }
  std::size_t slot_of(std::uint64_t key) const { return (key * multiplier_) >> shift_; }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  unsigned shift_ = 63;
  // Odd and different in each process, so that no file can choose pairs that fill neighbouring slots.
  std::uint64_t multiplier_ = 1;
};

// Merges words. Keeps its scratch memory between words. Not thread-safe: use one per thread.
class WordMerger {
 public:
  // Merges `ids` in place and returns the number of ids left at the front. O(n log n); at most 2^32 - 2 ids.
  std::size_t merge(const MergeTable& table, std::span<TokenId> ids);

 private:
  std::size_t merge_by_scan(const MergeTable& table, std::span<TokenId> ids);
  std::size_t merge_by_heap(const MergeTable& table, std::span<TokenId> ids);
  void push(const MergeTable& table, std::span<const TokenId> ids, std::uint32_t left);

  std::vector<MergeTable::Merge> merges_;       // of the pair that starts at each position
  std::vector<std::uint32_t> next_, previous_;  // a linked list of the remaining positions
  std::vector<std::uint64_t> heap_;             // rank << 32 | position, the smallest on top
};

}  // namespace warpwright::text
