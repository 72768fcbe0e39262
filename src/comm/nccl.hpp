// Ranks that train on GPUs: NCCL moves their tensors, and adds them up for Comm::reduce().
#pragma once

#include <memory>

#include "comm/comm.hpp"

namespace warpwright {

// The ranks of `texts`, two or more, each with its own GPU. `texts` carries their texts and must outlive the
// result. Throws Error if two ranks share a GPU, if NCCL cannot be loaded, or if this build has no NCCL.
std::unique_ptr<const Comm> connect_gpus(const Comm& texts, Device device);

}  // namespace warpwright
