#include "ops/testing/repeated.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention/cases.hpp"
#include "ops/global_norm/cases.hpp"
#include "ops/norm/cases.hpp"
#include "ops/residual/cases.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

double few(std::string_view) {
  return 40;
}

TEST(Repeated, RowsHaveTheirBitsAndSumsAreThoseOfAllRows) {
  Fixture forward(1), backward(2);
  EXPECT_EQ(check_repeated(norm_forward_op(), kReference, forward,
                           norm::make_forward({7, 40}, {.dtype = DType::bf16}, forward), few,
                           {.beyond = "x", .elements = 5000, .once = {"weight", "bias"}}),
            "");
  EXPECT_EQ(
      check_repeated(
          norm_backward_op(), kReference, backward,
          norm::make_backward({7, 40}, {.dtype = DType::bf16, .store = Store::add}, backward), few,
          {.beyond = "x", .elements = 5000, .once = {"weight", "dweight", "dbias"}, .exact_sums = true}),
      "");
}

TEST(Repeated, PackedSequencesAndTheirStrides) {
  Fixture fixture(3);
  const auto args =
      attention::make_forward(attention::self_attention({5, 0, 9}, 2, 8), DType::f32, true, fixture);
  EXPECT_EQ(check_repeated(attention_forward_op(), kReference, fixture, args, few,
                           {.beyond = "out",
                            .elements = 3000,
                            .columns = {"lse"},
                            .bounds = {"cu_seqlens_q", "cu_seqlens_k"},
                            .same_bits = false}),
            "");
}

TEST(Repeated, SumsOfAnotherKind) {
  Fixture fixture(4);
  auto args = global_norm_kernels::make_norm(53, DType::f32, fixture);
  args.scale = {};
  EXPECT_EQ(
      check_repeated(global_norm_op(), kReference, fixture, args, few,
                     {.beyond = "sums",
                      .elements = 5000,
                      .once = {"norm"},
                      .sum = [](double, double norm, double times) { return std::sqrt(times) * norm; }}),
      "");
}

// A variant that computes only the first 40,000 elements.
void run_reference(const Context& context, const ResidualForward& args) {
  find_variant(residual_forward_op(), kReference).run(context, args);
}
void run_forgetful(const Context& context, const ResidualForward& args) {
  const auto some = [](const Tensor& t) { return t.slice(0, 0, std::min<std::int64_t>(t.shape[0], 40000)); };
  run_reference(context, {some(args.a), some(args.b), some(args.out)});
}
constexpr Kernel<ResidualForward> kForgetful{
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run_forgetful};
constexpr Kernel<ResidualForward> kRemembering{
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run_reference};
constexpr Variant<ResidualForward> kVariants[] = {{"forgetful", &kForgetful}, {kReference, &kRemembering}};

TEST(Repeated, FindsWhatIsWrongBehindTheSmallProblem) {
  const Op<ResidualForward> op{"forgetful", kVariants, residual_forward_op().problem};
  const auto failures = [&](std::int64_t elements) {
    Fixture fixture(5);
    ::testing::TestPartResultArray found;
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &found);
    check_repeated(op, "forgetful", fixture, residual::make_forward({280}, DType::f32, fixture), few,
                   {.beyond = "a", .elements = elements});
    return found.size();
  };
  EXPECT_EQ(failures(39000), 0);
  EXPECT_GT(failures(44000), 0);
}

}  // namespace
}  // namespace warpwright::ops
