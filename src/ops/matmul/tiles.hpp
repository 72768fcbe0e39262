// The tiles of the kernels on Hopper's tensor cores. Each row of the table is a tile, with the products that
// it has kernels for. A new tile is one row at the end. It has the default costs of TileCosts until
// costs_h200.inc is fitted anew (costs.hpp).
#pragma once

#include <iterator>

#include "ops/matmul/kernels.hpp"
#include "roofline/direction.hpp"

namespace warpwright::ops::matmul {

using roofline::Direction;

inline constexpr int kSlab = 64;  // terms of the depth that a block copies and multiplies at a time

// The end of an epilogue, after bias and activation.
//   plain      stores the value
//   combined   scales it, adds a residual and stores it
//   widened    as combined, and stores fp32
enum class Finish : std::uint8_t { plain, combined, widened };

// The shape of a tile:
//   rows, cols     a block's part of the result, in elements
//   groups_…       groups of warps that share the tile; one group: the block has two groups that take turns
//                  (pingpong), each with a tile of its own
//   cluster_…      blocks of a cluster
//   deep           blocks that share the depth of one tile (cuda/hopper/split.cuh); 0: one block has it all
struct TileShape {
  int rows, cols, groups_down, groups_across, cluster_down, cluster_across;
  int deep = 0;

  constexpr bool operator==(const TileShape&) const = default;
  constexpr bool pingpong() const { return deep == 0 && groups_down * groups_across == 1; }
  constexpr int cluster() const { return cluster_down * cluster_across; }
};

// The use of a kernel: a direction with its epilogue.
enum Use : unsigned {
  kNoUse = 0,
  kForward = 1,
  kForwardTanh = 2,      // with tanh GELU
  kForwardErf = 4,       // with erf GELU
  kForwardFinished = 8,  // combined or widened
  kDx = 16,
  kDxTanh = 32,
  kDxErf = 64,
  kDxWidened = 128,
  kDw = 256,
};
constexpr Use use_of(Direction direction, Activation activation, Finish finish) {
  const bool plain = activation == Activation::none, tanh = activation == Activation::gelu_tanh;
  const bool erf = activation == Activation::gelu_erf;
  if (!plain && (finish != Finish::plain || direction == Direction::dw)) return kNoUse;
  switch (direction) {
    case Direction::forward:
      if (finish != Finish::plain) return kForwardFinished;
      return plain ? kForward : tanh ? kForwardTanh : erf ? kForwardErf : kNoUse;
    case Direction::dx:
      if (finish != Finish::plain) return finish == Finish::widened ? kDxWidened : kNoUse;
      return plain ? kDx : tanh ? kDxTanh : erf ? kDxErf : kNoUse;
    default:
      return finish == Finish::plain ? kDw : kNoUse;
  }
}

// Uses of a tile's kernels in one schedule, as bits of Use.
struct Uses {
  unsigned bf16 = 0, f16 = 0;
};
struct HopperTile {
  TileShape shape;
  Uses persistent, stream_k = {}, block = {};

  constexpr const Uses& of(Schedule schedule) const {
    return schedule == Schedule::block ? block : schedule == Schedule::stream_k ? stream_k : persistent;
  }
};

inline constexpr unsigned kForwardGelu = kForwardTanh | kForwardErf;
// A kernel is compiled if it was the fastest for some product (docs/gemm.md). fp16 has most of bf16's forward
// kernels and few of its backward kernels, because encoders run in fp16.
inline constexpr HopperTile kTiles[] = {
    {{128, 256, 2, 1, 2, 1}, {kForward | kDx | kDxTanh | kDw, kForward}, {kDw}},
    {{128, 128, 1, 1, 2, 1},
     {kForward | kForwardGelu | kDx | kDxTanh | kDxErf, kForward | kForwardErf | kDx | kDxTanh | kDxErf},
     {kDx | kDw, kDw}},
    {{128, 192, 1, 1, 2, 1},
     {kForward | kForwardGelu | kForwardFinished | kDx | kDxTanh | kDxWidened,
      kForward | kForwardGelu | kForwardFinished},
     {kForward, kForward}},
    {{128, 192, 1, 1, 1, 1}, {kForward | kForwardGelu | kDx | kDxTanh, kForward | kForwardErf}},
    {{128, 128, 2, 1, 1, 1},
     {kForward | kForwardGelu | kForwardFinished | kDx | kDxTanh | kDxErf | kDxWidened | kDw,
      kForward | kForwardErf | kForwardFinished | kDx | kDxErf | kDxWidened | kDw},
     {},
     {kForward | kForwardFinished | kDx | kDxWidened | kDw, kForward | kDx | kDw}},
    {{64, 128, 1, 2, 1, 1},
     {kForward | kForwardGelu | kForwardFinished | kDx | kDxTanh | kDxWidened | kDw,
      kForward | kForwardGelu | kForwardFinished | kDw}},
    {{128, 192, 2, 1, 2, 1}, {}, {kDw}},
    {{128, 192, 2, 1, 1, 1}, {kForward | kForwardGelu | kDx, kForward | kForwardErf}},
    {{128, 160, 1, 1, 1, 2}, {kDw}},
    {{128, 160, 1, 1, 2, 1}, {kForward | kDw, kForward}},
    {{64, 64, 1, 1, 1, 1, 8}, {}, {kForward | kDx, kForward | kDx}},
    {{64, 64, 1, 1, 1, 1, 4},
     {},
     {kForward | kForwardErf | kForwardFinished | kDx | kDxWidened,
      kForward | kForwardErf | kForwardFinished | kDx}},
    {{64, 64, 1, 1, 1, 1, 2}, {}, {kForward | kForwardErf | kDx, kForward | kForwardErf}},
    {{128, 128, 2, 1, 1, 1, 4}, {}, {kForward | kDx, kForward}},
    {{128, 128, 2, 1, 1, 1, 3}, {}, {kDw}},
    {{128, 128, 2, 1, 1, 1, 2}, {}, {kDx | kDw}},
    {{64, 128, 1, 1, 1, 1, 4}, {}, {kForward | kDx | kDw, kForward}},
    {{64, 64, 1, 1, 1, 1}, {kForward | kForwardGelu | kDx | kDxTanh | kDw, kForward | kForwardErf}},
    {{64, 128, 1, 1, 1, 1}, {kForward | kDx | kDw, kForward}},
    {{64, 128, 1, 2, 2, 1}, {kDw}},
    {{64, 96, 1, 1, 2, 1}, {kForward | kDw, kForward}},
    {{128, 96, 2, 1, 2, 1}, {kForward | kDx, kForward}},
    {{128, 160, 2, 1, 2, 1}, {kForward, kForward}},
    {{256, 160, 2, 1, 2, 1}, {kForward | kDx, kForward}},
    {{192, 128, 3, 1, 2, 1}, {kDw}},
};
inline constexpr int kTileCount = static_cast<int>(std::size(kTiles));

// True if there is a kernel for this use with this tile.
constexpr bool offers(Direction direction, DType dtype, Activation activation, Finish finish, int tile,
                      Schedule schedule) {
  if (dtype != DType::bf16 && dtype != DType::f16) return false;
  const Uses& uses = kTiles[tile].of(schedule);
  return ((dtype == DType::bf16 ? uses.bf16 : uses.f16) & use_of(direction, activation, finish)) != 0;
}

// The index of a tile in kTiles. A shape that is missing is a compile error.
consteval int tile_of(const TileShape& shape) {
  for (int i = 0; i < kTileCount; ++i) {
    if (kTiles[i].shape == shape) return i;
  }
  throw "there is no such tile";
}

}  // namespace warpwright::ops::matmul
