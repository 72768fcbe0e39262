// Operations per byte moved, at each level of a multiprocessor's memory, for given shapes of instruction,
// warp tile and thread-block tile.
//
//   instruction    registers → tensor core: operands once per warp tile, sums in and out per instruction
//   warp           shared memory → registers: a warp reads the rows and columns of its tile; sums stay in
//                  registers
//   thread block   L2 → shared memory: the tile's rows and columns
//
// Shapes are (m, n, k). An operand's element has the size of its dtype, a sum has 4 bytes. docs/gemm.md
// explains the formulas and corrects the figures of their source.
//
// An instruction of 64 rows on a GPU with wgmma reads its operands from shared memory. It takes the warp
// tile's place at the warp level, and only its sums pass through the registers.
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
Mnk mnk_named(std::string_view text, std::string_view flag);  // throws UsageError if the text is no shape

struct Tiling {
  Mnk instruction, warp, block;
  bool operator==(const Tiling&) const = default;
};
// Throws UsageError if a shape is not a multiple of the shape inside it, or if it is a wgmma that does not
// exist. A block of zeros is not checked.
void require_tiling(const Machine& machine, const Tiling& tiling);

bool is_wgmma(const Machine& machine, const Mnk& instruction);

// One row of a table: the clocks of a tile's multiply-adds at the multiprocessor's peak, and the tile's
// traffic.
struct Traffic {
  double flops = 0, clocks = 0, bytes = 0;
  double intensity = 0;        // FLOP per byte
  double bytes_per_clock = 0;  // that the level must sustain to reach the peak
};

struct InstructionTraffic : Traffic {
  double bytes_per_clock_without_reuse = 0;  // if every instruction reads its own operands
  double capacity = 0;                       // of the registers, in bytes per clock; a lower bound
};
InstructionTraffic instruction_level(const Machine& machine, Math math, const Mnk& instruction,
                                     const Mnk& warp);

struct WarpTraffic : Traffic {
  double fill_per_clock = 0;  // bytes per clock that arrive from L2 through the same banks
  double capacity = 0;        // of shared memory, in bytes per clock
  double share() const { return (bytes_per_clock + fill_per_clock) / capacity; }
};
WarpTraffic warp_level(const Machine& machine, Math math, const Tiling& tiling);

struct BlockTraffic : Traffic {
  double capacity = 0;  // a multiprocessor's share of L2's bytes per clock; 0: unknown
};
// cluster: thread blocks (m, n) that receive each other's rows and columns by multicast.
BlockTraffic block_level(const Machine& machine, Math math, const Mnk& block, const Mnk& cluster);

// The rows that `roofline` prints by default. docs/gemm.md discusses the same tables.
struct InstructionRow {
  Mnk warp, instruction;
};
struct WarpRow {
  Mnk warp, instruction, block;
};
std::vector<InstructionRow> default_instruction_rows();
std::vector<WarpRow> default_warp_rows();
std::vector<WarpRow> wgmma_rows(Math math);

// mma.sync: m16n8k16, or m16n8k8 for 4-byte operands. With wgmma: 64 rows and min(columns, 256) columns.
// fp32: 1x1x1.
Mnk default_instruction(const Machine& machine, Math math, std::int64_t columns);
// The default warp tile for a thread-block tile. With wgmma: one warpgroup per 64 rows. With mma.sync: 64 ×
// 64, or less if the block is smaller.
Tiling default_tiling(const Machine& machine, Math math, const Mnk& block);
// With clusters, two vertically adjacent thread blocks share B's tile.
Mnk default_cluster(const Machine& machine, Math math);

}  // namespace warpwright::roofline
