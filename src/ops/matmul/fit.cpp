// matmul_fit: predicts the times of measured products from given costs, and writes costs in the form of
// costs_h200.inc. tools/fit_matmul.py runs it.
//
//   matmul_fit parameters      prints a line per number: present value, name
//   matmul_fit predict TABLE   reads lines of numbers, in that order. For each line, it writes the seconds of
//                              every kernel in TABLE as doubles (`warpwright bench products --table` writes
//                              TABLE).
//   matmul_fit write           reads one such line, and writes its costs as C++
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <span>
#include <sstream>
#include <vector>

#include "core/error.hpp"
#include "ops/matmul/measured.hpp"

namespace warpwright::ops::matmul {
namespace {

template <class F, std::size_t count>
void each(F&& f, const char* name, double (&values)[count]) {
  f(name, std::span<double>(values));
}
template <class F>
void each(F&& f, const char* name, double& value) {
  f(name, std::span<double>(&value, 1));
}

// Calls f(name, numbers) for every member, in order.
template <class F>
void visit(LibraryCosts& c, F&& f) {
  each(f, "start", c.start), each(f, "area", c.area), each(f, "rows", c.rows), each(f, "cols", c.cols);
  each(f, "slab", c.slab), each(f, "alone", c.alone);
  each(f, "crowding", c.crowding), each(f, "row_copy", c.row_copy);
  each(f, "straddling_lines", c.straddling_lines), each(f, "straddling_sectors", c.straddling_sectors);
  each(f, "narrow", c.narrow);
  each(f, "cache_bandwidth", c.cache_bandwidth), each(f, "memory_bandwidth", c.memory_bandwidth);
  each(f, "written", c.written), each(f, "straddling_written_lines", c.straddling_written_lines),
      each(f, "straddling_written_sectors", c.straddling_written_sectors), each(f, "epilogue", c.epilogue),
      each(f, "epilogue_area", c.epilogue_area);
  each(f, "epilogue32", c.epilogue32), each(f, "shown", c.shown), each(f, "cut", c.cut);
  each(f, "cut_bandwidth", c.cut_bandwidth), each(f, "option", c.option), each(f, "activation", c.activation);
  each(f, "activation_start", c.activation_start);
  each(f, "cluster4", c.cluster4), each(f, "cluster8", c.cluster8);
  each(f, "throttle", c.throttle);
  each(f, "slab_sharpness", c.slab_sharpness), each(f, "sharpness", c.sharpness);
}
template <class F>
void visit(TileCosts& c, F&& f) {
  each(f, "slab", c.slab), each(f, "epilogue16", c.epilogue16), each(f, "epilogue32", c.epilogue32);
  each(f, "row_sums", c.row_sums), each(f, "in_step", c.in_step);
}
template <class F>
void visit_numbers(Costs& c, F&& f) {
  each(f, "multiprocessors", c.multiprocessors), each(f, "multiprocessor_flops", c.multiprocessor_flops);
  each(f, "launch", c.launch), each(f, "gradient_launch", c.gradient_launch);
  each(f, "pair_launch", c.pair_launch), each(f, "block_start", c.block_start);
  each(f, "cluster_start", c.cluster_start), each(f, "shown_epilogue", c.shown_epilogue);
  each(f, "crowding", c.crowding), each(f, "cache_bandwidth", c.cache_bandwidth);
  each(f, "blocks_cache_bandwidth", c.blocks_cache_bandwidth);
  each(f, "memory_bandwidth", c.memory_bandwidth), each(f, "written", c.written),
      each(f, "straddling_written_lines", c.straddling_written_lines),
      each(f, "straddling_written_sectors", c.straddling_written_sectors), each(f, "row_copy", c.row_copy);
  each(f, "straddling_lines", c.straddling_lines), each(f, "straddling_sectors", c.straddling_sectors);
  each(f, "straddling_traffic_lines", c.straddling_traffic_lines);
  each(f, "straddling_traffic", c.straddling_traffic), each(f, "fix_up_latency", c.fix_up_latency);
  each(f, "fix_up_sharer", c.fix_up_sharer);
  each(f, "fix_up_bandwidth", c.fix_up_bandwidth), each(f, "exchange_latency", c.exchange_latency);
  each(f, "exchange_bandwidth", c.exchange_bandwidth), each(f, "transposed", c.transposed);
  each(f, "activation", c.activation), each(f, "derivative", c.derivative);
  each(f, "added_matrix", c.added_matrix), each(f, "shown_activation", c.shown_activation);
  each(f, "shown_derivative", c.shown_derivative), each(f, "throttle", c.throttle);
  each(f, "throttle_seconds", c.throttle_seconds), each(f, "slab_sharpness", c.slab_sharpness);
  each(f, "sharpness", c.sharpness), each(f, "row_sums", c.row_sums);
  each(f, "step_pair_launch", c.step_pair_launch), each(f, "step_cluster_start", c.step_cluster_start);
  each(f, "step_cache_bandwidth", c.step_cache_bandwidth);
  each(f, "step_crowded_start", c.step_crowded_start);
}

std::string tile_name(const TileShape& t) {
  return fmt::format("{}x{}, groups {}x{}, clusters {}x{}{}", t.rows, t.cols, t.groups_down, t.groups_across,
                     t.cluster_down, t.cluster_across,
                     t.deep > 0 ? fmt::format(", depth in {}", t.deep) : "");
}

// Calls f(name, number) for every number.
template <class F>
void visit_all(Costs& costs, F&& f) {
  const auto numbers = [&](const std::string& prefix) {
    return [&f, prefix](const char* name, std::span<double> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        f(values.size() == 1 ? prefix + name : fmt::format("{}{}[{}]", prefix, name, i), values[i]);
      }
    };
  };
  visit_numbers(costs, numbers(""));
  visit(costs.library, numbers("library."));
  for (std::size_t i = 0; i < costs.tiles.size(); ++i) {
    visit(costs.tiles[i], numbers(fmt::format("{}: ", tile_name(kTiles[i].shape))));
  }
}

Costs read_costs(const std::string& line) {
  Costs costs = costs_of_h200();
  std::istringstream words(line);
  visit_all(costs, [&](const std::string& name, double& value) {
    if (!(words >> value))
      throw Error(fmt::format("no number for {}", name), "standard input", "give one for each");
  });
  return costs;
}

void write(Costs costs, std::ostream& out) {
  const auto member = [&](const char* name, std::span<double> values) {
    std::string text;
    for (const double value : values) text += fmt::format("{}{:.4g}", text.empty() ? "" : ", ", value);
    if (values.size() > 1) text = "{" + text + "}";
    out << fmt::format(".{} = {},\n", name, text);
  };
  out << "// Written by tools/fit_matmul.py.\n";
  visit_numbers(costs, member);
  out << ".library = {\n";
  visit(costs.library, member);
  out << "},\n.tiles = {{\n";
  for (std::size_t i = 0; i < costs.tiles.size(); ++i) {
    std::string text;
    visit(costs.tiles[i], [&](const char*, std::span<double> v) {
      text += fmt::format("{}{:.4g}", text.empty() ? "" : ", ", v[0]);
    });
    out << fmt::format("{{{}}},  // {}\n", text, tile_name(kTiles[i].shape));
  }
  out << "}},\n";
}

// One measured time.
struct Measured {
  Request request;
  bool library = false;
  Schedule schedule = Schedule::persistent;
  int tile = 0, workers = 0;
  LibraryKernel kernel;

