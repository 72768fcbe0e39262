// The content of a folder, so that two states of it can be compared.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace warpwright::faults {

// Relative path → permissions and content, without the times in metrics.jsonl, the process in a lock, and the
// process and number in the names of partials.
using Snapshot = std::map<std::string, std::string>;

Snapshot snapshot_of(const std::filesystem::path& folder);

// The entries at and below `path`, relative to it.
Snapshot part_of(const Snapshot& whole, const std::string& path);

// The first path where the two differ, and how; empty if they are equal.
std::string difference(const Snapshot& actual, const Snapshot& wanted);

// "RUN/model.partial-123-4/x" → "RUN/model.partial-N/x"
std::string without_process(const std::string& path);

}  // namespace warpwright::faults
