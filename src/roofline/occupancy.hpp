// The blocks of a kernel that a multiprocessor holds at once.
#pragma once

#include <cstdint>
#include <string_view>

#include "roofline/machine.hpp"

namespace warpwright::roofline {

// The resources of one block.
struct BlockNeeds {
  int threads = 0, registers = 0;  // registers of a thread
  std::int64_t shared_bytes = 0;
};

struct Occupancy {
  int by_registers = 0, by_shared = 0, by_warps = 0;  // blocks that each resource has room for
  int blocks = 0;                                     // the least of the three
  double warps = 0;                                   // of all that a multiprocessor can hold, from 0 to 1
  std::string_view limit;                             // "registers", "shared memory" or "warps"
};
// A block takes registers for whole warps, in units of 256, and 1 KB of shared memory more than it asks for.
Occupancy occupancy_of(const Machine& machine, const BlockNeeds& block);

}  // namespace warpwright::roofline
