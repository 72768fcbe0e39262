// How many operations a product does for a byte that moves, at each level of a multiprocessor's memory, for
// given shapes of instruction, warp tile and thread-block tile.
//
//   instruction    registers → tensor core: factors once a warp tile, sums in and out with each instruction
//   warp           shared memory → registers: a warp reads the rows and columns of its tile; sums stay in
//                  registers
//   thread block   L2 → shared memory: the tile's rows and columns
//
// Shapes are (m, n, k); a factor has the bytes of its dtype, a sum 4. After document 003, whose own figures
// docs/gemm.md corrects.
//
// An instruction of 64 rows on a GPU that has wgmma reads its factors from shared memory: it takes the warp
// tile's place at the warp level, and its sums alone go through the registers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "roofline/machine.hpp"

namespace warpwright::roofline {

struct Mnk {
  std::int64_t m = 0, n = 0, k = 0;
  bool operator==(const Mnk&) const = default;
};
std::string text_of(const Mnk& shape);                        // "128x256x64"
Mnk mnk_named(std::string_view text, std::string_view flag);  // UsageError where it is none

struct Tiling {
  Mnk instruction, warp, block;
  bool operator==(const Tiling&) const = default;
};
// UsageError where a shape is not a multiple of the one inside it, or is a wgmma that does not exist. A block
// of zeros is none.
void require_tiling(const Machine& machine, const Tiling& tiling);

bool is_wgmma(const Machine& machine, const Mnk& instruction);

// One row of a table: a tile, the clocks that its products take at the multiprocessor's peak, and its
// traffic.
struct Traffic {
  double flops = 0, clocks = 0, bytes = 0;
  double intensity = 0;        // FLOP a byte
  double bytes_per_clock = 0;  // that the level must give for the peak
};

// In bytes. flops / bytes is the intensity and bytes / clocks the bytes per clock.
struct InstructionTraffic : Traffic {
  double bytes_per_clock_without_reuse = 0;  // every instruction reads its own factors
  double capacity = 0;                       // of the registers: bytes a clock, at least
};
InstructionTraffic instruction_level(const Machine& machine, Math math, const Mnk& instruction,
                                     const Mnk& warp);

struct WarpTraffic : Traffic {
  double fill_per_clock = 0;  // bytes a clock that arrive from L2 through the same banks
  double capacity = 0;        // of shared memory, bytes a clock
  double share() const { return (bytes_per_clock + fill_per_clock) / capacity; }
};
WarpTraffic warp_level(const Machine& machine, Math math, const Tiling& tiling);

struct BlockTraffic : Traffic {
  double capacity = 0;  // a multiprocessor's share of the L2's bytes a clock; 0: not known
};
// cluster: thread blocks (m, n) that get each other's rows and columns by multicast.
BlockTraffic block_level(const Machine& machine, Math math, const Mnk& block, const Mnk& cluster);

// Rows to print where none are given: those of document 003's tables, and wgmma's.
struct InstructionRow {
  Mnk warp, instruction;
};
struct WarpRow {
  Mnk warp, instruction, block;
};
std::vector<InstructionRow> default_instruction_rows();
std::vector<WarpRow> default_warp_rows();
std::vector<WarpRow> wgmma_rows(Math math);

// m16n8k16 or, for 4-byte factors, m16n8k8; on a machine with wgmma its 64 rows by min(columns, 256); 1x1x1
// for fp32.
Mnk default_instruction(const Machine& machine, Math math, std::int64_t columns);
// Warps of that tile: one warpgroup a 64 rows with wgmma; 64 × 64 of mma.sync, less where the tile is
// smaller.
Tiling default_tiling(const Machine& machine, Math math, const Mnk& block);
// Two thread blocks below each other share B's tile where the machine has clusters.
Mnk default_cluster(const Machine& machine, Math math);

}  // namespace warpwright::roofline
