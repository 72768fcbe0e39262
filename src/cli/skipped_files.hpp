// Counts the input files that were skipped, by kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace warpwright::cli {

class SkippedFiles {
 public:
  void add(const std::filesystem::path& path, std::string_view kind);
  // "skipped 2 files: PNG image (2, first photos/a.png)"; nothing if no file was skipped.
  void print() const;

 private:
  struct Kind {
    std::int64_t files = 0;
    std::filesystem::path first;
  };
  std::map<std::string, Kind, std::less<>> kinds_;
};

}  // namespace warpwright::cli
