// warpwright roofline --kernels: the occupancy of the kernels on mma.sync, and their predicted times.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/roofline_report.hpp"

namespace warpwright::cli {

using namespace roofline;
using nlohmann::ordered_json;

std::vector<KernelReport> kernels_on(const Machine& machine, Math math, const Costs& costs,
                                     const std::optional<ProductReport>& product) {
  std::vector<KernelReport> kernels;
  for (const ops::matmul::MmaTile& tile : ops::matmul::kMmaTiles) {
    KernelReport k;
    k.needs = ops::matmul::needs_of(tile);
    k.occupancy = occupancy_of(machine, k.needs);
    Options options = ops::matmul::roofline_options(tile, math);
    options.costs = costs;
    k.tiling = options.tiling;
    k.stages = tile.stages;
    options.blocks_per_multiprocessor = k.occupancy.blocks;
    for (const Schedule schedule : kSchedules) {
      if (product && k.occupancy.blocks > 0) {
        k.predictions.push_back(predict(machine, product->product, options, schedule));
      }
    }
    kernels.push_back(std::move(k));
  }
  return kernels;
}

void print_kernels(const std::vector<KernelReport>& kernels) {
  fmt::print(
      "\nKernels on mma.sync: what a block takes, and the blocks that a multiprocessor has room for\n"
      "{:<14}{:<12}{:>7}{:>9}{:>11}{:>8}  |{:>10}{:>8}{:>7}{:>8}{:>7}\n",
      "tile", "warp", "stages", "threads", "registers", "KB", "registers", "shared", "warps", "blocks",
      "full");
  for (const KernelReport& k : kernels) {
    const Occupancy& o = k.occupancy;
    fmt::print("{:<14}{:<12}{:>7}{:>9}{:>11}{:>8.0f}  |{:>10}{:>8}{:>7}{:>8}{:>6.0f}%\n",
               text_of(k.tiling.block), text_of(k.tiling.warp), k.stages, k.needs.threads, k.needs.registers,
               static_cast<double>(k.needs.shared_bytes) / 1024, o.by_registers, o.by_shared, o.by_warps,
               o.blocks, 100 * o.warps);
  }
  if (kernels.front().predictions.empty()) return;
  fmt::print("\n{:<14}", "tile");
  for (const Schedule schedule : kSchedules) fmt::print("{:>30}", name_of(schedule));
  for (const KernelReport& k : kernels) {
    fmt::print("\n{:<14}", text_of(k.tiling.block));
    for (const Prediction& p : k.predictions) {
      fmt::print("{:>30}", fmt::format("{:.1f} us {:.1f} TFLOP/s {:.0f}%", p.seconds * 1e6,
                                       p.flops_per_second * 1e-12, 100 * p.share_of_peak));
    }
  }
  fmt::print("\n");
}

ordered_json json_of(const std::vector<KernelReport>& kernels) {
  ordered_json list = ordered_json::array();
  for (const KernelReport& k : kernels) {
    ordered_json row = {{"tile", text_of(k.tiling.block)},
                        {"warp", text_of(k.tiling.warp)},
                        {"stages", k.stages},
                        {"threads", k.needs.threads},
                        {"registers", k.needs.registers},
                        {"shared_bytes", k.needs.shared_bytes},
                        {"blocks_by_registers", k.occupancy.by_registers},
                        {"blocks_by_shared", k.occupancy.by_shared},
                        {"blocks_by_warps", k.occupancy.by_warps},
                        {"blocks", k.occupancy.blocks},
                        {"occupancy", k.occupancy.warps}};
    for (const Prediction& p : k.predictions) row[std::string(name_of(p.split.schedule))] = p.seconds;
    list.push_back(row);
  }
  return list;
}

}  // namespace warpwright::cli
