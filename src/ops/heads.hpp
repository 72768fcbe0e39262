// Checks of tensors of heads, (N, heads, HS), whose rows and heads may be strided.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <utility>

#include "ops/op.hpp"

namespace warpwright::ops {

// Requires that the tensor is given, its dtype and shape, and contiguous elements within a head.
inline void require_heads(std::string_view operation, std::string_view argument, const Tensor& tensor,
                          DType dtype, const Shape& shape) {
  require(static_cast<bool>(tensor), operation, fmt::format("{} is missing", argument));
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require(tensor.strides[2] == 1, operation, fmt::format("{} must have stride 1 in its last axis", argument));
}

// True if no element has the address of another one.
inline bool heads_are_distinct(const Tensor& t) {
  struct Axis {
    std::int64_t stride, size;
  };
  Axis inner{std::abs(t.strides[1]), t.shape[1]}, outer{std::abs(t.strides[0]), t.shape[0]};
  if (t.elements() == 0) return true;
  if (inner.stride > outer.stride) std::swap(inner, outer);
  const bool inner_fits = inner.size == 1 || inner.stride >= t.shape[2];
  const std::int64_t extent = (inner.size - 1) * inner.stride + t.shape[2];
  return inner_fits && (outer.size == 1 || outer.stride >= extent);
}

// True if every head begins at a multiple of 16 bytes.
inline bool heads_begin_at_packs(const Tensor& t) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return begin_at_packs(t) && t.strides[0] * size % 16 == 0 && t.strides[1] * size % 16 == 0;
}

// Requires the argument and the result of an operation on each head: (N, NH, HS) of one floating dtype, with
// less than 2^31 rows of at most 2^30 elements. The result has a place for each element. It may be in place
// with the same strides; returns true if it is. The argument's rank must be 3, and NH and HS not 0.
inline bool require_map_of_heads(std::string_view operation, std::string_view from_name, const Tensor& from,
                                 std::string_view to_name, const Tensor& to) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMostInRow = std::int64_t{1} << 30;
  require(from.shape[0] <= kMostRows && from.shape[1] <= kMostInRow / from.shape[2], operation,
          fmt::format("{} must have less than 2^31 rows, each of at most 2^30 elements", from_name));
  require(is_floating(from.dtype), operation, fmt::format("{} must have a floating dtype", from_name));
  require_heads(operation, from_name, from, from.dtype, from.shape);
  require_heads(operation, to_name, to, from.dtype, from.shape);
  require(heads_are_distinct(to), operation, fmt::format("{} must have a place for each element", to_name));
  const bool in_place = from.data == to.data;
  require(!in_place || from.shape[0] == 0 || from.strides == to.strides, operation,
          fmt::format("{} may be {} only with the same strides", to_name, from_name));
  return in_place;
}

}  // namespace warpwright::ops
