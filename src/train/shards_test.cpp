#include "train/shards.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/memory.hpp"

namespace warpwright {
namespace {

TEST(Shards, HoldEveryRowOnceInOrder) {
  HeapAllocator heap;
  std::vector<Tensor> tensors;
  const Shape shapes[] = {{1000, 24}, {24, 24}, {300}, {0, 5}, {129, 8}, {1}};
  for (const Shape& shape : shapes) {
    tensors.push_back(heap.allocate(std::to_string(tensors.size()), DType::f32, shape, Category::gradients));
  }
  for (int ranks = 1; ranks <= 70; ++ranks) {
    const auto shards = shards_of(tensors, ranks);
    ASSERT_EQ(shards.size(), static_cast<std::size_t>(ranks));
    std::vector<std::int64_t> next(tensors.size());
    std::size_t tensor = 0;
    for (const auto& shard : shards) {
      for (const ShardPiece& piece : shard) {
        EXPECT_GE(piece.tensor, tensor);
        tensor = piece.tensor;
        EXPECT_EQ(piece.first, next[tensor]);
        EXPECT_EQ(piece.first % kShardRows, 0);
        EXPECT_GT(piece.rows, 0);
        next[tensor] += piece.rows;
        EXPECT_TRUE(piece.rows % kShardRows == 0 || next[tensor] == tensors[tensor].shape[0]);
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(next[i], tensors[i].shape[0]);
  }
}

TEST(Shards, AreOfAboutTheSameSize) {
  HeapAllocator heap;
  const std::vector<Tensor> tensors{heap.allocate("a", DType::f32, {128 * 100, 4}, Category::gradients)};
  for (const auto& shard : shards_of(tensors, 7)) {
    ASSERT_EQ(shard.size(), 1u);
    EXPECT_LE(std::abs(shard[0].rows - 128 * 100 / 7), kShardRows);
  }
}

}  // namespace
}  // namespace warpwright
