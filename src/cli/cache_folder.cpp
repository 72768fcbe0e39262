#include "cli/cache_folder.hpp"

#include <unistd.h>

#include <cstdlib>

#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright::cli {

std::filesystem::path users_cache_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path base;
  if (cache && std::filesystem::path(cache).is_absolute()) {
    base = cache;
  } else if (home && std::filesystem::path(home).is_absolute()) {
    base = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  try {
    create_folders(base / "warpwright");
  } catch (const Error&) {
    return {};
  }
  return ::access((base / "warpwright").c_str(), W_OK) == 0 ? base / "warpwright" : std::filesystem::path();
}

}  // namespace warpwright::cli
