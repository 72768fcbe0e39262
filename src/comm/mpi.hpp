// Ranks that MPI connects.
#pragma once

#include <memory>

#include "comm/comm.hpp"

namespace warpwright {

// Throws Error if MPI knows another number of ranks than the launcher, or if this build has no MPI.
std::unique_ptr<const Comm> connect_by_mpi(const Launch& launch, const RankOptions& options);

}  // namespace warpwright
