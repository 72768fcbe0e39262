// --tuned and --tuned-table: kernels that `warpwright tune` measured.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device.hpp"
#include "runtime/tuned.hpp"

namespace warpwright::cli {

// What measurements on this GPU with this program hold for.
TunedFor tuned_for(Device device);
// The table of this GPU in the user's cache folder; Error if there is no such folder.
std::filesystem::path tuned_path(const TunedFor& machine);

struct TunedFlags {
  bool tuned = false;
  std::filesystem::path table;

  void add_to(CLI::App& command);
  bool are_given() const { return tuned || !table.empty(); }
  // The table that the flags ask for; null if they ask for none. Throws Error if a table that is named cannot
  // be used, or if there is none of this GPU. One in the cache folder that is damaged or does not hold here
  // is reported to `notice` and not used.
  std::shared_ptr<const TunedTable> load(Device device,
                                         const std::function<void(const std::string&)>& notice) const;
};

// A table of this file for this device; reports to `notice` and returns null if it cannot be used.
std::shared_ptr<const TunedTable> usable_table(const std::filesystem::path& path, Device device,
                                               const std::function<void(const std::string&)>& notice);

}  // namespace warpwright::cli
