#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/padding/padding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kLengthsName = "padding.lengths";
constexpr std::string_view kPairsName = "padding.pairs";
constexpr std::string_view kPackName = "padding.pack";
constexpr std::string_view kUnpackName = "padding.unpack";
constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

}  // namespace

PaddingLengthsProblem PaddingLengths::problem() const {
  require(static_cast<bool>(mask) && mask.shape.rank() == 2, kLengthsName, "mask must be (B, S)");
  const std::int64_t B = mask.shape[0], S = mask.shape[1];
  require(S <= 1 || mask.strides[1] == 1, kLengthsName, "rows of mask must be contiguous");
  require(mask.shape.elements() <= kMostRows, kLengthsName, "mask must have at most 2^31 − 1 elements");
  require_tensor(kLengthsName, "cu_seqlens", cu_seqlens, DType::i32, {B + 1});
  require_tensor(kLengthsName, "indices", indices, DType::i32, {B * S});
  require_tensor(kLengthsName, "odd", odd, DType::i64, {1});
  return {.B = B, .S = S, .dtype = mask.dtype};
}

PaddingPairsProblem PaddingPairs::problem() const {
  require(static_cast<bool>(mask) && mask.shape.rank() == 3, kPairsName, "mask must be (B, Lq, Lk)");
  const std::int64_t B = mask.shape[0], Lq = mask.shape[1], Lk = mask.shape[2];
  require(B * Lq <= kMostRows && Lk <= kMostRows, kPairsName, "mask has more rows or columns than 2^31 − 1");
  require(static_cast<bool>(out), kPairsName, "out is missing");
  require_dtype(kPairsName, "out", out, DType::u8);
  require_shape(kPairsName, "out", out, mask.shape);
  require(Lk <= 1 || (mask.strides[2] == 1 && out.strides[2] == 1), kPairsName,
          "rows of mask and out must be contiguous");
  require_tensor(kPairsName, "odd", odd, DType::i64, {1});
  return {.B = B, .Lq = Lq, .Lk = Lk, .dtype = mask.dtype};
}

PaddingRowsProblem PaddingPack::problem() const {
  require(x.shape.rank() == 2 && is_floating(x.dtype), kPackName, "x must be (B·S, C) of a floating dtype");
  require(out.shape.rank() == 2, kPackName, "out must be (R, C)");
  const std::int64_t R = out.shape[0], C = x.shape[1];
  require_tensor(kPackName, "x", x, x.dtype, x.shape);
  require_tensor(kPackName, "out", out, x.dtype, {R, C});
  require_tensor(kPackName, "indices", indices, DType::i32, {R});
  return {.rows = R, .padded = x.shape[0], .C = C, .dtype = x.dtype, .aligned = begin_at_packs(x, out)};
}

PaddingRowsProblem PaddingUnpack::problem() const {
  require(x.shape.rank() == 2 && is_floating(x.dtype), kUnpackName, "x must be (R, C) of a floating dtype");
  require(out.shape.rank() == 3, kUnpackName, "out must be (B, S, C)");
  const std::int64_t R = x.shape[0], C = x.shape[1], B = out.shape[0], S = out.shape[1];
  require_tensor(kUnpackName, "x", x, x.dtype, {R, C});
  require_tensor(kUnpackName, "out", out, x.dtype, {B, S, C});
  require_tensor(kUnpackName, "cu_seqlens", cu_seqlens, DType::i32, {B + 1});
  require(indices.shape.rank() == 1 && indices.shape[0] >= R, kUnpackName,
          "indices are fewer than the rows of x");
  require_tensor(kUnpackName, "indices", indices, DType::i32, indices.shape);
  return {.rows = R, .padded = B * S, .C = C, .dtype = x.dtype, .aligned = begin_at_packs(x, out)};
}

std::string PaddingLengthsProblem::describe() const {
  return fmt::format("B={} S={} {}", B, S, name_of(dtype));
}
double PaddingLengthsProblem::flops() const {
  return static_cast<double>(B * S);
}
double PaddingLengthsProblem::bytes() const {
  return static_cast<double>(B * S) * static_cast<double>(size_of(dtype) + 4) + 4.0 * static_cast<double>(B);
}

std::string PaddingPairsProblem::describe() const {
  return fmt::format("B={} Lq={} Lk={} {}", B, Lq, Lk, name_of(dtype));
}
double PaddingPairsProblem::flops() const {
  return static_cast<double>(B * Lq) * static_cast<double>(Lk);
}
double PaddingPairsProblem::bytes() const {
  return flops() * static_cast<double>(size_of(dtype) + 1);
}

std::string PaddingRowsProblem::describe() const {
  return fmt::format("rows={} padded={} C={} {}{}", rows, padded, C, name_of(dtype), unaligned_note(aligned));
}
double PaddingRowsProblem::flops() const {
  return 0;
}
double PaddingRowsProblem::bytes() const {
  return static_cast<double>(rows + std::min(rows, padded)) * static_cast<double>(C) *
             static_cast<double>(size_of(dtype)) +
         4.0 * static_cast<double>(rows);
}

}  // namespace warpwright::ops
