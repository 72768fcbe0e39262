#include "ops/pooling/kernels.hpp"

#include <fmt/format.h>

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "pooling.forward";

}  // namespace

PoolingProblem PoolingForward::problem() const {
  require(x.shape.rank() == 2 && x.shape[1] > 0, kForwardName, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = x.shape[0], C = x.shape[1];
  require_tensor(kForwardName, "x", x, x.dtype, {N, C});
  std::int64_t S = N;
  if (cu_seqlens) {
    require(cu_seqlens.shape.rank() == 1 && cu_seqlens.shape[0] > 0, kForwardName,
            "cu_seqlens must be (S + 1)");
    S = cu_seqlens.shape[0] - 1;
    require_tensor(kForwardName, "cu_seqlens", cu_seqlens, DType::i32, {S + 1});
  }
  const DType sums = accumulation_dtype(x.dtype);
  require_tensor(kForwardName, "out", out, out.dtype == sums ? sums : x.dtype, {S, C});
  return {.N = N,
          .S = S,
          .C = C,
          .dtype = x.dtype,
          .out = out.dtype,
          .kind = kind,
          .normalize = normalize,
          .aligned = begin_at_packs(x)};
}

void pooling::check_bounds(const PoolingForward& args) {
  const auto* bounds = args.cu_seqlens.as<std::int32_t>();
  if (!bounds) return;
  const std::int64_t S = args.out.shape[0];
  bool good = bounds[0] == 0 && bounds[S] <= args.x.shape[0];
  for (std::int64_t s = 0; s < S; ++s) good = good && bounds[s] <= bounds[s + 1];
  require(good, kForwardName, "cu_seqlens must ascend from 0 to at most N");
}

std::string PoolingProblem::describe() const {
  return fmt::format("N={} S={} C={} {}{} {}{}{}", N, S, C, name_of(dtype),
                     out == dtype ? "" : fmt::format(" to {}", name_of(out)), name_of(kind),
                     normalize ? " +normalize" : "", unaligned_note(aligned));
}
double PoolingProblem::flops() const {
  return static_cast<double>(N * C) + (normalize ? 3.0 * static_cast<double>(S * C) : 0);
}
double PoolingProblem::bytes() const {
  const double rows = static_cast<double>(kind == Pooling::cls ? S : N);
  return static_cast<double>(C) * (rows * static_cast<double>(size_of(dtype)) +
                                   static_cast<double>(S) * static_cast<double>(size_of(out))) +
         4.0 * static_cast<double>(S + 1);
}

}  // namespace warpwright::ops
