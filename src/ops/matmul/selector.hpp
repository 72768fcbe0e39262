// The tile that a product on Hopper's tensor cores is made of, and the time that it will take: a roofline of
// the tile's inner loop, of the schedule's waves and of the device's memory. A pure function of problem and
// device, without a table.
#pragma once

#include <iterator>
#include <vector>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul {

enum class Direction : std::uint8_t { forward, dx, dw };
constexpr std::string_view name_of(Direction direction) {
  constexpr std::string_view kNames[] = {"forward", "dx", "dw"};
  return kNames[static_cast<int>(direction)];
}
constexpr std::string_view name_of(Schedule schedule) {
  constexpr std::string_view kNames[] = {"block", "persistent", "stream_k"};
  return kNames[static_cast<int>(schedule)];
}

// The end of an epilogue, after bias and activation. combined: scaled, and added to a residual; widened: so
// too, and stored in fp32.
enum class Finish : std::uint8_t { plain, combined, widened };

// The tiles that there are kernels of: of a block, its groups of warps on one tile (one: two groups take
// turns), the blocks of its cluster. deep: the tile is a cluster's, and so many blocks share its depth
// (cuda/split.cuh).
struct TileShape {
  int rows, cols, groups_down, groups_across, cluster_down, cluster_across;
  int deep = 0;

  constexpr bool pingpong() const { return deep == 0 && groups_down * groups_across == 1; }
  constexpr int cluster() const { return cluster_down * cluster_across; }
};
enum TileIndex : int {
  k128x256,
  k128x128,
  k128x192,
  k128x192Alone,
  k128x128Team,
  k64x128,
  k128x192Team,
  k128x192TeamAlone,
  k128x160,
  k128x160Down,
  k64x64Deep8,
  k64x64Deep4,
  k64x64Deep2,
  k128x128Deep4,
  k128x128Deep3,
  k128x128Deep2,
  k64x128Deep4,
  k64x64,
  k64x128Turns,
  k64x128Pair,
  k64x96Pair,
  k128x96Pair,
  k128x160TeamPair,
  k256x160Pair,
  k192x128Pair,
};
inline constexpr TileShape kTiles[] = {
    {128, 256, 2, 1, 2, 1},   {128, 128, 1, 1, 2, 1},    {128, 192, 1, 1, 2, 1},    {128, 192, 1, 1, 1, 1},
    {128, 128, 2, 1, 1, 1},   {64, 128, 1, 2, 1, 1},     {128, 192, 2, 1, 2, 1},    {128, 192, 2, 1, 1, 1},
    {128, 160, 1, 1, 1, 2},   {128, 160, 1, 1, 2, 1},    {64, 64, 1, 1, 1, 1, 8},   {64, 64, 1, 1, 1, 1, 4},
    {64, 64, 1, 1, 1, 1, 2},  {128, 128, 2, 1, 1, 1, 4}, {128, 128, 2, 1, 1, 1, 3}, {128, 128, 2, 1, 1, 1, 2},
    {64, 128, 1, 1, 1, 1, 4}, {64, 64, 1, 1, 1, 1},      {64, 128, 1, 1, 1, 1},     {64, 128, 1, 2, 2, 1},
    {64, 96, 1, 1, 2, 1},     {128, 96, 2, 1, 2, 1},     {128, 160, 2, 1, 2, 1},    {256, 160, 2, 1, 2, 1},
    {192, 128, 3, 1, 2, 1},
};
inline constexpr int kTileCount = static_cast<int>(std::size(kTiles));

// The product that is asked for. extra: the epilogue reads or writes another matrix than the result.
struct Request {
  Direction direction = Direction::forward;
  Extent extent;
  DType dtype = DType::bf16;
  Activation activation = Activation::none;
  Finish finish = Finish::plain;
  bool extra = false, adds = false;
  bool row_sums = false;         // dw's dbias
  bool batch_invariant = false;  // the tile must not depend on the number of rows
  // Between a model's other kernels, in a graph: it begins while the one before runs, and before x is there
  // it copies weights (ops/cuda/overlap.cuh).
  bool in_step = false;
};

