// Ranks that MPI connects.
#pragma once

#include <memory>

#include "comm/comm.hpp"

namespace warpwright {

// expected: the number of ranks according to the launcher. Throws Error if MPI knows another number, or if
// this build has no MPI.
std::unique_ptr<const Comm> connect_by_mpi(int expected);

}  // namespace warpwright
