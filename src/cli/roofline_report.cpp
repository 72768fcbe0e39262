#include "cli/roofline_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"

namespace warpwright::cli {
namespace {

using namespace roofline;
using nlohmann::ordered_json;

// Each instruction and warp once, in order.
std::vector<InstructionRow> instruction_rows(const RooflineReport& report) {
  std::vector<InstructionRow> rows;
  const auto add = [&](const Mnk& warp, const Mnk& instruction) {
    const auto same = [&](const InstructionRow& r) { return r.warp == warp && r.instruction == instruction; };
    if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back({warp, instruction});
  };
  if (report.default_rows && element_bytes(report.math) == 2) {
    for (const InstructionRow& row : default_instruction_rows()) add(row.warp, row.instruction);
  }
  for (const Tiling& row : report.rows) {
    if (!report.default_rows || row.instruction.m == 64 || element_bytes(report.math) == 4)
      add(row.warp, row.instruction);
  }
  return rows;
}

std::vector<Tiling> block_rows(const RooflineReport& report) {
  std::vector<Tiling> rows;
  for (const Tiling& row : report.rows) {
    if (row.block.m > 0) rows.push_back(row);
  }
  return rows;
}

void print_machine(const Machine& m, Math math) {
  fmt::print("{}, compute capability {}.{}, {} multiprocessors\n{}\n\n", m.name, m.major, m.minor,
             m.multiprocessors, m.source);
  fmt::print("{:<22}{:>30}{:>18}  {}\n", "", "a multiprocessor and clock", "device", "ridge, FLOP/B");
  const auto row = [&](std::string_view name, double per_clock, std::string_view unit, double total,
                       bool ridge, std::string_view note) {
    const std::string each = per_clock > 0 ? fmt::format("{:g} {}", per_clock, unit) : "";
    fmt::print("{:<22}{:>30}{:>18}  {:>13}{}\n", name, each,
               fmt::format("{:.4g} T{}/s", total * 1e-12, unit == "FLOP" ? "FLOP" : "B"),
               ridge ? fmt::format("{:.1f}", m.peak_flops(math) / total) : "", note);
  };
  const auto published = [](double flops) {
    return flops > 0 ? fmt::format("  published {:g}", flops * 1e-12) : std::string();
  };
  for (const Math unit : {Math::bf16, Math::tf32, Math::f32}) {
    const double given = unit == Math::bf16  ? m.published_matrix_flops
                         : unit == Math::f32 ? m.published_fp32_flops
                                             : 0;
    row(unit == Math::bf16   ? "bf16, fp16 products"
        : unit == Math::tf32 ? "tf32 products"
                             : "fp32",
        m.flops_per_clock(unit), "FLOP", m.peak_flops(unit), false,
        fmt::format("  at {:.0f} MHz{}", m.hz(unit) * 1e-6, published(given)));
  }
  row("registers, at least", m.register_bytes_per_clock(), "B", m.register_bytes_per_second(math), true, "");
  row("shared memory", m.shared_bytes_per_clock, "B", m.shared_bytes_per_second(math), true, "");
  if (m.l2_bytes_per_clock > 0) {
    row("L2", m.l2_bytes_per_clock / m.multiprocessors, "B", m.l2_bytes_per_second(math), true,
        m.l2_assumed ? "  assumed: GA100's 5,120 B a clock" : "  5,120 B a clock published");
  } else {
    fmt::print("{:<22}{:>30}{:>18}  not published\n", "L2", "", "");
  }
  row("device memory", 0, "B", m.memory_bytes_per_second, true, "");
  fmt::print("\n");
}

void print_tables(const RooflineReport& report) {
  const Machine& m = report.machine;
  fmt::print(
      "Instruction level, {}: FLOP a byte of registers; B/clk the registers give (capacity {:g} at least)\n",
      name_of(report.math), m.register_bytes_per_clock());
  fmt::print("{:<16}{:<16}{:>11}{:>9}{:>16}{:>10}\n", "warp", "instruction", "FLOP/B", "B/clk",
             "without reuse", "clocks");
  for (const InstructionRow& row : instruction_rows(report)) {
    const InstructionTraffic t = instruction_level(m, report.math, row.instruction, row.warp);
    fmt::print("{:<16}{:<16}{:>11.3f}{:>9.1f}{:>16.1f}{:>10g}{}\n", text_of(row.warp),
               text_of(row.instruction), t.intensity, t.bytes_per_clock, t.bytes_per_clock_without_reuse,
               t.clocks, is_wgmma(m, row.instruction) ? "  wgmma: sums alone" : "");
  }
  const auto blocks = block_rows(report);
  if (blocks.empty()) return;
  fmt::print("\nWarp level: FLOP a byte read from shared memory; B/clk read, and filled from L2, of {:g}\n",
             m.shared_bytes_per_clock);
  fmt::print("{:<16}{:<16}{:<16}{:>9}{:>9}{:>9}{:>9}{:>10}\n", "warp", "instruction", "block", "FLOP/B",
             "read", "fill", "of peak", "clocks");
  for (const Tiling& row : blocks) {
    const WarpTraffic t = warp_level(m, report.math, row);
    fmt::print("{:<16}{:<16}{:<16}{:>9.3f}{:>9.1f}{:>9.1f}{:>8.0f}%{:>10g}{}\n", text_of(row.warp),
               text_of(row.instruction), text_of(row.block), t.intensity, t.bytes_per_clock, t.fill_per_clock,
               100 * std::min(1.0, 1 / t.share()), t.clocks, t.share() > 1 ? "  bound by shared memory" : "");
  }
  fmt::print(
      "\nThread-block level: FLOP a byte of L2; B/clk that a multiprocessor takes{}\n",
      m.l2_bytes_per_clock > 0 ? fmt::format(", of {:.1f}", m.l2_bytes_per_clock / m.multiprocessors) : "");
  fmt::print("{:<16}{:>9}{:>9}{}\n", "block", "FLOP/B", "B/clk", m.l2_bytes_per_clock > 0 ? "  of peak" : "");
  std::vector<Mnk> seen;
  for (const Tiling& row : blocks) {
    if (std::find(seen.begin(), seen.end(), row.block) != seen.end()) continue;
    seen.push_back(row.block);
    const BlockTraffic t = block_level(m, report.math, row.block, report.cluster);
    fmt::print(
        "{:<16}{:>9.3f}{:>9.1f}{}\n", text_of(row.block), t.intensity, t.bytes_per_clock,
        t.capacity > 0 ? fmt::format("{:>8.0f}%", 100 * std::min(1.0, t.capacity / t.bytes_per_clock)) : "");
  }
}

void print_explanation(const RooflineReport& report) {
  const Machine& m = report.machine;
  const Math math = report.math;
  const double mhz = m.hz(math) * 1e-6;
  fmt::print(R"(
Peaks
  products     {:g} FLOP/clk × {} SM × {:.0f} MHz = {:.2f} TFLOP/s
  fp32         2 × {} lanes × {} SM × {:.0f} MHz = {:.2f} TFLOP/s
  registers    (3 read + 1 written) × 4 B × {} lanes = {:g} B/clk an SM, what fp32's peak needs; the width is not published
  shared       32 banks × 4 B = {:g} B/clk × {} SM × {:.0f} MHz = {:.2f} TB/s
)",
             m.flops_per_clock(math), m.multiprocessors, mhz, m.peak_flops(math) * 1e-12, m.fp32_lanes,
             m.multiprocessors, m.fp32_hz * 1e-6, m.peak_flops(Math::f32) * 1e-12, m.fp32_lanes,
             m.register_bytes_per_clock(), m.shared_bytes_per_clock, m.multiprocessors, mhz,
             m.shared_bytes_per_second(math) * 1e-12);
  if (m.l2_bytes_per_clock > 0) {
    fmt::print("  L2           {:g} B/clk × {:.0f} MHz = {:.2f} TB/s{}\n", m.l2_bytes_per_clock, mhz,
               m.l2_bytes_per_second(math) * 1e-12, m.l2_assumed ? ", GA100's bytes a clock assumed" : "");
  }
  fmt::print(R"(
Instruction (m, n, k), warp tile (WM, WN, WK), thread-block tile (CM, CN, CK); e = {:g} bytes of a factor, 4 of a sum
  instruction  FLOP      = 2·WM·WN·WK                      clocks = FLOP / {:g}
               bytes     = e·WK·(WM + WN) + 2·4·WM·WN·WK/k
               intensity = 1 / (e/2·(1/WM + 1/WN) + 4/k)
               without reuse: e·WK·WM·WN·(1/m + 1/n) in place of e·WK·(WM + WN); wgmma: sums alone
  warp         FLOP      = 2·CM·CN·CK
               bytes     = e·CK·CM·CN·(1/WN + 1/WM)        wgmma: m, n in place of WM, WN
               intensity = 2/e / (1/WM + 1/WN)
               fill      = e·CK·(CM + CN)
  thread block bytes     = e·CK·(CM/cluster n + CN/cluster m)
               intensity = 2/e / (1/(CN·cluster n) + 1/(CM·cluster m))
  B/clk                  = bytes / clocks = {:g} / intensity

Schedules of T tiles of I iterations over S slots
  block        waves = ⌈T/S⌉; launch + waves·(latency + I·t + epilogue)
  persistent   the same waves; launch + latency + waves·I·t + epilogue
  stream_k     whole tiles first, max(⌊T/S⌋ − 1, 0)·S of them (all, where S divides T); the rest cut evenly by iterations;
               launch + latency + most iterations·t + epilogue + hand-over + contributors·(4·CM·CN / an SM's share of L2)
  any          at least launch + latency + device bytes / bandwidth
  t            the longest of FLOP/peak, (read + fill)/shared memory, thread-block bytes / a busy SM's share of L2
               (which is at most {:g} B/clk, an assumption)
)",
             element_bytes(math), m.flops_per_clock(math), m.flops_per_clock(math),
             m.l2_port_bytes_per_clock);
}

void print_product(const ProductReport& report, const Mnk& cluster) {
  const Product& p = report.product;
  fmt::print("\n{} M={} N={} K={} {}: {} × {} over depth {}, {:.4g} GFLOP, {} at least, {:.1f} FLOP/B\n",
             name_of(report.direction), report.M, report.N, report.K, name_of(p.math), p.rows, p.cols,
             p.depth, p.flops() * 1e-9, human_bytes(p.compulsory_bytes()), p.intensity());
  const Prediction& fastest = report.fastest();
  fmt::print(
      "tile {}, warp {}, instruction {}, cluster {}x{}: {} × {} cluster tiles of {} iterations, {} × {} at a "
      "time, {:.1f}% of their "
      "products are the result's\n\n",
      text_of(fastest.tiling.block), text_of(fastest.tiling.warp), text_of(fastest.tiling.instruction),
      cluster.m, cluster.n, report.tiles.rows, report.tiles.cols, report.tiles.iterations,
      report.tiles.group_rows, report.tiles.group_cols, 100 * report.tiles.edge);
  static constexpr std::string_view names[] = {"instruction", "warp", "thread block", "L2", "device"};
  fmt::print("{:<14}{:<46}{:>10}{:>12}{:>14}\n", "level", "", "FLOP/B", "TB/s", "TFLOP/s");
  for (const LevelBound& level : report.levels) {
    fmt::print("{:<14}{:<46}{:>10.1f}{:>12}{:>14.1f}{}\n", names[static_cast<int>(level.level)], level.what,
               level.intensity,
               level.bytes_per_second > 0 ? fmt::format("{:.4g}", level.bytes_per_second * 1e-12) : "?",
               level.attainable * 1e-12, level.bounds ? "  bounds" : "");
  }
  fmt::print("\n{:<12}{:<14}{:>8}{:>7}{:>16}{:>8}{:>10}{:>12}{:>10}{:>8}  {}\n", "schedule", "tile",
             "workers", "waves", "iterations", "filled", "fix-up", "time", "TFLOP/s", "peak", "waits for");
  for (const Prediction& q : report.predictions) {
    const roofline::Split& s = q.split;
    fmt::print("{:<12}{:<14}{:>8}{:>7}{:>16}{:>7.1f}%{:>10}{:>9.1f} us{:>10.1f}{:>7.1f}%  {}{}\n",
               name_of(s.schedule), text_of(q.tiling.block), s.ctas, s.waves,
               fmt::format("{}–{}", s.fewest_iterations, s.most_iterations), 100 * s.utilization,
               q.fix_up > 0 ? fmt::format("{:.1f} us", q.fix_up * 1e6) : "", q.seconds * 1e6,
               q.flops_per_second * 1e-12, 100 * q.share_of_peak, q.bound, &q == &fastest ? "  *" : "");
  }
  if (report.measured.empty()) return;
  fmt::print("\n{:<30}{:<44}{:>12}{:>10}{:>12}\n", "measured", "", "time", "TFLOP/s", "predicted");
  for (const Record& r : report.measured) {
    fmt::print("{:<30}{:<44}{:>9.1f} us{:>10.1f}{:>11.0f}%\n", r.variant, r.problem, r.seconds * 1e6,
               r.flops / r.seconds * 1e-12, 100 * fastest.seconds / r.seconds);
  }
}

void print_map(const RooflineReport& report) {
  fmt::print(
      "\nThe fastest schedule at depth {} (b block, p persistent, s stream_k), and block's time over its\n",
      report.map_depth);
  std::vector<std::int64_t> columns;
  for (const MapCell& cell : report.map) {
    if (cell.rows == report.map.front().rows) columns.push_back(cell.cols);
  }
  fmt::print("{:>10}", "");
  for (const std::int64_t c : columns) fmt::print("{:>9}", c);
  for (std::size_t i = 0; i < report.map.size(); ++i) {
    const MapCell& cell = report.map[i];
    if (i % columns.size() == 0) fmt::print("\n{:>10}", cell.rows);
    fmt::print("{:>9}", fmt::format("{} {:.2f}", name_of(cell.winner)[0], cell.over_block));
  }
  fmt::print("\n");
}

ordered_json json_of(const Mnk& s) {
  return {s.m, s.n, s.k};
}

ordered_json json_of(const Traffic& t) {
  return {{"flops", t.flops},
          {"clocks", t.clocks},
          {"bytes", t.bytes},
          {"intensity", t.intensity},
          {"bytes_per_clock", t.bytes_per_clock}};
}

ordered_json json_of(const Machine& m, Math math) {
  const auto or_null = [](double value) { return value > 0 ? ordered_json(value) : ordered_json(); };
  return {{"name", m.name},
          {"source", m.source},
          {"compute_capability", fmt::format("{}.{}", m.major, m.minor)},
          {"multiprocessors", m.multiprocessors},
          {"hz", m.hz(math)},
          {"flops_per_clock", m.flops_per_clock(math)},
          {"peak_flops", m.peak_flops(math)},
          {"fp32_peak_flops", m.peak_flops(Math::f32)},
          {"published_matrix_flops", or_null(m.published_matrix_flops)},
          {"published_fp32_flops", or_null(m.published_fp32_flops)},
          {"register_bytes_per_clock_at_least", m.register_bytes_per_clock()},
          {"register_bytes_per_second_at_least", m.register_bytes_per_second(math)},
          {"shared_bytes_per_clock", m.shared_bytes_per_clock},
          {"shared_bytes_per_second", m.shared_bytes_per_second(math)},
          {"shared_bytes", m.shared_bytes},
          {"l2_bytes_per_second", or_null(m.l2_bytes_per_second(math))},
          {"l2_bytes_per_second_assumed", m.l2_assumed},
          {"l2_port_bytes_per_clock_assumed", m.l2_port_bytes_per_clock},
          {"l2_bytes", m.l2_bytes},
          {"memory_bytes_per_second", m.memory_bytes_per_second}};
}

ordered_json json_of_tables(const RooflineReport& report) {
  const Machine& m = report.machine;
  ordered_json tables = {{"instruction", ordered_json::array()},
                         {"warp", ordered_json::array()},
                         {"block", ordered_json::array()}};
  for (const InstructionRow& row : instruction_rows(report)) {
    const InstructionTraffic t = instruction_level(m, report.math, row.instruction, row.warp);
    ordered_json out = json_of(t);
    out["bytes_per_clock_without_reuse"] = t.bytes_per_clock_without_reuse;
    out["wgmma"] = is_wgmma(m, row.instruction);
    out["warp"] = json_of(row.warp), out["instruction"] = json_of(row.instruction);
    tables["instruction"].push_back(out);
  }
  for (const Tiling& row : block_rows(report)) {
    const WarpTraffic t = warp_level(m, report.math, row);
    ordered_json out = json_of(t);
    out["fill_bytes_per_clock"] = t.fill_per_clock;
    out["warp"] = json_of(row.warp), out["instruction"] = json_of(row.instruction),
    out["block"] = json_of(row.block);
    tables["warp"].push_back(out);
    const BlockTraffic b = block_level(m, report.math, row.block, report.cluster);
    out = json_of(b);
    out["block"] = json_of(row.block);
    tables["block"].push_back(out);
  }
  return tables;
}

ordered_json json_of(const Prediction& p) {
  const roofline::Split& s = p.split;
  return {{"schedule", name_of(s.schedule)},
          {"tile", json_of(p.tiling.block)},
          {"warp", json_of(p.tiling.warp)},
          {"instruction", json_of(p.tiling.instruction)},
          {"ctas", s.ctas},
          {"slots", s.slots},
          {"waves", s.waves},
          {"most_iterations", s.most_iterations},
          {"fewest_iterations", s.fewest_iterations},
          {"utilization", s.utilization},
          {"shared_tiles", s.shared_tiles},
          {"most_contributors", s.most_contributors},
          {"partial_sums", s.partial_sums},
          {"seconds", p.seconds},
          {"main_loop_seconds", p.main_loop},
          {"overhead_seconds", p.overhead},
          {"fix_up_seconds", p.fix_up},
          {"memory_floor_seconds", p.memory_floor},
          {"bound", p.bound},
          {"flops_per_second", p.flops_per_second},
          {"share_of_peak", p.share_of_peak}};
}

ordered_json json_of(const Record& r) {
  return {{"op", r.op},           {"variant", r.variant}, {"problem", r.problem}, {"dtype", r.dtype},
          {"seconds", r.seconds}, {"flops", r.flops},     {"bytes", r.bytes}};
}

ordered_json json_of(const ProductReport& report) {
  static constexpr std::string_view names[] = {"instruction", "warp", "block", "l2", "device"};
  ordered_json out = {{"op", fmt::format("matmul.{}", name_of(report.direction))},
                      {"M", report.M},
                      {"N", report.N},
                      {"K", report.K},
                      {"flops", report.product.flops()},
                      {"bytes", report.product.compulsory_bytes()},
                      {"intensity", report.product.intensity()},
                      {"tiles", {report.tiles.rows, report.tiles.cols}},
                      {"iterations", report.tiles.iterations},
                      {"levels", ordered_json::array()},
                      {"schedules", ordered_json::array()},
                      {"fastest", name_of(report.fastest().split.schedule)},
                      {"measured", ordered_json::array()}};
  for (const LevelBound& level : report.levels) {
    out["levels"].push_back(
        {{"level", names[static_cast<int>(level.level)]},
         {"intensity", level.intensity},
         {"bytes_per_second",
          level.bytes_per_second > 0 ? ordered_json(level.bytes_per_second) : ordered_json()},
         {"attainable_flops_per_second", level.attainable},
         {"bounds", level.bounds}});
  }
  for (const Prediction& p : report.predictions) out["schedules"].push_back(json_of(p));
  for (const Record& r : report.measured) out["measured"].push_back(json_of(r));
  return out;
}

}  // namespace

