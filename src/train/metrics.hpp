// RUN/metrics.jsonl: a JSON object for each step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "runtime/file.hpp"

namespace warpwright {

class Metrics {
 public:
  // Throws if the file is not a run's, and leaves it as it is.
  Metrics(std::filesystem::path path, std::int64_t steps);

  // The first call continues the file after its last line for a step up to `steps`; later lines are cut off,
  // since the run will write them again. Only these lines are read, from the end of the file.
  void write(const nlohmann::json& line);

 private:
  std::filesystem::path path_;
  std::int64_t steps_;
  std::optional<OutputFile> file_;
};

}  // namespace warpwright
