// RUN/metrics.jsonl: a JSON object for each step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "runtime/file.hpp"

namespace warpwright {

class Metrics {
 public:
  // Continues the file after its last line for a step up to `steps`; later lines are cut off, since the run
  // will write them again. Only these lines are read, from the end of the file.
  Metrics(const std::filesystem::path& path, std::int64_t steps);

  void write(const nlohmann::json& line);

 private:
  OutputFile file_;
};

}  // namespace warpwright
