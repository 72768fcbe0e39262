// The memory of a training run's ranks: a table of it, and the check that it is there.
#pragma once

#include <string>
#include <vector>

#include "train/trainer.hpp"

namespace warpwright::cli {

// A line for each rank, from `first` on, and a column for each purpose.
std::string memory_table(const std::vector<RankMemory>& ranks, int first = 0);

// Throws Error if the ranks of a device need more memory than it has; the remedy names flags that fit.
// ranks: the memory of each. Every rank makes this call, and all throw the same.
void check_memory(Context& context, const Trainer& trainer, const std::vector<RankMemory>& ranks,
                  const Comm& comm);

}  // namespace warpwright::cli
