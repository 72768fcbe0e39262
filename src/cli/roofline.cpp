// warpwright roofline: what a product moves at every level of any GPU, and the model's times of it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/records.hpp"
#include "cli/roofline_report.hpp"
#include "core/error.hpp"
#include "ops/matmul/cases.hpp"
#include "ops/testing/bench.hpp"
#include "runtime/ceiling.hpp"

namespace warpwright::cli {
namespace {

using namespace roofline;

constexpr std::int64_t kNotGiven = std::numeric_limits<std::int64_t>::min();

struct Flags {
  std::string gpu, device, dtype = "bf16", op = "forward", schedule, filter;
  std::vector<std::string> instructions, warps, tiles;
  std::string cluster;
  std::int64_t M = kNotGiven, N = kNotGiven, K = kNotGiven;
  std::int64_t blocks_per_multiprocessor = 1;
  double launch_us = 1e6 * Costs{}.launch, latency_us = 1e6 * Costs{}.latency,
         hand_over_us = 1e6 * Costs{}.hand_over;
  double matrix_tflops = 0, memory_gb = 0;
  std::vector<std::filesystem::path> measured;
  bool map = false, explain = false, measure = false, json = false;
};

Device place_of(const std::string& name) {
  DeviceFlags flags;
  flags.device = name;
  const Device place = flags.place();
  if (place.kind != DeviceKind::cuda) {
    throw UsageError(fmt::format("'{}' is no GPU", name), "--device", "use cuda or cuda:N, or --gpu NAME");
  }
  return place;
}

Machine present_machine(const std::string& name) {
  constexpr double kSeconds = 0.3;
  const DeviceInfo device = device_info(place_of(name));
  const PeakFlops peak = measure_peak_flops(device, kSeconds);
  const Bandwidth bandwidth = measure_bandwidth(device, bandwidth_footprint(device), kSeconds);
  Measured m;
  m.name = device.name;
  m.major = device.gpu.major, m.minor = device.gpu.minor;
  m.multiprocessors = device.gpu.multiprocessors;
  m.l2_bytes = static_cast<std::int64_t>(device.l2_bytes);
  m.shared_bytes = static_cast<std::int64_t>(device.gpu.shared_bytes_per_multiprocessor);
  m.shared_bytes_per_block = static_cast<std::int64_t>(device.gpu.shared_bytes_per_block);
  m.matrix_flops = peak.bf16, m.fp32_flops = peak.fp32;
  m.memory_bytes_per_second = bandwidth.read;
  return measured_machine(m);
}

Machine machine_of(const Flags& f, Math math) {
  if (f.gpu.empty() == f.device.empty()) {
    throw UsageError(
        f.gpu.empty() ? "no GPU is named" : "a GPU by name and the one present are asked for",
        "--gpu, --device",
        fmt::format("give one of the two: --gpu with one of {}, or --device cuda", known_names()));
  }
  const Machine machine = f.gpu.empty() ? present_machine(f.device) : published_machine(f.gpu);
  if (f.matrix_tflops == 0 && f.memory_gb == 0) return machine;
  Machine held = held_to(machine, math, f.matrix_tflops * 1e12, f.memory_gb * 1e9);
  held.source += "; held to";
  if (f.matrix_tflops > 0) held.source += fmt::format(" {:g} TFLOP/s", f.matrix_tflops);
  if (f.memory_gb > 0)
    held.source += fmt::format("{} {:g} GB/s", f.matrix_tflops > 0 ? "," : "", f.memory_gb);
  return held;
}

std::vector<Mnk> shapes(const std::vector<std::string>& texts, std::string_view flag) {
  std::vector<Mnk> list;
  for (const std::string& text : texts) list.push_back(mnk_named(text, flag));
  return list;
}

Mnk cluster_of(const Flags& f, const Machine& machine, Math math) {
  constexpr std::int64_t kMostBlocks = 16;
  if (f.cluster.empty()) return default_cluster(machine, math);
  Mnk cluster;
  try {
    cluster = mnk_named(f.cluster + "x1", "--cluster");
  } catch (const UsageError&) {
    throw UsageError(fmt::format("'{}' is not a shape", f.cluster), "--cluster", "give MxN, as in 2x1");
  }
  if (cluster.m * cluster.n > kMostBlocks) {
    throw UsageError(fmt::format("{} are {} thread blocks", f.cluster, cluster.m * cluster.n), "--cluster",
                     fmt::format("a cluster has at most {}", kMostBlocks));
  }
  return cluster;
}

// The i-th of a list that has one for each row, or one for all.
const Mnk& of_row(const std::vector<Mnk>& list, std::size_t i) {
  return list.size() == 1 ? list.front() : list[i];
}

// The rows asked for; without any, the default ones, and wgmma's where the machine has that.
std::vector<Tiling> rows_of(const Flags& f, const Machine& machine, Math math) {
  const auto instructions = shapes(f.instructions, "--instruction");
  const auto warps = shapes(f.warps, "--warp");
  const auto tiles = shapes(f.tiles, "--tile");
  const std::size_t count = std::max({instructions.size(), warps.size(), tiles.size()});
  std::vector<Tiling> rows;
  if (count == 0) {
    if (element_bytes(math) == 2) {
      for (const WarpRow& row : default_warp_rows()) rows.push_back({row.instruction, row.warp, row.block});
      if (machine.has_wgmma()) {
        for (const WarpRow& row : wgmma_rows(math)) rows.push_back({row.instruction, row.warp, row.block});
      }
    } else {
      for (const Mnk& tile : candidate_tiles(machine, math))
        rows.push_back(default_tiling(machine, math, tile));
    }
    return rows;
  }
  for (const auto* list : {&instructions, &warps, &tiles}) {
    if (list->size() > 1 && list->size() != count) {
      throw UsageError(
          fmt::format("{}, {} and {} shapes are given", instructions.size(), warps.size(), tiles.size()),
          "--instruction, --warp, --tile", "give of each none, one for all rows, or as many as rows");
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    Tiling row;
    if (!tiles.empty()) {
      row = default_tiling(machine, math, of_row(tiles, i));
      // The warps of an instruction that is given: a whole tile of wgmma's rows, else as by default.
      if (!instructions.empty() && warps.empty() && of_row(instructions, i).m != row.instruction.m) {
        Machine without_wgmma = machine;
        without_wgmma.major = 8;
        row = default_tiling(of_row(instructions, i).m == 64 ? machine : without_wgmma, math, row.block);
      }
    } else {
      row.instruction = default_instruction(machine, math, warps.empty() ? 256 : of_row(warps, i).n);
    }
    if (!instructions.empty()) row.instruction = of_row(instructions, i);
    if (!warps.empty()) {
      row.warp = of_row(warps, i);
      if (instructions.empty() && row.warp.m % row.instruction.m != 0) {
        row.instruction = {16, 8, row.instruction.k};
      }
    }
    if (row.warp.m == 0) row.warp = row.instruction;
    const Mnk &tile = row.block, &inner = row.instruction;
    if (!tiles.empty() && warps.empty() &&
        (tile.m % inner.m != 0 || tile.n % inner.n != 0 || tile.k % inner.k != 0)) {
      throw UsageError(
          fmt::format("{} is not a multiple of the instruction {}", text_of(tile), text_of(inner)), "--tile",
          "each side must be a whole number of times the inner one");
    }
    require_tiling(machine, row);
    rows.push_back(row);
  }
  return rows;
}

std::int64_t side(std::int64_t value, const char* flag) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (value == kNotGiven) throw UsageError("is not given", flag, "give 1 or more, at most 2^40");
  if (value < 1 || value > kMost) {
    throw UsageError(fmt::format("is {}", value), flag, "give 1 or more, at most 2^40");
  }
  return value;
}

Options options_of(const Flags& f, const Mnk& cluster) {
  Options options;
  options.cluster = cluster;
  options.blocks_per_multiprocessor = f.blocks_per_multiprocessor;
  options.costs = {f.launch_us * 1e-6, f.latency_us * 1e-6, f.hand_over_us * 1e-6};
  return options;
}

// Every variant's time of this product on the GPU present.
std::vector<Record> measure_here(const Flags& f, Direction direction, Math math) {
  if (f.device.empty()) throw UsageError("needs the GPU present", "--measure", "give --device cuda");
  std::vector<Record> records;
  ops::BenchOptions bench_options;
  bench_options.device = place_of(f.device);
  bench_options.context = ContextOptions::from_environment();
  bench_options.context.tf32 = math == Math::tf32;
  ops::Bench bench(bench_options, [&](const ops::BenchRow& row) {
    records.push_back({row.op, row.variant, row.problem, std::string(name_of(math)), row.median_seconds,
                       row.flops, row.bytes, f.M, f.N, f.K});
  });
  const DType dtype = math == Math::bf16 ? DType::bf16 : math == Math::f16 ? DType::f16 : DType::f32;
  const ops::matmul::Case c{f.M, f.N, f.K};
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

std::vector<Record> records_of(const Flags& f) {
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

ProductReport analyse(const Flags& f, const Machine& machine, Math math, const Mnk& cluster,
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

// Rows and columns of a result, from a tile to a long batch.
const std::vector<std::int64_t> kMapRows{64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536};
const std::vector<std::int64_t> kMapCols{128,  256,  512,  768,  1024,  1600,
                                         2304, 3072, 4096, 6400, 12288, 50304};

void run(const Flags& f) {
  const Math math = math_named(f.dtype);
  const Machine machine = machine_of(f, math);
  RooflineReport report;
  report.machine = machine;
  report.math = math;
  report.explain = f.explain;
  report.cluster = cluster_of(f, machine, math);
  const Mnk& cluster = report.cluster;
  report.rows = rows_of(f, machine, math);
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
  f.json ? print_json(report) : print_text(report);
}

}  // namespace

void add_roofline(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("roofline", "Analyse matrix products on a GPU: intensity, bounds, schedules");
  auto f = std::make_shared<Flags>();
  command->add_option("--gpu", f->gpu,
                      fmt::format("A GPU by its published figures: {}; default: --device", known_names()));
  command->add_option("--device", f->device, "The GPU present, measured: cuda or cuda:N; default: --gpu")
      ->check(device_name());
  command->add_option("--dtype", f->dtype, "bf16, fp16, tf32 or fp32; sums are fp32")
      ->capture_default_str()
      ->check(one_of({"bf16", "fp16", "tf32", "fp32"}));
  const auto shape_list = [&](const char* name, std::vector<std::string>& list, const char* what) {
    command->add_option(name, list, what)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  shape_list("--instruction", f->instructions,
             "Instruction shapes MxNxK, as 16x8x16 or (Hopper) 64x256x16; default: the GPU's");
  shape_list("--warp", f->warps, "Warp tiles MxNxK; with wgmma a warpgroup's; default: several");
  shape_list("--tile", f->tiles,
             "Thread-block tiles MxNxK, as 128x256x64; for a product one; default: each schedule's best");
  command->add_option("--cluster", f->cluster,
                      "Thread blocks MxN that share factors by multicast; default 2x1 on Hopper, else 1x1");
  command->add_flag("--explain", f->explain, "Print every formula with its figures");
  command->add_option("--m", f->M, "A linear layer's rows (tokens): analyse that product; default: none");
  command->add_option("--n", f->N, "Its outputs; default: none");
  command->add_option("--k", f->K, "Its inputs; with --map the depth of the products; default: none");
  command->add_option("--op", f->op, "Which of its products: forward, dx or dw")
      ->capture_default_str()
      ->check(one_of({"forward", "dx", "dw"}));
  command->add_option("--schedule", f->schedule, "Only block, persistent or stream_k; default: all")
      ->check(one_of({"block", "persistent", "stream_k"}));
  command
      ->add_option("--blocks-per-multiprocessor", f->blocks_per_multiprocessor,
                   "Thread blocks a multiprocessor holds")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  command->add_option("--launch-us", f->launch_us, "Microseconds between kernels; the defaults are an H200's")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--latency-us", f->latency_us, "Microseconds until a block's first products")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--hand-over-us", f->hand_over_us, "Microseconds until partial sums can be read")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option("--matrix-tflops", f->matrix_tflops,
                   "Hold the GPU to this peak, as one was measured to reach; default: its own")
      ->check(CLI::Range(1e-3, 1e9));
  command
      ->add_option("--memory-bandwidth", f->memory_gb, "Hold the GPU to this memory, GB/s; default: its own")
      ->check(CLI::Range(1e-3, 1e9));
  command->add_option("--measured", f->measured,
                      "Records of `bench --json` or bench/results to compare with; default: none");
  command->add_option("--filter", f->filter,
                      "Only records whose operation, variant and problem contain this; default: all");
  command->add_flag("--measure", f->measure, "Time the product on the GPU present too");
  command->add_flag("--map", f->map, "Print which schedule is fastest over shapes, for a depth --k");
  command->add_flag("--json", f->json, "Print JSON, which tools/plot.py draws");
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
