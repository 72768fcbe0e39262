// The folder for files that the program keeps between runs.
#pragma once

#include <filesystem>

namespace warpwright::cli {

// The path "warpwright" in XDG_CACHE_HOME or ~/.cache. Creates the folder. Returns an empty path if there is
// no folder that this user can write.
std::filesystem::path users_cache_folder();

}  // namespace warpwright::cli
