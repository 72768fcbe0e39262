// Shared by the kernels: the limits of the rounding, the layout of a packed weight, and the distribution over
// threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/int8_linear/int8_linear.hpp"
#include "roofline/schedule.hpp"

namespace warpwright::ops::int8 {

using roofline::ceil_div;

inline constexpr float kMostWeight = 127, kMostX = 255;
inline constexpr float kLeastRange = 0x1p-120f;  // rows below it count as zeros

// A packed weight is the factors c of x's columns, (K) fp32 up to a multiple of 64 bytes, and then panels of
// 32 columns (rows of the weight):
//   scales    (32) fp32
//   sums      (32) int32: Σ_k q
//   elements  for each 64 terms of the depth, two tiles. A tile has (16 quads, 16 columns, 4 terms) int8.
// A tile is what AMX takes as its second factor, and each of its quads is a vector for VNNI. Columns beyond N
// and terms beyond K are 0.
inline constexpr std::int64_t kPanel = 32, kTile = 16, kStep = 64;
inline constexpr std::int64_t kTileBytes = kTile * kStep;

inline std::int64_t steps_of(std::int64_t depth) {
  return ceil_div(depth, kStep);
}
inline std::int64_t factors_bytes(std::int64_t depth) {
  return ceil_div(depth * std::int64_t{sizeof(float)}, 64) * 64;
}
inline std::int64_t panel_bytes(std::int64_t depth) {
  return kPanel * std::int64_t{sizeof(float) + sizeof(std::int32_t)} + steps_of(depth) * kPanel * kStep;
}
struct Panel {
  const float* scales;
  const std::int32_t* sums;
  const std::int8_t* elements;
};
inline Panel panel_at(const std::byte* packed, std::int64_t depth, std::int64_t panel) {
  const std::byte* at = packed + factors_bytes(depth) + panel * panel_bytes(depth);
  return {reinterpret_cast<const float*>(at), reinterpret_cast<const std::int32_t*>(at + kPanel * 4),
          reinterpret_cast<const std::int8_t*>(at + kPanel * 8)};
}

// Packs without looking for values that are not finite: the scale of their column is NaN.
void pack(const Context& context, const Tensor& weight, const Tensor& factors, std::byte* packed);

// The workers form a grid of row_teams × col_teams. A team shares its rounded rows of x, and each member has
// panels of its own.
struct Grid {
  std::int64_t row_teams, col_teams;
  std::int64_t block;        // rows that a team rounds at once, a multiple of 2·kTile
  std::size_t block_bytes;   // of their bytes, scales and zeros
  std::size_t packed_bytes;  // of the weight, in the workspace; 0 if it is packed already
};
Grid grid_of(const Int8LinearProblem& p, const DeviceInfo& device);
std::size_t workspace(const Int8LinearProblem& p, const DeviceInfo& device);

}  // namespace warpwright::ops::int8
