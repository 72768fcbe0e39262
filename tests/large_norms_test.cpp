// The normalizations on a CPU where their tensors are so large that they are written past the caches.
#include <gtest/gtest.h>

#include "ops/layernorm/cases.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class LargeNorms : public ::testing::TestWithParam<std::string> {};

// 8 MiB and a little.
std::int64_t rows_of(DType dtype) {
  return dtype == DType::f32 ? 2800 : 5600;
}
// All rows but one, from a multiple of 64 bytes on.
Tensor from_a_line(const Tensor& t) {
  const std::int64_t N = t.shape[0] - 1, C = t.shape[1];
  const auto beyond = reinterpret_cast<std::uintptr_t>(t.data) % 64;
  const auto skipped = static_cast<std::int64_t>((64 - beyond) % 64 / size_of(t.dtype));
  return t.view({(N + 1) * C}).slice(0, skipped, N * C).view({N, C});
}

TEST_P(LargeNorms, ForwardMatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(1);
    const std::int64_t N = rows_of(dtype);
    auto args = layernorm::make_forward({N + 1, 768}, dtype, true, fixture);
    args.x = args.x.slice(0, 0, N);
    args.out = from_a_line(args.out);
    args.mean = args.mean.slice(0, 0, N);
    args.rstd = args.rstd.slice(0, 0, N);
    const auto reduction = [](std::string_view) { return 768.0; };
    const auto reason = check_variant(layernorm_forward_op(), GetParam(), fixture, args, reduction);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

TEST_P(LargeNorms, BackwardMatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(2);
    const std::int64_t N = rows_of(dtype);
    auto args = layernorm::make_backward({N + 1, 768}, dtype, Store::add, fixture);
    args.x = args.x.slice(0, 0, N);
    args.dout = args.dout.slice(0, 0, N);
    args.dx = from_a_line(args.dx);
    args.mean = args.mean.slice(0, 0, N);
    args.rstd = args.rstd.slice(0, 0, N);
    const auto reduction = [=](std::string_view name) {
      return name == "dx" ? 768.0 : static_cast<double>(N);
    };
    const auto reason = check_variant(layernorm_backward_op(), GetParam(), fixture, args, reduction);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

INSTANTIATE_TEST_SUITE_P(Norms, LargeNorms, ::testing::Values("cpu.avx512", "cpu.avx2"), test_name);

}  // namespace
}  // namespace warpwright::ops
