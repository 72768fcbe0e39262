#include <fmt/format.h>

#include "ops/int8_linear/kernels.hpp"

namespace warpwright::ops {

using int8::ceil_div, int8::kPanel, int8::kTile;

namespace {

constexpr std::string_view kName = "int8_linear";

void require_rows(std::string_view argument, const Tensor& tensor, DType dtype, const Shape& shape) {
  require_dtype(kName, argument, tensor, dtype);
  require_shape(kName, argument, tensor, shape);
  require(shape[1] <= 1 || tensor.strides[1] == 1, kName,
          fmt::format("{} must have contiguous elements within a row", argument));
  require(shape[0] <= 1 || tensor.strides[0] >= shape[1], kName, fmt::format("rows of {} overlap", argument));
}

}  // namespace

Int8LinearProblem Int8Linear::problem() const {
  require(x.shape.rank() == 2, kName, "x must be (M, K)");
  require(weight.shape.rank() == 2, kName, "weight must be (N, K)");
  const std::int64_t M = x.shape[0], K = x.shape[1], N = weight.shape[0];
  require(K <= kMostDepth, kName,
          fmt::format("K is {}, but at most {} are taken, whose sums fit into int32", K, kMostDepth));
  require_rows("x", x, x.dtype, {M, K});
  if (packed) {
    require_shape(kName, "weight", weight, {N, K});
    require_tensor(kName, "packed", packed, DType::u8, {int8_packed_bytes(N, K)});
    require(reinterpret_cast<std::uintptr_t>(packed.data) % 64 == 0, kName,
            "packed must start at a multiple of 64 bytes");
  } else {
    require_tensor(kName, "weight", weight, weight.dtype, {N, K});
    require(is_floating(weight.dtype), kName, "weight must have a floating dtype");
  }
  if (factors) require_tensor(kName, "factors", factors, accumulation_dtype(x.dtype), {K});
  if (bias) require_tensor(kName, "bias", bias, x.dtype, {N});
  if (residual) require_rows("residual", residual, x.dtype, {M, N});
  require_rows("out", out, x.dtype, {M, N});
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = x.dtype,
          .bias = static_cast<bool>(bias),
          .residual = static_cast<bool>(residual),
          .activation = activation,
          .packed = static_cast<bool>(packed)};
}

std::string Int8LinearProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{}{}{}{}", M, N, K, name_of(dtype), bias ? " +bias" : "",
                     activation == Activation::none ? "" : fmt::format(" {}", name_of(activation)),
                     residual ? " +residual" : "", packed ? " packed" : "");
}
double Int8LinearProblem::flops() const {
  return 2 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
}
double Int8LinearProblem::bytes() const {
  const auto element = static_cast<double>(size_of(dtype));
  const auto m = static_cast<double>(M), n = static_cast<double>(N), k = static_cast<double>(K);
  return m * (k + (residual ? 2 : 1) * n) * element + n * k * (packed ? 1 : element) +
         (bias ? n * element : 0);
}

namespace int8 {
namespace {

constexpr std::int64_t kMostRows = 512;  // of a block

}  // namespace

// The grid with the least work for the busiest worker. Among equal grids, more teams: members of a team wait
// for each other, and teams do not.
Grid grid_of(const Int8LinearProblem& p, const DeviceInfo& device) {
  const std::int64_t row_tiles = std::max<std::int64_t>(ceil_div(p.M, kTile), 1),
                     panels = std::max<std::int64_t>(ceil_div(p.N, kPanel), 1);
  Grid grid{};
  std::int64_t best = -1;
  for (std::int64_t teams = 1; teams <= std::min<std::int64_t>(device.threads, row_tiles); ++teams) {
    const std::int64_t members = std::min<std::int64_t>(device.threads / teams, panels);
    const std::int64_t work = ceil_div(row_tiles, teams) * ceil_div(panels, members);
    if (best >= 0 && work > best) continue;
    best = work;
    grid.row_teams = teams;
    grid.col_teams = members;
  }
  const std::int64_t row_bytes = std::max<std::int64_t>(steps_of(p.K), 1) * kStep;
  // Rounded rows take at most half of L2, which leaves room for a panel, but at least two tiles.
  const std::int64_t fit =
      static_cast<std::int64_t>(device.l2_bytes / 2) / row_bytes / (2 * kTile) * 2 * kTile;
  grid.block = std::min(std::clamp(fit, 2 * kTile, kMostRows), ceil_div(row_tiles, 2) * 2 * kTile);
  const auto bytes =
      static_cast<std::size_t>(grid.block * (row_bytes + std::int64_t{sizeof(float) + sizeof(std::int32_t)}));
  grid.block_bytes = (bytes + 63) / 64 * 64;
  grid.packed_bytes = p.packed ? 0 : static_cast<std::size_t>(int8_packed_bytes(p.N, p.K));
  return grid;
}

// For as many teams as any grid of these rows or fewer has, so that fewer rows never need more.
std::size_t workspace(const Int8LinearProblem& p, const DeviceInfo& device) {
  const Grid grid = grid_of(p, device);
  const std::int64_t teams =
      std::min<std::int64_t>(device.threads, std::max<std::int64_t>(ceil_div(p.M, kTile), 1));
  return grid.packed_bytes + static_cast<std::size_t>(teams) * grid.block_bytes;
}

}  // namespace int8
}  // namespace warpwright::ops
