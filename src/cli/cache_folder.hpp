// The folder in which the program keeps files for the user between runs.
#pragma once

#include <filesystem>

namespace warpwright::cli {

// "warpwright" in XDG_CACHE_HOME or ~/.cache, which is created; empty if this user has none that can be
// written.
std::filesystem::path users_cache_folder();

}  // namespace warpwright::cli
