#include <fmt/format.h>

#include "comm/mpi.hpp"
#include "core/error.hpp"

namespace warpwright {

std::unique_ptr<const Comm> connect_by_mpi(const Launch& launch, const RankOptions&) {
  throw Error(fmt::format("{} ranks were started, but this build has no MPI", launch.ranks), "launcher",
              "build with -DWARPWRIGHT_MPI=ON, or start GPUs with --gpus, torchrun or srun");
}

}  // namespace warpwright
