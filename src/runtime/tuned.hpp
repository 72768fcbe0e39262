// The kernels that were measured as the fastest on one GPU. `warpwright tune` writes them to a table, and
// `--tuned` uses it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace warpwright {

// The machine of some measurements: GPU, driver, library of matrix products (cuBLASLt) and version of the
// program. The measurements are valid only if all four are the same.
struct TunedFor {
  std::string gpu, driver, library, program;

  bool operator==(const TunedFor&) const = default;
};

// The two parts of "cuda.persistent[66 workers]": the kernel, and the configuration in brackets ("" if there
// is none).
struct ChoiceParts {
  std::string_view kernel, configuration;
};
ChoiceParts parts_of(std::string_view choice);

// The fastest choice for each measured problem of an operation, as
// "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]". The file is JSON with a checksum
// (docs/formats.md).
class TunedTable {
 public:
  explicit TunedTable(TunedFor machine) : machine_(std::move(machine)) {}
  // Throws Error if the file is missing or damaged, or if it is not such a table.
  static TunedTable read(const std::string& path);
  // Creates the folder and replaces the file. Throws Error if it cannot.
  void write(const std::string& path) const;

  const TunedFor& machine() const { return machine_; }
  // The first difference from this machine, the driver "580.65", here "580.159"; "" if there is none.
  std::string difference(const TunedFor& here) const;

  void set(std::string_view operation, std::string_view problem, std::string choice);
  // Null if the problem was not measured.
  const std::string* choice(std::string_view operation, std::string_view problem) const;
  // The part of the choice in brackets; none if the problem was not measured or chooses another kernel.
  std::optional<std::string_view> configuration(std::string_view operation, std::string_view problem,
                                                std::string_view kernel) const;
  std::size_t size() const { return choices_.size(); }
  std::string checksum() const;  // of machine and choices

 private:
  TunedFor machine_;
  std::map<std::string, std::string, std::less<>> choices_;  // by "OPERATION PROBLEM"
};

}  // namespace warpwright
