#include "cli/skipped_files.hpp"

#include <fmt/format.h>

#include "cli/command.hpp"
#include "cli/standard_streams.hpp"

namespace warpwright::cli {

void SkippedFiles::add(const std::filesystem::path& path, std::string_view kind) {
  Kind& entry = kinds_[std::string(kind)];
  if (entry.files++ == 0) entry.first = path;
}

void SkippedFiles::print() const {
  std::int64_t files = 0;
  std::string list;
  for (const auto& [name, kind] : kinds_) {
    files += kind.files;
    list += fmt::format("{}{} ({}, first {})", list.empty() ? "" : ", ", name, kind.files,
                        plain_line(kind.first.string()));
  }
  if (files > 0) fmt::print("skipped {}: {}\n", counted(files, "file"), list);
}

}  // namespace warpwright::cli
