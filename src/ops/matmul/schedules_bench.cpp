#include "ops/matmul/schedules_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "ops/matmul/timer_bench.hpp"
#include "runtime/ceiling.hpp"

namespace warpwright::ops::matmul {
namespace {

// The instruction's rate without memory, in FLOP per second.
double ceiling_of(const ScheduleBenchOptions& options, const DeviceInfo& device) {
  constexpr double kSeconds = 0.5;
  return options.wgmma ? measure_peak_flops(device, 2 * kSeconds).of(options.dtype)
                       : measure_mma_flops(device, options.dtype, kSeconds);
}

std::string variant_of(const ScheduleBenchOptions& options, Schedule schedule) {
  return fmt::format("cuda.{}{}", options.wgmma ? "" : "mma_", name_of(schedule));
}

class Schedules {
 public:
  explicit Schedules(const ScheduleBenchOptions& options)
      : options_(options), timer_(options.context, options.device) {
    for (const Schedule schedule : roofline::kSchedules)
      timing_.variants.push_back(variant_of(options, schedule));
    timing_.rounds = options.rounds;
  }
  const DeviceInfo& device() { return timer_.context().device(); }

  // The three schedules' kernels in order. A kernel that refuses the product is left out.
  std::vector<TimedKernel> time(const ProductShape& shape) {
    switch (shape.direction) {
      case Direction::forward:
        return time(matmul_forward_op(), shape.forward_problem());
      case Direction::dx:
        return time(matmul_dx_op(), shape.dx_problem());
      default:
        return time(matmul_dw_op(), shape.dw_problem());
    }
  }

 private:
  template <class A, class Problem>
  std::vector<TimedKernel> time(const Op<A>& op, Problem problem) {
    problem.dtype = options_.dtype;
    return timer_.time(op, problem, timing_);
  }

  const ScheduleBenchOptions& options_;
  ProductTimer timer_;
  TimingOptions timing_;
};

double flops_of(const ProductShape& s) {
  return 2.0 * static_cast<double>(s.M) * static_cast<double>(s.N) * static_cast<double>(s.K);
}

}  // namespace

void bench_schedules(const ScheduleBenchOptions& options, std::ostream& out) {
  Schedules schedules(options);
  const double ceiling = ceiling_of(options, schedules.device());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!options.json) {
    out << fmt::format(
        "{}; the rate of {} alone: {:.1f} TFLOP/s\nTFLOP/s, and their share of that rate\n{:<40}",
        schedules.device().name, options.wgmma ? "wgmma" : "mma.sync", ceiling * 1e-12, "product");
    for (const Schedule schedule : roofline::kSchedules) out << fmt::format("{:>16}", name_of(schedule));
    out << "  fastest kernel\n";
  }
  for (const ProductShape& shape : options.shapes) {
    const std::vector<TimedKernel> kernels = schedules.time(shape);
    if (kernels.empty()) continue;
    nlohmann::ordered_json row = {{"product", shape.describe()},
                                  {"kernels", nlohmann::ordered_json::array()}};
    std::string line = fmt::format("{:<40}", shape.describe());
    for (const Schedule schedule : roofline::kSchedules) {
      const auto k = std::ranges::find_if(
          kernels, [&](const TimedKernel& kernel) { return kernel.is_of(variant_of(options, schedule)); });
      if (k == kernels.end()) {
        line += fmt::format("{:>16}", "refused");
        continue;
      }
      const double rate = flops_of(shape) / k->seconds;
      line += fmt::format("{:>9.1f}{:>7.3f}", rate * 1e-12, rate / ceiling);
      row["kernels"].push_back(
          {{"kernel", k->choice}, {"seconds", k->seconds}, {"flops", rate}, {"share", rate / ceiling}});
    }
    rows.push_back(row);
    if (options.json) continue;
    out << line << "  " << std::ranges::min_element(kernels, {}, &TimedKernel::seconds)->choice << "\n"
        << std::flush;
  }
  if (!options.json) return;
  const nlohmann::ordered_json document = {
      {"device", schedules.device().name}, {"ceiling_flops", ceiling}, {"rows", rows}};
  out << document.dump(2) << "\n";
}

}  // namespace warpwright::ops::matmul
