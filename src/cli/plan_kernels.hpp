// The times of a step's kernels, for predictions: measured here, or taken from a machine's record.
#pragma once

#include <filesystem>
#include <string>

#include "train/step.hpp"

namespace warpwright::cli {

struct KernelTimes {
  double forward = 0, backward = 0;  // seconds of a slice
  double update = 0;                 // seconds of the update of all parameters, and of their norm
  double bytes_per_second = 0;       // that the update moves
  std::string source;                // for people: "measured on …"
  bool on_gpu = false;
};

// Why steps of one slice are too large to be run on the Context's device; "" if they are not.
std::string too_large_to_time(Context& context, StepOptions step);
// Runs such steps.
KernelTimes measured_kernels(Context& context, StepOptions step);

// From the row of a step with the same sizes in a machine's record, or in what `bench step --json` printed.
// If there is none, the operations of the row of the nearest size are scaled, each kind by its own work, and
// the source says so. Throws Error if no row has the dtype. dtype: as --dtype names it.
KernelTimes recorded_kernels(const std::filesystem::path& record, const std::string& dtype,
                             const StepOptions& step);

}  // namespace warpwright::cli
