// Document 003's analysis: how many operations a product does for a byte that moves, at each level of a
// multiprocessor's memory, for given shapes of instruction, warp tile and thread-block tile.
//
//   level          what moves                                        as the document counts it
//   instruction    registers → tensor core: factors once a warp      WM·WK + WK·WN + 2·(WK/k)·WM·WN elements
//                  tile, sums in and out with each instruction
//   warp           shared memory → registers: a warp reads the rows  CN/WN·CM·CK + CM/WM·CK·CN + 2·CM·CN
//   elements
//                  and columns of its tile; sums stay in registers
//   thread block   L2 → shared memory: the tile's rows and columns   (not in the document)
//
// where instruction, warp tile and thread-block tile are (m, n, k), (WM, WN, WK), (CM, CN, CK). The document
// counts elements and calls them bytes; here e is a factor's size in bytes, sums have 4. Where its own
// formulas disagree, docs/gemm.md has the arithmetic.
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

// The document's two tables, in its own units and with its own formulas, whatever they are: its intensities
// at the warp level come from other bytes than its bytes per clock.
namespace published {
Traffic instruction_level(const Mnk& instruction, const Mnk& warp, double flops_per_clock);
Traffic warp_level(const Mnk& warp, const Mnk& block, double flops_per_clock);
}  // namespace published

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

// The rows of the document's tables, and wgmma's beside them.
struct InstructionRow {
  Mnk warp, instruction;
};
struct WarpRow {
  Mnk warp, instruction, block;
};
std::vector<InstructionRow> document_instruction_rows();
std::vector<WarpRow> document_warp_rows();
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
