// The list of all benches, and the output of their results.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "ops/testing/bench.hpp"
#include "runtime/json.hpp"

namespace warpwright::ops {

#define WARPWRIGHT_OPERATION(name) void name##_bench(Bench& bench);
#include "operations.inc"
#undef WARPWRIGHT_OPERATION

namespace {

struct Entry {
  std::string_view name;
  void (*run)(Bench&);
};

constexpr Entry kBenches[] = {
#define WARPWRIGHT_OPERATION(name) {#name, name##_bench},
#include "operations.inc"
#undef WARPWRIGHT_OPERATION
};

const Entry& find_bench(const std::string& name) {
  const auto* found = std::find_if(std::begin(kBenches), std::end(kBenches),
                                   [&](const Entry& entry) { return entry.name == name; });
  if (found == std::end(kBenches)) {
    throw UsageError(fmt::format("there is no bench '{}'", name), "bench",
                     fmt::format("name one of: {}", fmt::join(bench_names(), ", ")));
  }
  return *found;
}

std::string table_head(const DeviceInfo& device, const Ceilings& c) {
  const std::string machine = fmt::format(
      "{}, {} threads. Ceilings beyond L2: read {:.1f}, mixed {:.1f}, copy {:.1f} GB/s; "
      "fp32 {:.0f}, bf16 {:.0f} GFLOP/s",
      device.name, device.threads, c.bandwidth.read / 1e9, c.bandwidth.mixed / 1e9, c.bandwidth.copy / 1e9,
      c.flops.fp32 / 1e9, c.flops.bf16 / 1e9);
  return fmt::format("{}\n{:<28} {:<24} {:<56} {:>11} {:>11} {:>8} {:>9} {:>8} {:>8}\n", machine, "op",
                     "variant (* used)", "problem", "median us", "min us", "GB/s", "GFLOP/s", "ceiling",
                     "x copy");
}

std::string table_row(const BenchRow& row) {
  return fmt::format("{:<28} {:<24} {:<56} {:>11.1f} {:>11.1f} {:>8.1f} {:>9.1f} {:>7.1f}% {:>8.2f}\n",
                     row.op, row.variant + (row.chosen ? " *" : ""), row.problem, row.median_seconds * 1e6,
                     row.min_seconds * 1e6, row.bytes_per_second() / 1e9, row.flops_per_second() / 1e9,
                     row.share_of_ceiling() * 100, row.share_of_copy());
}

nlohmann::ordered_json to_json(const BenchRow& row) {
  nlohmann::ordered_json json = {{"op", row.op},
                                 {"variant", row.variant},
                                 {"problem", row.problem},
                                 {"dtype", std::string(name_of(row.dtype))},
                                 {"median_seconds", row.median_seconds},
                                 {"min_seconds", row.min_seconds},
                                 {"bytes", row.bytes},
                                 {"flops", row.flops},
                                 {"bytes_per_second", row.bytes_per_second()},
                                 {"flops_per_second", row.flops_per_second()},
                                 {"share_of_ceiling", row.share_of_ceiling()},
                                 {"chosen", row.chosen},
                                 {"share_of_copy", row.share_of_copy()}};
  return json;
}

nlohmann::ordered_json to_json(const DeviceInfo& device, const Ceilings& c) {
  return {{"device", device.name},
          {"threads", device.threads},
          {"ceilings",
           {{"read_bytes_per_second", c.bandwidth.read},
            {"mixed_bytes_per_second", c.bandwidth.mixed},
            {"copy_bytes_per_second", c.bandwidth.copy},
            {"fp32_flops_per_second", c.flops.fp32},
            {"bf16_flops_per_second", c.flops.bf16}}},
          {"rows", nlohmann::ordered_json::array()}};
}

}  // namespace

std::vector<std::string> bench_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kBenches) names.emplace_back(entry.name);
  return names;
}

Disturbance write_benches(const std::vector<void (*)(Bench&)>& benches, const BenchOptions& options,
                          std::ostream& out) {
  nlohmann::ordered_json document;
  std::string head;  // printed before the first row
  bool found = false;
  Bench bench(options, [&](const BenchRow& row) {
    found = true;
    if (options.json) {
      document["rows"].push_back(to_json(row));
    } else {
      out << std::exchange(head, "") << table_row(row) << std::flush;
    }
  });
  const Ceilings ceilings = bench.ceilings(0);
  document = to_json(bench.device(), ceilings);
  head = table_head(bench.device(), ceilings);
  for (const auto run : benches) run(bench);
  if (!found && !options.filter.empty()) {
    throw UsageError(fmt::format("no row contains {}", quote(options.filter)), "--filter",
                     "leave it out to see all rows");
  }
  const Disturbance disturbance = bench.disturbance();
  document["other_processors"] = disturbance.other_processors;
  document["ceiling_change"] = disturbance.ceiling_change;
  document["disturbed"] = disturbance.found();
  if (options.json) out << document.dump(2) << "\n";
  return disturbance;
}

Disturbance run_benches(const std::vector<std::string>& names, const BenchOptions& options,
                        std::ostream& out) {
  std::vector<void (*)(Bench&)> benches;
  for (const std::string& name : names.empty() ? bench_names() : names) {
    benches.push_back(find_bench(name).run);
  }
  return write_benches(benches, options, out);
}

}  // namespace warpwright::ops
