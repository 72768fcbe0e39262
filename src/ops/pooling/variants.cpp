#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/pooling/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "pooling.forward";

PoolingProblem forward_problem(const PoolingForward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, kForward, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  require_tensor(kForward, "x", a.x, a.x.dtype, {N, C});
  std::int64_t S = N;
  if (a.cu_seqlens) {
    require(a.cu_seqlens.shape.rank() == 1 && a.cu_seqlens.shape[0] > 0, kForward,
            "cu_seqlens must be (S + 1)");
    S = a.cu_seqlens.shape[0] - 1;
    require_tensor(kForward, "cu_seqlens", a.cu_seqlens, DType::i32, {S + 1});
  }
  const DType sums = accumulation_dtype(a.x.dtype);
  require_tensor(kForward, "out", a.out, a.out.dtype == sums ? sums : a.x.dtype, {S, C});
  return {N, S, C, a.x.dtype, a.out.dtype, a.kind, a.normalize};
}

using Forward = Variant<PoolingProblem, PoolingForward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.columns", refuse_cuda, pooling::cuda::columns_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, pooling::avx512::forward},
      Forward{"cpu.avx2", refuse_avx2, pooling::avx2::forward},
      Forward{kReference, refuse_other_devices, pooling::forward_reference},
};

}  // namespace

void pooling::check_bounds(const PoolingForward& args) {
  const auto* bounds = args.cu_seqlens.as<std::int32_t>();
  if (!bounds) return;
  const std::int64_t S = args.out.shape[0];
  bool good = bounds[0] == 0 && bounds[S] <= args.x.shape[0];
  for (std::int64_t s = 0; s < S; ++s) good = good && bounds[s] <= bounds[s + 1];
  require(good, kForward, "cu_seqlens do not ascend from 0 to at most N");
}

std::string PoolingProblem::describe() const {
  return fmt::format("N={} S={} C={} {}{} {}{}", N, S, C, name_of(dtype),
                     out == dtype ? "" : fmt::format(" to {}", name_of(out)), name_of(kind),
                     normalize ? " +normalize" : "");
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

const Op<PoolingProblem, PoolingForward>& pooling_forward_op() {
  static const Op<PoolingProblem, PoolingForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

}  // namespace warpwright::ops
