// Checks that a training run fits into memory.
#pragma once

#include "train/trainer.hpp"

namespace warpwright::cli {

// Throws Error if the trainer's plan needs more memory than the device has; the remedy names flags that fit.
void check_memory(Context& context, const Trainer& trainer, const Comm& comm);

}  // namespace warpwright::cli
