#include <fmt/format.h>

#include <algorithm>

#include "ops/matmul/kernels.hpp"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul {
namespace {

// Most rows of A that stay packed while all columns pass. They take half of L2, and leave room for the
// partial sums.
constexpr std::int64_t kRows = 512;
// Columns per member between two sweeps over the depth. With few columns the partial sums stay in the caches,
// but A is packed more often.
constexpr std::int64_t kCols = 768;
constexpr std::size_t kLine = 64;

// Chooses the grid of workers with the least work for the busiest worker: its tiles, the columns it packs for
// every block of rows, and its share of the rows that its team packs. Packing one tile's depth costs about as
// much as two products. It prefers more teams among equal grids, because members of a team wait for each
// other and teams do not.
void choose_teams(std::int64_t row_tiles, std::int64_t col_tiles, std::int64_t block_tiles,
                  std::int64_t threads, Blocking& b) {
  std::int64_t best = -1;
  for (std::int64_t teams = 1; teams <= std::min(threads, std::max<std::int64_t>(row_tiles, 1)); ++teams) {
    const std::int64_t members = std::min(threads / teams, std::max<std::int64_t>(col_tiles, 1));
    const std::int64_t rows = ceil_div(row_tiles, teams), cols = ceil_div(col_tiles, members);
    const std::int64_t cost =
        rows * cols + 2 * cols * ceil_div(rows, block_tiles) + 2 * ceil_div(rows, members);
    if (best >= 0 && cost > best) continue;
    best = cost;
    b.row_teams = teams;
    b.col_teams = members;
  }
}

}  // namespace

Blocking block(const Extent& e, const Tile& tile, bool sums, const DeviceInfo& device) {
  Blocking b;
  const std::int64_t row_tiles = ceil_div(e.rows, tile.rows), col_tiles = ceil_div(e.cols, tile.cols);
  b.depth_chunks = std::max<std::int64_t>(1, ceil_div(e.depth, tile.max_depth));
  b.depth = round_up(ceil_div(e.depth, b.depth_chunks), tile.depth);
  const std::int64_t fit = static_cast<std::int64_t>(device.l2_bytes / 2 / tile.element) /
                           std::max<std::int64_t>(b.depth, 1) / tile.rows * tile.rows;
  const std::int64_t block_tiles = std::clamp(fit, tile.rows, kRows) / tile.rows;
  choose_teams(row_tiles, col_tiles, block_tiles, device.threads, b);
  // As few blocks as possible, of about equal size, because B is packed once per block.
  const std::int64_t team_tiles = std::max<std::int64_t>(ceil_div(row_tiles, b.row_teams), 1);
  b.rows = ceil_div(team_tiles, ceil_div(team_tiles, block_tiles)) * tile.rows;
  b.cols = std::max<std::int64_t>(col_tiles, 1) * tile.cols;
  if (b.depth_chunks > 1) b.cols = std::min(b.cols, round_up(kCols, tile.cols) * b.col_teams);
  const auto bytes = [](std::int64_t elements, std::size_t size) {
    return (static_cast<std::size_t>(elements) * size + kLine - 1) / kLine * kLine;
  };
  b.a_bytes = bytes(b.rows * b.depth, tile.element);
  b.b_bytes = bytes(tile.cols * b.depth, tile.element);
  if (sums && b.depth_chunks > 1) b.sums_bytes = bytes(b.rows * b.cols, sizeof(float));
  b.sums_offset = static_cast<std::size_t>(b.row_teams) * b.a_bytes;
  b.b_offset = b.sums_offset + static_cast<std::size_t>(b.row_teams) * b.sums_bytes;
  b.workspace = b.b_offset + static_cast<std::size_t>(b.row_teams * b.col_teams) * b.b_bytes;
  return b;
}

std::size_t workspace(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device) {
  return block(extent_of(p), tile, p.dtype != DType::f32 && !p.widened, device).workspace;
}
std::size_t workspace(const MatmulDxProblem& p, const Tile& tile, const DeviceInfo& device) {
  return block(extent_of(p), tile, p.dtype != DType::f32 && !p.widened, device).workspace;
}
std::size_t workspace(const MatmulDwProblem& p, const Tile& tile, const DeviceInfo& device) {
  return block(extent_of(p), tile, false, device).workspace;
}

std::string chunks(const Extent& extent, const Tile& tile, const DeviceInfo& device) {
  const Blocking b = block(extent, tile, false, device);
  return b.depth_chunks == 1 ? "1 chunk" : fmt::format("{} chunks of {}", b.depth_chunks, b.depth);
}

}  // namespace warpwright::ops::matmul
