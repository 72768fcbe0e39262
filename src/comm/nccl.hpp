// Ranks that train on GPUs: NCCL moves their tensors.
#pragma once

#include <memory>

#include "comm/comm.hpp"

namespace warpwright {

// The several ranks of `texts`, which carries their texts and must outlive the result. Each uses its GPU.
// Throws Error if two ranks share one, if NCCL is not found, or if this build has no NCCL.
std::unique_ptr<const Comm> connect_gpus(const Comm& texts, Device device);

}  // namespace warpwright
