// The operands of products of bf16 tiles, whatever instruction multiplies them. A is stored in rows. B is
// stored in pairs: for each column, two consecutive elements of the inner dimension are adjacent.
#pragma once

#include <cstdint>

#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention {
namespace {

using Pair = std::uint32_t;  // two bf16, the first in the lower half

constexpr int kTile = 16;                                 // rows of a tile, and its columns of fp32 or pairs
constexpr int kTileDepth = 32;                            // length of one instruction's inner dimension
constexpr std::int64_t kPairRow = kBlock * sizeof(Pair);  // bytes between rows of pairs

struct TileMatrix {
  const void* data;
  std::int64_t row_bytes;

  const char* at(std::int64_t row, std::int64_t byte) const {
    return static_cast<const char*>(data) + row * row_bytes + byte;
  }
};

}  // namespace
}  // namespace warpwright::ops::attention
