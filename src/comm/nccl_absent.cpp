#include <fmt/format.h>

#include "comm/nccl.hpp"
#include "core/error.hpp"

namespace warpwright {

std::unique_ptr<const Comm> connect_gpus(const Comm& texts, Device) {
  throw Error(fmt::format("{} ranks were started, but this build has no NCCL", texts.size()), "--device",
              "build with -DWARPWRIGHT_NCCL=ON, or start one process");
}

}  // namespace warpwright
