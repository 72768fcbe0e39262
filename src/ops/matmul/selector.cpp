#include "ops/matmul/selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/flag_sets.hpp"

namespace warpwright::ops::matmul {
namespace {

// Blocks of a kernel whose blocks have one tile, or a part of one. A larger product is for the other
// schedules, whose workers walk over any number of tiles.
constexpr std::int64_t kMostBlocks = 1 << 24;

}  // namespace

std::string describe(const Selection& s) {
  const TileShape& tile = kTiles[s.tile].shape;
  const int groups = tile.groups_down * tile.groups_across;
  const std::string by = tile.pingpong() ? "in turns"
                         : groups == 1   ? "1 group"
                                         : fmt::format("{} groups", groups);
  const std::string cluster = tile.deep > 0 ? fmt::format(", depth in {}", tile.deep)
                              : tile.cluster() > 1
                                  ? fmt::format(", clusters {}x{}", tile.cluster_down, tile.cluster_across)
                                  : "";
  return fmt::format("{}x{}, {}{}, {} workers", tile.rows, tile.cols, by, cluster, s.workers);
}

std::vector<Selection> selections(const Request& r, Schedule schedule, const DeviceInfo& device) {
  std::vector<Selection> list;
  for (int index = 0; index < kTileCount; ++index) {
    if (!offers(r.direction, r.dtype, r.activation, r.finish, index, schedule)) continue;
    const TileShape& tile = kTiles[index].shape;
    const std::int64_t tiles = tiles_of(r.extent, tile);
    const int most = std::max(device.gpu.multiprocessors / tile.cluster(), 1);
    const int flags = most * tile.cluster() * tile.groups_down * tile.groups_across;
    const auto add = [&](std::int64_t workers) {
      Selection s;
      s.tile = index;
      s.workers = static_cast<int>(workers);
      // In a large product, a narrow raster keeps the rows in the cache while the columns pass.
      s.raster = r.direction != Direction::dw && r.extent.rows >= 16384 ? 4 : 16;
      s.seconds = seconds_of(r, schedule, index, std::min(s.workers, most)) *
                  (costs_of_h200().multiprocessors / std::max(device.gpu.multiprocessors, 1));
      if (schedule == Schedule::stream_k && tile.deep == 0) {
        s.partial_bytes = static_cast<std::size_t>(s.workers) *
                          static_cast<std::size_t>(tile.cluster() * tile.rows * tile.cols) * 4;
      }
      list.push_back(s);
    };
    if (tile.deep > 0) {
      if (tiles * tile.deep < kMostBlocks) add(std::max<std::int64_t>(tiles, 1));
    } else if (schedule == Schedule::block) {
      if (tiles <= kMostBlocks) add(std::max<std::int64_t>(tiles, 1));
    } else if (schedule == Schedule::persistent || tiles == 0) {
      add(std::clamp<std::int64_t>(tiles, 1, most));
    } else if (flags <= gpu::kFlagsOfSet &&
               2 * most * ceil_div(r.extent.depth, kSlab) <= std::numeric_limits<int>::max()) {
      add(most);
      // The same number of workers for every tile, so that no worker has parts of two tiles.
      if (tiles < most && most % tiles != 0) add(most / tiles * tiles);
    }
  }
  return list;
}

Selection select(const Request& r, Schedule schedule, const DeviceInfo& device) {
  int only = -1;
  if (r.batch_invariant) {
    Request typical = r;
    typical.batch_invariant = false;
    typical.extent.rows = 1024;
    only = select(typical, schedule, device).tile;
  }
  Selection best;
  for (const Selection& s : selections(r, schedule, device)) {
    if (r.batch_invariant && s.tile != only) continue;
    if (best.tile < 0 || s.seconds < best.seconds) best = s;
  }
  return best;
}

}  // namespace warpwright::ops::matmul
