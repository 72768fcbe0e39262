// --tuned and --tuned-table: use the kernels that `warpwright tune` measured.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device.hpp"
#include "runtime/tuned.hpp"

namespace warpwright::cli {

// The GPU, driver, library and program for which measurements made now are valid.
TunedFor tuned_for(Device device);
// The path of this GPU's table in the user's cache folder. Throws Error if there is no such folder.
std::filesystem::path tuned_path(const TunedFor& machine);

struct TunedFlags {
  bool tuned = false;
  std::filesystem::path table;

  void add_to(CLI::App& command);
  bool are_given() const { return tuned || !table.empty(); }
  // The table that the flags name; null if they name none. Throws Error if a file named with --tuned-table
  // cannot be used, or if the cache folder has no table of this GPU. If the table in the cache folder is
  // damaged or not valid on this machine, reports that to `notice` and returns null. Throws UsageError if the
  // device is not a GPU.
  std::shared_ptr<const TunedTable> load(Device device,
                                         const std::function<void(const std::string&)>& notice) const;
};

// The table in this file. If it cannot be used on this device, reports that to `notice` and returns null.
std::shared_ptr<const TunedTable> usable_table(const std::filesystem::path& path, Device device,
                                               const std::function<void(const std::string&)>& notice);

}  // namespace warpwright::cli
