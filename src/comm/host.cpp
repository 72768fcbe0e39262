#include "comm/host.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include "runtime/file.hpp"

namespace warpwright {

std::string host_name() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return host;
}

std::string rank_on_host(int rank) {
  return fmt::format("rank {} on {}", rank, host_name());
}

// Containers have host names of their own.
std::string machine_id() {
  constexpr const char* kBoot = "/proc/sys/kernel/random/boot_id";
  return path_exists(kBoot) ? read_file(kBoot, 4096) : host_name();
}

}  // namespace warpwright
