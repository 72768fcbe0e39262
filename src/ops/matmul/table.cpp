#include "ops/matmul/table.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright::ops::matmul {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};
constexpr Activation kActivations[] = {Activation::none, Activation::gelu_tanh, Activation::gelu_erf,
                                       Activation::relu, Activation::tanh};

template <class T, std::size_t count>
bool named(const std::string& name, const T (&values)[count], T& value) {
  for (const T one : values) {
    if (name_of(one) != name) continue;
    value = one;
    return true;
  }
  return false;
}

}  // namespace

std::string kernel_name(Schedule schedule, const TileShape& t) {
  return fmt::format("{}:{}x{}g{}x{}c{}x{}d{}", name_of(schedule), t.rows, t.cols, t.groups_down,
                     t.groups_across, t.cluster_down, t.cluster_across, t.deep);
}

MeasuredTable::Key MeasuredTable::key_of(const Request& r, const std::string& kernel, int workers) {
  return {r.direction,   r.activation,   r.row_sums, r.extent.rows,
          r.extent.cols, r.extent.depth, kernel,     workers};
}

void MeasuredTable::add(const Request& request, const std::string& kernel, int workers, double seconds) {
  if (request.finish == Finish::plain) times_[key_of(request, kernel, workers)] = seconds;
}

std::optional<double> MeasuredTable::find(const Request& request, const std::string& kernel,
                                          int workers) const {
  if (request.dtype != DType::bf16 || request.finish != Finish::plain) return std::nullopt;
  const auto found = times_.find(key_of(request, kernel, workers));
  if (found == times_.end()) return std::nullopt;
  return found->second;
}

std::string MeasuredTable::text() const {
  std::string text;
  for (const auto& [key, seconds] : times_) {
    const auto& [direction, activation, row_sums, rows, cols, depth, kernel, workers] = key;
    text += fmt::format("{} {} {:d} {} {} {} {} {} {:.4e}\n", name_of(direction), name_of(activation),
                        row_sums, rows, cols, depth, kernel, workers, seconds);
  }
  return text;
}

MeasuredTable MeasuredTable::read(const std::filesystem::path& path) {
  MeasuredTable table;
  constexpr std::uint64_t kMostBytes = 64 << 20;
  std::istringstream lines(read_file(path, kMostBytes));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string direction, activation, kernel, rest;
    Request request;
    int workers = 0;
    double seconds = 0;
    words >> direction >> activation >> request.row_sums >> request.extent.rows >> request.extent.cols >>
        request.extent.depth >> kernel >> workers >> seconds;
    if (!words || words >> rest || !named(direction, kDirections, request.direction) ||
        !named(activation, kActivations, request.activation) || !(seconds > 0)) {
      throw Error(fmt::format("line {} is no measured time", number), path.string(),
                  "write the table anew with `warpwright bench matmul --shapes … --table FILE`");
    }
    table.add(request, kernel, workers, seconds);
  }
  return table;
}

const MeasuredTable& measured_table() {
  static const MeasuredTable table = [] {
    const char* path = std::getenv("WARPWRIGHT_MATMUL_TABLE");
    return path && *path ? MeasuredTable::read(path) : MeasuredTable();
  }();
  return table;
}

}  // namespace warpwright::ops::matmul
