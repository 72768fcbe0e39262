#include "train/shards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/gpt2_decoder.hpp"
#include "ops/global_norm/global_norm.hpp"
#include "runtime/memory.hpp"
#include "train/units.hpp"

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
        const std::int64_t group = shard_rows(tensors[tensor].elements() / tensors[tensor].shape[0]);
        EXPECT_EQ(piece.first % group, 0);
        EXPECT_GT(piece.rows, 0);
        next[tensor] += piece.rows;
        EXPECT_TRUE(piece.rows % group == 0 || next[tensor] == tensors[tensor].shape[0]);
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(next[i], tensors[i].shape[0]);
  }
}

// Whole groups of 128 rows, and whole blocks of squares.
TEST(Shards, AreCutBetweenGroupsOfRows) {
  EXPECT_EQ(shard_rows(768), 128);
  EXPECT_EQ(shard_rows(64), 256);
  EXPECT_EQ(shard_rows(320), 256);
  EXPECT_EQ(shard_rows(1), 16384);
  EXPECT_EQ(shard_rows(771), 16384);
  EXPECT_EQ(shard_rows(1 << 20), 128);
}

// The runs of all ranks together are all blocks, each once.
TEST(Shards, HaveTheBlocksOfTheWhole) {
  HeapAllocator heap;
  const std::vector<Tensor> tensors{heap.allocate("a", DType::f32, {1000, 128}, Category::gradients),
                                    heap.allocate("b", DType::f32, {5}, Category::gradients),
                                    heap.allocate("c", DType::f32, {700, 64}, Category::gradients)};
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<int> seen(static_cast<std::size_t>(ops::squares_blocks(tensors)));
    for (const ShardPieces& pieces : shards_of(tensors, ranks)) {
      std::size_t in_runs = 0;
      for (const SquaresRun& run : squares_runs(pieces, tensors)) {
        for (std::int64_t b = 0; b < run.blocks.rows; ++b)
          ++seen[static_cast<std::size_t>(run.blocks.first + b)];
        in_runs += run.count;
      }
      EXPECT_EQ(in_runs, pieces.size());
    }
    EXPECT_EQ(std::ranges::count(seen, 1), std::ssize(seen)) << ranks;
  }
}

// Neighbours' memory is one span, which includes what lies between them.
TEST(Shards, HaveFewSpansOfMemory) {
  const auto allocate = [](Allocator& allocator) {
    std::vector<Tensor> tensors;
    const Shape shapes[] = {{300}, {256, 128}, {5}, {7}};
    for (const Shape& shape : shapes) {
      tensors.push_back(
          allocator.allocate(std::to_string(tensors.size()), DType::f32, shape, Category::gradients));
    }
    return tensors;
  };
  Recorder recorder;
  allocate(recorder);
  Arenas arenas(recorder.plan(), Device{});
  const std::vector<Tensor> t = allocate(arenas);
  const auto spans = [&](const ShardPieces& pieces) { return memory_of(pieces, t, pieces_of(pieces, t)); };
  const auto from_to = [&](std::size_t first, std::size_t last) {
    return static_cast<std::size_t>(static_cast<std::byte*>(t[last].data) -
                                    static_cast<std::byte*>(t[first].data)) +
           t[last].bytes();
  };
  const auto all = spans({{0, 0, 300}, {1, 0, 256}, {2, 0, 5}, {3, 0, 7}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].data(), t[0].data);
  EXPECT_EQ(all[0].size(), from_to(0, 3));
  const auto part = spans({{1, 128, 128}, {2, 0, 5}});
  ASSERT_EQ(part.size(), 1u);
  EXPECT_EQ(part[0].size(), from_to(1, 2) - t[1].bytes() / 2);
  EXPECT_EQ(spans({{0, 0, 300}, {2, 0, 5}}).size(), 2u);  // not neighbours
  EXPECT_EQ(spans({{1, 0, 128}, {2, 0, 5}}).size(), 2u);  // the rest of a tensor is between them
  EXPECT_EQ(spans({{0, 0, 300}, {1, 128, 128}}).size(), 2u);
  EXPECT_TRUE(spans({}).empty());
}

// Muon's tensors: each in one shard, and all ranks have about as many elements of them.
TEST(Shards, LeaveMatricesWholeIfAsked) {
  const GPT2Decoder decoder({.layers = 6, .heads = 2, .channels = 64, .vocab = 50, .context = 24});
  const Units units(decoder);
  Recorder recorder;
  const std::vector<Tensor> parameters =
      decoder.allocate_parameters(DType::f32, Category::parameters, "", recorder).tensors();
  const LayerMatrices matrices = decoder.layer_matrices();
  EXPECT_EQ(matrices.size(), 6 * 4u);
  for (const auto& [index, rows] : matrices) {
    const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    EXPECT_EQ(parameters[index].shape[0], all);
  }
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::int64_t> next(parameters.size()), elements;
    for (const ShardPieces& shard : shards_by_unit(units, parameters, matrices, ranks)) {
      EXPECT_TRUE(std::ranges::is_sorted(shard, {}, &ShardPiece::tensor));
      elements.push_back(0);
      for (const ShardPiece& piece : shard) {
        EXPECT_EQ(piece.first, next[piece.tensor]);
        next[piece.tensor] += piece.rows;
        if (!matrices.contains(piece.tensor)) continue;
        EXPECT_EQ(piece.rows, parameters[piece.tensor].shape[0]);
        elements.back() += piece.of(parameters).elements();
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_EQ(next[i], parameters[i].shape[0]);
    EXPECT_LE(std::ranges::max(elements) - std::ranges::min(elements), 4 * 64 * 64) << ranks;
  }
}

TEST(Shards, AreOfAboutTheSameSize) {
  HeapAllocator heap;
  const std::vector<Tensor> tensors{heap.allocate("a", DType::f32, {128 * 100, 128}, Category::gradients)};
  for (const auto& shard : shards_of(tensors, 7)) {
    ASSERT_EQ(shard.size(), 1u);
    EXPECT_LE(std::abs(shard[0].rows - 128 * 100 / 7), 128);
  }
}

}  // namespace
}  // namespace warpwright