// True if there is a kernel for it: those that were the fastest somewhere. fp16, in which encoders run, has
// bf16's forward and little of its backward.
constexpr bool offers(Direction direction, DType dtype, Activation activation, Finish finish, int tile,
                      Schedule schedule) {
  if (dtype != DType::bf16 && dtype != DType::f16) return false;
  const bool half = dtype == DType::f16 && direction != Direction::forward;  // where it has fewer
  if (activation == Activation::relu || activation == Activation::tanh) return false;
  const auto is_one_of = [tile](auto... tiles) { return ((tile == tiles) || ...); };
  const bool plain = activation == Activation::none;
  if (finish != Finish::plain) {
    const bool few = half || !plain || direction == Direction::dw;
    switch (schedule) {
      case Schedule::block:
        return !few && dtype == DType::bf16 && tile == k128x128Team;
      case Schedule::stream_k:
        return !few && tile == k64x64Deep4;
      default:
        return plain && (tile == k128x128Team || (!few && is_one_of(k128x192, k64x128)));
    }
  }
  switch (schedule) {
    case Schedule::block:
      return plain && tile == k128x128Team;
    case Schedule::stream_k:
      if (direction == Direction::forward && activation == Activation::gelu_erf) {
        return is_one_of(k64x64Deep4, k64x64Deep2);
      }
      if (!plain) return false;
      if (direction == Direction::dw) {
        return tile == k128x128 ||
               (!half && is_one_of(k128x256, k128x192Team, k128x128Deep3, k128x128Deep2, k64x128Deep4));
      }
      return is_one_of(k64x64Deep8, k64x64Deep4) ||
             (!half &&
              (is_one_of(k64x64Deep2, k128x128Deep4, k64x128Deep4) ||
               (direction == Direction::dx ? is_one_of(k128x128, k128x128Deep2) : tile == k128x192)));
    default:
      break;
  }
  switch (direction) {
    case Direction::forward:
      if (activation == Activation::gelu_tanh && dtype == DType::f16) return is_one_of(k128x192, k64x128);
      return is_one_of(k64x64, k128x192, k64x128, k128x128, k128x192Alone, k128x128Team, k128x192TeamAlone) ||
             (plain && is_one_of(k128x256, k64x128Turns, k128x160Down, k64x96Pair, k128x96Pair,
                                 k128x160TeamPair, k256x160Pair));
    case Direction::dx:
      if (activation == Activation::gelu_erf) return is_one_of(k128x128, k128x128Team);
      if (activation == Activation::gelu_tanh) {
        return tile == k128x128 ||
               (!half && is_one_of(k64x64, k128x256, k64x128, k128x128Team, k128x192, k128x192Alone));
      }
      return is_one_of(k128x128, k128x128Team) ||
             (!half && is_one_of(k64x64, k64x128Turns, k128x192, k128x192Alone, k64x128, k128x256,
                                 k128x192TeamAlone, k256x160Pair, k128x96Pair));
    default:
      return plain && (is_one_of(k128x128Team, k64x128) ||
                       (!half && is_one_of(k64x64, k64x128Turns, k128x160, k128x160Down, k128x256,
                                           k64x128Pair, k192x128Pair, k64x96Pair)));
  }
}

struct Selection {
  int tile = -1;    // in kTiles; -1: there is none
  int workers = 0;  // blocks or clusters of them
  int raster = 1;
  double seconds = 0;
  std::size_t partial_bytes = 0;  // of sums of tiles whose depth is cut
};
// "128x192, 2 groups, clusters 2x1, 66 workers": the tile, its groups of warps (or "in turns", each on a tile
// of its own), the cluster's blocks.
std::string describe(const Selection& selection);
// Every kernel that there is for it under a schedule, with the number of workers that make sense.
std::vector<Selection> selections(const Request& request, Schedule schedule, const DeviceInfo& device);
// The one that is predicted to be the fastest.
Selection select(const Request& request, Schedule schedule, const DeviceInfo& device);

namespace cuda {
// One kernel of the list, of a product that is not empty and suits the copy engine (wgmma.hpp).
void run(const Context& context, const MatmulForward& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);
std::size_t workspace(const MatmulForwardProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDxProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDwProblem& problem, const Selection& selection);
}  // namespace cuda

// The same for cuBLASLt.
double library_seconds(const Request& request);

Request request_of(const MatmulForwardProblem& p);
Request request_of(const MatmulDxProblem& p);
Request request_of(const MatmulDwProblem& p);

}  // namespace warpwright::ops::matmul
