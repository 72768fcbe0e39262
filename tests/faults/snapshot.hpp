// The content of a folder, so that two states of it can be compared.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace warpwright::faults {

// Maps each relative path to its permissions and content. Omits the times in metrics.jsonl, the process in a
// lock, and the process and number in the names of partials.
using Snapshot = std::map<std::string, std::string>;

Snapshot snapshot_of(const std::filesystem::path& folder);

// The entries at and below `path`, relative to it.
Snapshot part_of(const Snapshot& whole, const std::string& path);

// The first path at which the two differ, and the difference. Empty if they are equal.
std::string difference(const Snapshot& actual, const Snapshot& wanted);

// "RUN/model.partial-123-4/x" → "RUN/model.partial-N/x"
std::string without_process(const std::string& path);

}  // namespace warpwright::faults
