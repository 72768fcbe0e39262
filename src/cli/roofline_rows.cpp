// The tilings that `warpwright roofline` looks at, from the flags --instruction, --warp, --tile and
// --cluster.
#include <fmt/format.h>

#include <algorithm>

#include "cli/roofline_flags.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

using namespace roofline;

// Each list has none, one for all rows, or one for each row.
struct Shapes {
  std::vector<Mnk> instructions, warps, tiles;

  std::size_t rows() const { return std::max({instructions.size(), warps.size(), tiles.size()}); }
};

std::vector<Mnk> shapes(const std::vector<std::string>& texts, std::string_view flag) {
  std::vector<Mnk> list;
  for (const std::string& text : texts) list.push_back(mnk_named(text, flag));
  return list;
}

Shapes shapes_of(const RooflineFlags& f) {
  Shapes s{.instructions = shapes(f.instructions, "--instruction"),
           .warps = shapes(f.warps, "--warp"),
           .tiles = shapes(f.tiles, "--tile")};
  for (const auto* list : {&s.instructions, &s.warps, &s.tiles}) {
    if (list->size() > 1 && list->size() != s.rows()) {
      throw UsageError(fmt::format("{}, {} and {} shapes are given", s.instructions.size(), s.warps.size(),
                                   s.tiles.size()),
                       "--instruction, --warp, --tile",
                       "give each option no shape, one shape for all rows, or one per row");
    }
  }
  return s;
}

// The i-th of a list that has one for each row, or one for all.
const Mnk& of_row(const std::vector<Mnk>& list, std::size_t i) {
  return list.size() == 1 ? list.front() : list[i];
}

std::vector<Tiling> default_rows(const Machine& machine, Math math) {
  std::vector<Tiling> rows;
  if (element_bytes(math) == 2) {
    for (const WarpRow& row : default_warp_rows())
      rows.push_back({.instruction = row.instruction, .warp = row.warp, .block = row.block});
    if (machine.has_wgmma()) {
      for (const WarpRow& row : wgmma_rows(math))
        rows.push_back({.instruction = row.instruction, .warp = row.warp, .block = row.block});
    }
  } else {
    for (const Mnk& tile : candidate_tiles(machine, math))
      rows.push_back(default_tiling(machine, math, tile));
  }
  return rows;
}

// The i-th tile, with the default instruction and warps for it.
Tiling of_tile(const Shapes& s, std::size_t i, const Machine& machine, Math math) {
  const Mnk& tile = of_row(s.tiles, i);
  const Tiling row = default_tiling(machine, math, tile);
  if (s.instructions.empty() || !s.warps.empty()) return row;
  // An instruction that is given decides its warps: a whole tile of wgmma's rows, else as by default.
  const Mnk& instruction = of_row(s.instructions, i);
  if (instruction.m == row.instruction.m) return row;
  Machine without_wgmma = machine;
  without_wgmma.major = 8;
  return default_tiling(instruction.m == 64 ? machine : without_wgmma, math, row.block);
}

void require_multiple(const Mnk& tile, const Mnk& instruction) {
  if (tile.m % instruction.m == 0 && tile.n % instruction.n == 0 && tile.k % instruction.k == 0) return;
  throw UsageError(
      fmt::format("{} is not a multiple of the instruction {}", text_of(tile), text_of(instruction)),
      "--tile", "each side must be a whole number of times the inner one");
}

Tiling given_row(const Shapes& s, std::size_t i, const Machine& machine, Math math) {
  Tiling row;
  if (!s.tiles.empty()) {
    row = of_tile(s, i, machine, math);
  } else {
    row.instruction = default_instruction(machine, math, s.warps.empty() ? 256 : of_row(s.warps, i).n);
  }
  if (!s.instructions.empty()) row.instruction = of_row(s.instructions, i);
  if (!s.warps.empty()) {
    row.warp = of_row(s.warps, i);
    if (s.instructions.empty() && row.warp.m % row.instruction.m != 0) {
      row.instruction = {16, 8, row.instruction.k};
    }
  }
  if (row.warp.m == 0) row.warp = row.instruction;
  if (!s.tiles.empty() && s.warps.empty()) require_multiple(row.block, row.instruction);
  require_tiling(machine, row);
  return row;
}

}  // namespace

Mnk RooflineFlags::cluster_on(const Machine& machine, Math math) const {
  constexpr std::int64_t kMostBlocks = 16;
  if (cluster.empty()) return default_cluster(machine, math);
  Mnk blocks;
  try {
    blocks = mnk_named(cluster + "x1", "--cluster");
  } catch (const UsageError&) {
    throw UsageError(fmt::format("'{}' is not a shape", cluster), "--cluster", "give MxN, as in 2x1");
  }
  if (blocks.m * blocks.n > kMostBlocks) {
    throw UsageError(fmt::format("{} are {} thread blocks", cluster, blocks.m * blocks.n), "--cluster",
                     fmt::format("a cluster has at most {}", kMostBlocks));
  }
  return blocks;
}

std::vector<Tiling> RooflineFlags::rows(const Machine& machine, Math math) const {
  const Shapes shapes = shapes_of(*this);
  if (shapes.rows() == 0) return default_rows(machine, math);
  std::vector<Tiling> rows;
  for (std::size_t i = 0; i < shapes.rows(); ++i) rows.push_back(given_row(shapes, i, machine, math));
  return rows;
}

}  // namespace warpwright::cli