const Prediction& ProductReport::fastest() const {
  // A win within 1 % does not count: the plainer schedule is named first.
  const Prediction* best = &predictions.front();
  for (const Prediction& p : predictions) {
    if (p.seconds * kNoticeable < best->seconds) best = &p;
  }
  return *best;
}

void print_text(const RooflineReport& report) {
  print_machine(report.machine, report.math);
  if (report.map.empty() && !report.product) print_tables(report);
  if (report.product) print_product(*report.product, report.cluster);
  if (!report.map.empty()) print_map(report);
  if (!report.kernels.empty()) print_kernels(report.kernels);
  if (report.explain) print_explanation(report);
}

void print_json(const RooflineReport& report) {
  ordered_json out = {{"machine", json_of(report.machine, report.math)},
                      {"dtype", name_of(report.math)},
                      {"cluster", {report.cluster.m, report.cluster.n}},
                      {"tables", json_of_tables(report)}};
  for (const Record& r : report.measured) out["measured"].push_back(json_of(r));
  if (report.product) out["product"] = json_of(*report.product);
  if (!report.kernels.empty()) out["kernels"] = json_of(report.kernels);
  for (const MapCell& cell : report.map) {
    out["map"].push_back({{"rows", cell.rows},
                          {"cols", cell.cols},
                          {"depth", report.map_depth},
                          {"schedule", name_of(cell.winner)},
                          {"tile", json_of(cell.best.tiling.block)},
                          {"over_block", cell.over_block},
                          {"over_persistent", cell.over_persistent}});
  }
  fmt::print("{}\n", out.dump(2));
}

}  // namespace warpwright::cli
