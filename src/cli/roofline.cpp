// warpwright roofline: the bytes that a product moves at each level of a GPU, and its predicted times.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/records.hpp"
#include "cli/roofline_flags.hpp"
#include "cli/roofline_report.hpp"
#include "core/error.hpp"
#include "ops/matmul/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::cli {
namespace {

using namespace roofline;

std::int64_t side(std::int64_t value, const char* flag) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (value == kNotGiven) throw UsageError("is not given", flag, "give 1 or more, at most 2^40");
  if (value < 1 || value > kMost) {
    throw UsageError(fmt::format("is {}", value), flag, "give 1 or more, at most 2^40");
  }
  return value;
}

Options options_of(const RooflineFlags& f, const Mnk& cluster) {
  Options options;
  options.cluster = cluster;
  options.blocks_per_multiprocessor = f.blocks_per_multiprocessor;
  options.costs = {
      .launch = f.launch_us * 1e-6, .latency = f.latency_us * 1e-6, .hand_over = f.hand_over_us * 1e-6};
  return options;
}

// Times every variant on this product, on the GPU present.
std::vector<Record> measure_here(const RooflineFlags& f, Direction direction, Math math) {
  if (f.device.empty()) throw UsageError("needs the GPU present", "--measure", "give --device cuda");
  std::vector<Record> records;
  ops::BenchOptions bench_options;
  bench_options.device = f.place();
  bench_options.context = ContextOptions::from_environment();
  bench_options.context.tf32 = math == Math::tf32;
  ops::Bench bench(bench_options, [&](const ops::BenchRow& row) {
    records.push_back({.op = row.op,
                       .variant = row.variant,
                       .problem = row.problem,
                       .dtype = std::string(name_of(math)),
                       .seconds = row.median_seconds,
                       .flops = row.flops,
                       .bytes = row.bytes,
                       .M = f.M,
                       .N = f.N,
                       .K = f.K});
  });
  const DType dtype = math == Math::bf16 ? DType::bf16 : math == Math::f16 ? DType::f16 : DType::f32;
  const ops::matmul::Case c{.M = f.M, .N = f.N, .K = f.K};
  switch (direction) {
    case Direction::forward:
      bench.run(ops::matmul_forward_op(), [&](ops::testing::Fixture& fixture) {
        return ops::matmul::make_forward(c, dtype, false, ops::Activation::none, fixture);
      });
      break;
    case Direction::dx:
      bench.run(ops::matmul_dx_op(), [&](ops::testing::Fixture& fixture) {
        return ops::matmul::make_dx(c, dtype, ops::Activation::none, fixture);
      });
      break;
    case Direction::dw:
      bench.run(ops::matmul_dw_op(), [&](ops::testing::Fixture& fixture) {
        return ops::matmul::make_dw(c, dtype, false, ops::Store::add, fixture);
      });
  }
  return records;
}

std::vector<Record> records_of(const RooflineFlags& f) {
  std::vector<Record> records;
  for (const auto& path : f.measured) {
    for (Record& record : read_records(path)) {
      if (fmt::format("{} {} {}", record.op, record.variant, record.problem).find(f.filter) !=
          std::string::npos) {
        records.push_back(std::move(record));
      }
    }
  }
  return records;
}

ProductReport analyse(const RooflineFlags& f, const Machine& machine, Math math, const Mnk& cluster,
                      const std::vector<Tiling>& rows, const std::vector<Record>& records) {
  ProductReport report;
  report.direction = direction_named(f.op);
  report.M = side(f.M, "--m"), report.N = side(f.N, "--n"), report.K = side(f.K, "--k");
  report.product = product_of(report.direction, f.M, f.N, f.K, math);
  Options options = options_of(f, cluster);
  for (const Schedule schedule : kSchedules) {
    if (!f.schedule.empty() && schedule != schedule_named(f.schedule)) continue;
    if (f.tiles.empty()) {
      report.predictions.push_back(predict_best(machine, report.product, options, schedule));
    } else {
      options.tiling = rows.front();
      report.predictions.push_back(predict(machine, report.product, options, schedule));
    }
  }
  options.tiling = report.fastest().tiling;
  report.levels = levels(machine, report.product, options);
  report.tiles = tiles_of(machine, report.product, options);
  const std::string op = fmt::format("matmul.{}", name_of(report.direction));
  for (const Record& r : records) {
    if (r.op == op && r.M == f.M && r.N == f.N && r.K == f.K && r.dtype == name_of(math))
      report.measured.push_back(r);
  }
  if (f.measure) {
    for (Record& r : measure_here(f, report.direction, math)) report.measured.push_back(std::move(r));
  }
  return report;
}

// The map's rows and columns of a result, from a tile to a long batch.
const std::vector<std::int64_t> kMapRows{64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536};
const std::vector<std::int64_t> kMapCols{128,  256,  512,  768,  1024,  1600,
                                         2304, 3072, 4096, 6400, 12288, 50304};

void run(const RooflineFlags& f) {
  const Math math = math_named(f.dtype);
  const Machine machine = f.machine(math);
  RooflineReport report;
  report.machine = machine;
  report.math = math;
  report.explain = f.explain;
  report.cluster = f.cluster_on(machine, math);
  const Mnk& cluster = report.cluster;
  report.rows = f.rows(machine, math);
  report.default_rows = f.instructions.empty() && f.warps.empty() && f.tiles.empty();
  report.measured = records_of(f);
  const bool product_given = f.M != kNotGiven || f.N != kNotGiven || f.K != kNotGiven;
  if (f.map) {
    Product product = product_of(direction_named(f.op), 1, 1, 1, math);
    product.depth = side(f.K, "--k");
    Options options = options_of(f, cluster);
    const bool one_tile = !f.tiles.empty();
    options.tiling = report.rows.front();
    report.map_depth = product.depth;
    report.map = map_of(machine, product, options, kMapRows, kMapCols, one_tile);
  } else if (product_given) {
    if (f.tiles.size() > 1) throw UsageError("several are given for one product", "--tile", "give one");
    report.product = analyse(f, machine, math, cluster, report.rows, report.measured);
  } else if (f.measure || !f.schedule.empty()) {
    throw UsageError("needs a product", f.measure ? "--measure" : "--schedule", "give --m, --n and --k");
  }
  if (f.kernels) {
    if (math == Math::f32) throw UsageError("is of bf16, fp16 and tf32", "--kernels", "give another --dtype");
    report.kernels = kernels_on(machine, math, options_of(f, cluster).costs, report.product);
  }
  f.json ? print_json(report) : print_text(report);
}

}  // namespace

void add_roofline(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("roofline", "Analyse matrix products on a GPU: intensity, bounds, schedules");
  auto flags = std::make_shared<RooflineFlags>();
  flags->add_to(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace warpwright::cli
