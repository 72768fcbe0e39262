// CacheBlocks: who holds which block of a cache of keys and values.
//
// A block has places for the keys and values of block_size tokens that follow each other. The values in a
// full block depend only on its tokens and on those before them, so sequences that begin with the same tokens
// share its blocks. A block that nobody holds keeps its values until its place is needed. This class only
// keeps accounts; the tensors are the engine's.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace warpwright {

class CacheBlocks {
 public:
  static constexpr std::int32_t kNone = -1;

  CacheBlocks(std::int64_t blocks, std::int64_t block_size);

  std::int64_t block_size() const { return block_size_; }
  // Blocks that nobody holds.
  std::int64_t available() const { return static_cast<std::int64_t>(unheld_.size()); }

  // A block without values, held once; kNone if all are held.
  std::int32_t take();
  // The full blocks in which the cache has a beginning of the tokens, in order. Each is held once more.
  std::vector<std::int32_t> share(std::span<const std::int32_t> tokens);
  // Offers a held block to share(), from now on: `before` is the sequence's block before it (kNone: it is the
  // first), and `tokens` are its own block_size. False if `before` is not offered, or another block already
  // has these tokens; the sequence must then not offer the blocks after it either.
  bool offer(std::int32_t block, std::int32_t before, std::span<const std::int32_t> tokens);
  // Withdraws all offers: the values no longer belong to their tokens.
  void withdraw_offers();
  // Gives the blocks of one sequence back, which it holds in this order.
  void release(std::span<const std::int32_t> blocks);

 private:
  using Key = std::pair<std::int32_t, std::vector<std::int32_t>>;  // the block before, and the tokens
  struct Block {
    std::int64_t holders = 0;
    std::map<Key, std::int32_t>::iterator offered;
    std::list<std::int32_t>::iterator unheld;
  };
  void hold(std::int32_t block);

  const std::int64_t block_size_;
  std::map<Key, std::int32_t> offered_;
  // The one that take() gives next comes first: those that are not offered, then those that have waited
  // longest. A block comes before the one that precedes it in a sequence, so no offer outlives it.
  std::list<std::int32_t> unheld_;
  std::vector<Block> blocks_;
};

}  // namespace warpwright
