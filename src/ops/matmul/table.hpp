// Measured times of kernels, which the selector takes in place of its predictions where it finds the very
// product in them: a text file of a line per kernel, written by `warpwright bench matmul --shapes … --table
// FILE` and read, once, from where WARPWRIGHT_MATMUL_TABLE says.
//
//   forward gelu_tanh 0 4096 3072 768 persistent:128x192g1x1c2x1d0 66 3.12e-05
//   direction, activation, whether dbias is made, rows, columns and depth of the product, kernel, workers,
//   seconds
//
// All of it is bf16, without residual or scale, the products of forward and dx in bf16. The kernel is a
// schedule and a tile, or cublaslt and one of its algorithms (-1: the one that is used).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul {

std::string kernel_name(Schedule schedule, const TileShape& tile);

class MeasuredTable {
 public:
  void add(const Request& request, const std::string& kernel, int workers, double seconds);
  std::optional<double> find(const Request& request, const std::string& kernel, int workers) const;
  bool empty() const { return times_.empty(); }
  std::string text() const;
  // An Error where a line is not as above.
  static MeasuredTable read(const std::filesystem::path& path);

 private:
  using Key =
      std::tuple<Direction, Activation, bool, std::int64_t, std::int64_t, std::int64_t, std::string, int>;
  static Key key_of(const Request& request, const std::string& kernel, int workers);
  std::map<Key, double> times_;
};

// What WARPWRIGHT_MATMUL_TABLE names; empty where it is not set.
const MeasuredTable& measured_table();

}  // namespace warpwright::ops::matmul
