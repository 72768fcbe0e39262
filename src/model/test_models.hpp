// Shared by tests of encoders: the tiny models of testdata.
#pragma once

#include <filesystem>
#include <string>

namespace warpwright {

inline std::filesystem::path folder_of(const std::string& model) {
  return std::filesystem::path(WARPWRIGHT_TESTDATA) / "bert" / model;
}

}  // namespace warpwright
