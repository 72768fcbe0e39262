// The flags of `warpwright roofline`, and the GPU and the tilings that they name.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "roofline/gemm.hpp"

namespace warpwright::cli {

inline constexpr std::int64_t kNotGiven = std::numeric_limits<std::int64_t>::min();

struct RooflineFlags {
  std::string gpu, device, dtype = "bf16", op = "forward", schedule, filter;
  std::vector<std::string> instructions, warps, tiles;
  std::string cluster;
  std::int64_t M = kNotGiven, N = kNotGiven, K = kNotGiven;
  std::int64_t blocks_per_multiprocessor = 1;
  double launch_us = 1e6 * roofline::Costs{}.launch, latency_us = 1e6 * roofline::Costs{}.latency,
         hand_over_us = 1e6 * roofline::Costs{}.hand_over;
  double matrix_tflops = 0, memory_gb = 0;
  std::vector<std::filesystem::path> measured;
  bool map = false, kernels = false, explain = false, measure = false, json = false;

  void add_to(CLI::App& command);
  // The GPU of --device; UsageError for a CPU.
  Device place() const;
  // The GPU by name, or the one present, measured.
  roofline::Machine machine(roofline::Math math) const;
  roofline::Mnk cluster_on(const roofline::Machine& machine, roofline::Math math) const;
  // The rows asked for; without any, the default ones, and wgmma's where the machine has that.
  std::vector<roofline::Tiling> rows(const roofline::Machine& machine, roofline::Math math) const;
};

}  // namespace warpwright::cli