  double predicted(const Costs& costs) const {
    return library ? seconds_of(request, kernel, costs) : seconds_of(request, schedule, tile, workers, costs);
  }
};

Measured measured(const MeasuredProduct& product, const std::string& name) {
  Measured m;
  m.request = product.request;
  DeviceInfo device;
  device.gpu.multiprocessors = static_cast<int>(costs_of_h200().multiprocessors);
  for (const Schedule schedule : {Schedule::block, Schedule::persistent, Schedule::stream_k}) {
    for (const Selection& s : selections(m.request, schedule, device)) {
      if (name != kernel_name(schedule, s)) continue;
      m.schedule = schedule, m.tile = s.tile, m.workers = s.workers;
      return m;
    }
  }
  m.library = true;
  m.kernel = library_kernel_named(name);
  return m;
}

std::vector<Measured> read_table(const char* path) {
  std::vector<Measured> all;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const MeasuredProduct product = MeasuredProduct::read(line);
    for (const auto& [name, seconds] : product.seconds) all.push_back(measured(product, name));
  }
  if (all.empty())
    throw Error("no measured times", path, "write them with `warpwright bench products … --table FILE`");
  return all;
}

void predict(const char* path) {
  const std::vector<Measured> table = read_table(path);
  std::vector<double> seconds(table.size());
  std::string line;
  while (std::getline(std::cin, line)) {
    const Costs costs = read_costs(line);
    for (std::size_t i = 0; i < table.size(); ++i) seconds[i] = table[i].predicted(costs);
    std::cout.write(reinterpret_cast<const char*>(seconds.data()),
                    static_cast<std::streamsize>(seconds.size() * sizeof(double)));
    std::cout.flush();
  }
}

int run(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "parameters" && argc == 2) {
    Costs costs = costs_of_h200();
    visit_all(costs, [](const std::string& name, double& value) {
      std::cout << fmt::format("{:.6g}\t{}\n", value, name);
    });
  } else if (command == "predict" && argc == 3) {
    predict(argv[2]);
  } else if (command == "write" && argc == 2) {
    std::string line;
    std::getline(std::cin, line);
    write(read_costs(line), std::cout);
  } else {
    std::cerr << "usage: matmul_fit parameters | predict TABLE | write\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace warpwright::ops::matmul

int main(int argc, char** argv) try {
  return warpwright::ops::matmul::run(argc, argv);
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
