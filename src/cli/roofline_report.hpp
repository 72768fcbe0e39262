// The results of `warpwright roofline` and the functions that print them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "cli/records.hpp"
#include "ops/matmul/mma_selector.hpp"
#include "roofline/gemm.hpp"

namespace warpwright::cli {

struct ProductReport {
  roofline::Direction direction = roofline::Direction::forward;
  std::int64_t M = 0, N = 0, K = 0;
  roofline::Product product;
  roofline::Tiles tiles;                          // for the fastest schedule's tile
  std::vector<roofline::LevelBound> levels;       // for the same tile
  std::vector<roofline::Prediction> predictions;  // at least one
  std::vector<Record> measured;

  const roofline::Prediction& fastest() const;
};

// A kernel on mma.sync.
struct KernelReport {
  roofline::Tiling tiling;
  int stages = 0;
  roofline::BlockNeeds needs;
  roofline::Occupancy occupancy;
  std::vector<roofline::Prediction> predictions;  // of the product, if one is given: for each schedule
};

struct RooflineReport {
  roofline::Machine machine;
  roofline::Math math = roofline::Math::bf16;
  bool explain = false;
  roofline::Mnk cluster{1, 1, 1};
  std::vector<roofline::Tiling> rows;  // only the first table shows rows without a block's shape
  bool default_rows = false;           // no rows were given
  std::vector<Record> measured;        // given records
  std::optional<ProductReport> product;
  std::vector<KernelReport> kernels;  // with --kernels
  std::int64_t map_depth = 0;
  std::vector<roofline::MapCell> map;  // row by row
};

std::vector<KernelReport> kernels_on(const roofline::Machine& machine, roofline::Math math,
                                     const roofline::Costs& costs,
                                     const std::optional<ProductReport>& product);
void print_kernels(const std::vector<KernelReport>& kernels);
nlohmann::ordered_json json_of(const std::vector<KernelReport>& kernels);

void print_text(const RooflineReport& report);
void print_json(const RooflineReport& report);

}  // namespace warpwright::cli
