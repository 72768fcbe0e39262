#include "roofline/occupancy.hpp"

#include <algorithm>

namespace warpwright::roofline {

Occupancy occupancy_of(const Machine& machine, const BlockNeeds& block) {
  constexpr std::int64_t kRegisterBytes = 4, kUnit = 256, kReserved = 1024, kMostBlocks = 16;
  const std::int64_t warps = (block.threads + 31) / 32;
  const std::int64_t registers = (block.registers * std::int64_t{32} + kUnit - 1) / kUnit * kUnit * warps;
  const auto room = [&](std::int64_t all, std::int64_t each) {
    return static_cast<int>(std::min(each > 0 ? all / each : kMostBlocks, kMostBlocks));
  };
  Occupancy o;
  o.by_registers = room(machine.register_bytes / kRegisterBytes, registers);
  o.by_shared = block.shared_bytes > machine.shared_bytes_per_block
                    ? 0
                    : room(machine.shared_bytes, block.shared_bytes + kReserved);
  o.by_warps = room(machine.warps, warps);
  o.blocks = std::min({o.by_registers, o.by_shared, o.by_warps});
  o.limit = o.blocks == o.by_registers ? "registers" : o.blocks == o.by_shared ? "shared memory" : "warps";
  o.warps = static_cast<double>(o.blocks * warps) / machine.warps;
  return o;
}

}  // namespace warpwright::roofline
