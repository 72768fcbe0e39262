#include "infer/cache_blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace warpwright {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(CacheBlocks, GivesEachBlockOnceAndThenNone) {
  CacheBlocks blocks(3, 4);
  std::set<std::int32_t> taken;
  for (int i = 0; i < 3; ++i) taken.insert(blocks.take());
  EXPECT_EQ(taken, (std::set<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(blocks.take(), CacheBlocks::kNone);
  blocks.release(Ids{1});
  EXPECT_EQ(blocks.available(), 1);
  EXPECT_EQ(blocks.take(), 1);
}

TEST(CacheBlocks, SharesTheBlocksOfACommonBeginning) {
  CacheBlocks blocks(5, 2);
  const Ids first = {blocks.take(), blocks.take()};
  EXPECT_TRUE(blocks.share(Ids{1, 2, 3, 4}).empty());
  EXPECT_TRUE(blocks.offer(first[0], CacheBlocks::kNone, Ids{1, 2}));
  EXPECT_TRUE(blocks.offer(first[1], first[0], Ids{3, 4}));
  EXPECT_EQ(blocks.share(Ids{1, 2, 3, 4, 5}), first);
  EXPECT_EQ(blocks.share(Ids{1, 2, 9, 4}), Ids{first[0]});
  EXPECT_TRUE(blocks.share(Ids{3, 4}).empty());  // other tokens come before them there
  EXPECT_EQ(blocks.available(), 3);
  blocks.release(first);
  EXPECT_EQ(blocks.available(), 3);  // the others still hold them
  blocks.release(first);
  blocks.release(Ids{first[0]});
  EXPECT_EQ(blocks.available(), 5);
}

TEST(CacheBlocks, AnotherBlockWithTheSameTokensIsNotOffered) {
  CacheBlocks blocks(4, 1);
  const std::int32_t a = blocks.take(), b = blocks.take(), after = blocks.take();
  EXPECT_TRUE(blocks.offer(a, CacheBlocks::kNone, Ids{7}));
  EXPECT_FALSE(blocks.offer(b, CacheBlocks::kNone, Ids{7}));
  EXPECT_FALSE(blocks.offer(after, b, Ids{8}));
}

TEST(CacheBlocks, WithdrawnOffersAreNotShared) {
  CacheBlocks blocks(2, 1);
  const std::int32_t a = blocks.take();
  EXPECT_TRUE(blocks.offer(a, CacheBlocks::kNone, Ids{7}));
  blocks.release(Ids{a});
  blocks.withdraw_offers();
  EXPECT_TRUE(blocks.share(Ids{7}).empty());
  EXPECT_EQ(blocks.available(), 2);
  const std::int32_t again = blocks.take();
  EXPECT_TRUE(blocks.offer(again, CacheBlocks::kNone, Ids{7}));
  EXPECT_EQ(blocks.share(Ids{7}), Ids{again});
}

// Sequences over three tokens come and go. The result of share() must hold exactly the tokens that it was
// asked for, and the number of blocks in use must be what the sequences hold.
TEST(CacheBlocks, ThousandsOfSequencesComeAndGo) {
  constexpr std::int64_t kBlocks = 24, kSize = 3;
  CacheBlocks blocks(kBlocks, kSize);
  std::mt19937 random(5);
  std::vector<Ids> content(kBlocks);  // all tokens up to the block's end
  std::vector<Ids> held;
  std::size_t shared = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      const std::size_t which = random() % held.size();
      blocks.release(held[which]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      Ids tokens(random() % 16);
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 3);
      Ids mine = blocks.share(tokens);
      shared += mine.size();
      for (std::size_t b = 0; b < mine.size(); ++b) {
        ASSERT_EQ(content[static_cast<std::size_t>(mine[b])],
                  Ids(tokens.begin(), tokens.begin() + kSize * static_cast<std::ptrdiff_t>(b + 1)));
      }
      bool offers = true;
      while ((mine.size() + 1) * kSize <= tokens.size()) {
        const std::int32_t block = blocks.take();
        if (block == CacheBlocks::kNone) break;
        const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(mine.size()) * kSize;
        content[static_cast<std::size_t>(block)].assign(tokens.begin(), first + kSize);
        offers = offers && blocks.offer(block, mine.empty() ? CacheBlocks::kNone : mine.back(),
                                        Ids(first, first + kSize));
        mine.push_back(block);
      }
      held.push_back(mine);
    }
    std::set<std::int32_t> in_use;
    for (const Ids& mine : held) in_use.insert(mine.begin(), mine.end());
    ASSERT_EQ(blocks.available(), kBlocks - static_cast<std::int64_t>(in_use.size()));
  }
  EXPECT_GT(shared, 1000u);
}

}  // namespace
}  // namespace warpwright
