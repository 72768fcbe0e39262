#include <fmt/format.h>

#include "comm/mpi.hpp"
#include "core/error.hpp"

namespace warpwright {

std::unique_ptr<const Comm> connect_by_mpi(int expected) {
  throw Error(fmt::format("{} ranks were started, but this build has no MPI", expected), "launcher",
              "start one process, or build with -DWARPWRIGHT_MPI=ON");
}

}  // namespace warpwright
