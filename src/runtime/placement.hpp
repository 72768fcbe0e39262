// Places the activations of a memory plan: first fit, largest first.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/memory.hpp"

namespace warpwright {

// Gives each activation, the largest first, the lowest offset at which it overlaps none that is placed
// already and alive at the same time. Offsets are multiples of kAlignment. Returns the arena's size. O(n log²
// n) in the number of activations.
std::size_t place_activations(std::vector<MemoryPlan::Block>& blocks);

}  // namespace warpwright
