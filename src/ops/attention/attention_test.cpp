#include "ops/attention/attention.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "ops/attention/cases.hpp"
#include "ops/element.hpp"
#include "ops/testing/repeated.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};
class Repeats : public testing::VariantTest {};  // for the variants of a GPU

std::uint64_t seed_of(const attention::Case& c) {
  return static_cast<std::uint64_t>(c.HS * 1009 + static_cast<std::int64_t>(c.queries.size()));
}

// The relative error of a probability is the absolute error of its score. Scores of magnitude m cost m ·
// 2^-24, which is due to the input's condition. dk and dv sum over the query heads of a key head, too.
ReductionLength reduction_of(const attention::Case& c) {
  const double terms = std::max(attention::longest(c), static_cast<double>(c.HS));
  const double group = static_cast<double>(c.NH / c.key_heads());
  return [=](std::string_view argument) {
    const bool of_group = argument == "dk" || argument == "dv";
    return terms * (of_group ? group : 1) * (1 + c.magnitude * c.magnitude);
  };
}

void run_reference(const AttentionForward& args) {
  run_variant(attention_forward_op(), find_variant(attention_forward_op(), kReference), args, 1);
}

// Replaces lse of a case by the reference's.
AttentionBackward backward_with_lse(const attention::Case& c, DType dtype, Fixture& fixture) {
  const AttentionBackward b = attention::make_backward(c, dtype, fixture);
  const Tensor out = fixture.output(dtype, b.q.shape);
  run_reference({b.q, b.k, b.v, b.cu_seqlens_q, b.cu_seqlens_k, out, b.lse, b.scale, b.mask, b.window});
  return b;
}

// Returns the variant, or null and the reason if it refuses.
template <class A>
const Variant<A>* usable(const Op<A>& op, const std::string& name, const A& args, std::string& reason) {
  const auto& variant = find_variant(op, name);
  reason = variant.refuse(op.problem(args), device_for(variant.name));
  return reason.empty() ? &variant : nullptr;
}

TEST_P(Forward, MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(attention::test_cases())) {
    for (const DType dtype : dtypes_for(attention_forward_op(), GetParam())) {
      Fixture shapes = Fixture::of_shapes();
      const auto asked = attention::make_forward(c, dtype, true, shapes);
      if (!usable(attention_forward_op(), GetParam(), asked, reason)) continue;
      Fixture fixture(seed_of(c));
      const auto args = attention::make_forward(c, dtype, true, fixture);
      check_variant(attention_forward_op(), GetParam(), fixture, args, reduction_of(c));
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

TEST_P(Backward, MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(attention::test_cases())) {
    if (c.bias != attention::Bias::none || c.visible) continue;  // have no backward
    for (const DType dtype : dtypes_for(attention_backward_op(), GetParam())) {
      if (dtype == DType::f16 && c.magnitude > 1) continue;  // such gradients exceed fp16's range
      Fixture shapes = Fixture::of_shapes();
      if (!usable(attention_backward_op(), GetParam(), attention::make_backward(c, dtype, shapes), reason))
        continue;
      Fixture fixture(seed_of(c));
      const auto args = backward_with_lse(c, dtype, fixture);
      check_variant(attention_backward_op(), GetParam(), fixture, args, reduction_of(c));
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

// Rows of q that do not begin at multiples of 16 bytes; rows of k that are all the same row; heads that are
// not contiguous; scales that are not positive. Every variant must refuse or be right, and one must be
// chosen, which is right.
enum class Odd : std::uint8_t { unaligned, repeated, apart, no_scale, negative_scale };

template <class Args>
Args odd(Args a, Odd what, Fixture& fixture) {
  const auto wider = [&](std::int64_t columns) {
    return fixture.random(a.q.dtype, {a.q.shape[0], a.q.shape[1], a.q.shape[2] + columns});
  };
  const std::int64_t HS = a.q.shape[2];
  if (what == Odd::unaligned) a.q = wider(1).slice(2, 1, HS);
  if (what == Odd::repeated) a.k.strides[0] = 0;
  if (what == Odd::apart) a.q = wider(16).slice(2, 0, HS);
  if (what == Odd::no_scale) a.scale = 0;
  if (what == Odd::negative_scale) a.scale = -a.scale;
  return a;
}

template <class A>
void expect_refused_or_right(const Op<A>& op, const std::string& name, const A& args, Fixture& fixture,
                             const attention::Case& c) {
  const auto problem = op.problem(args);
  SCOPED_TRACE(problem.describe());
  if (check_variant(op, name, fixture, args, reduction_of(c)).empty()) return;
  const auto chosen = choose(Context(ContextOptions{}, device_for(name).device), op, problem);
  EXPECT_EQ(check_variant(op, chosen.variant->name, fixture, args, reduction_of(c)), "");
}

constexpr Odd kOdd[] = {Odd::unaligned, Odd::repeated, Odd::apart, Odd::no_scale, Odd::negative_scale};

TEST_P(Forward, RefusesOrRunsWhatIsStoredOtherwise) {
  for (const std::int64_t HS : {32, 64}) {
    const attention::Case c = attention::self_attention({70, 5, 130}, 3, HS);
    for (const DType dtype : dtypes_for(attention_forward_op(), GetParam())) {
      for (const Odd what : kOdd) {
        Fixture fixture(seed_of(c));
        const auto args = odd(attention::make_forward(c, dtype, true, fixture), what, fixture);
        expect_refused_or_right(attention_forward_op(), GetParam(), args, fixture, c);
      }
    }
  }
}

// Sequences, heads or queries that share their bias and their mask, by a stride of 0; scales that are not
// positive.
TEST_P(Forward, RefusesOrRunsPairsThatAreStoredOtherwise) {
  attention::Case c = attention::self_attention({70, 5, 130}, 3, 64, Mask::none);
  c.bias = attention::Bias::each, c.visible = true, c.pairs_aligned = true;
  for (const DType dtype : dtypes_for(attention_forward_op(), GetParam())) {
    for (const int axis : {0, 1, 2}) {
      Fixture fixture(seed_of(c));
      auto args = attention::make_forward(c, dtype, true, fixture);
      args.bias.strides[axis] = 0;
      if (axis != 1) args.visible.strides[axis / 2] = 0;
      expect_refused_or_right(attention_forward_op(), GetParam(), args, fixture, c);
    }
    for (const Odd what : {Odd::no_scale, Odd::negative_scale}) {
      Fixture fixture(seed_of(c));
      const auto args = odd(attention::make_forward(c, dtype, true, fixture), what, fixture);
      expect_refused_or_right(attention_forward_op(), GetParam(), args, fixture, c);
    }
  }
}

TEST_P(Backward, RefusesOrRunsWhatIsStoredOtherwise) {
  const attention::Case c = attention::self_attention({70, 5, 130}, 3, 64);
  for (const DType dtype : dtypes_for(attention_backward_op(), GetParam())) {
    for (const Odd what : kOdd) {
      Fixture fixture(seed_of(c));
      const AttentionBackward b = odd(attention::make_backward(c, dtype, fixture), what, fixture);
      const Tensor out = fixture.output(dtype, b.q.shape);
      run_reference({b.q, b.k, b.v, b.cu_seqlens_q, b.cu_seqlens_k, out, b.lse, b.scale, b.mask, b.window});
      expect_refused_or_right(attention_backward_op(), GetParam(), b, fixture, c);
    }
  }
}

// A dtype that some machine can run the variant with.
DType dtype_for(const std::string& variant) {
  const bool halves = variant.ends_with("bf16") || variant.starts_with("cuda.flash_s") ||
                      variant == "cuda.flash" || variant == "cuda.flash_packed" ||
                      variant == "cuda.flash_pairs";
  return halves ? DType::bf16 : DType::f32;
}

bool on_gpu(std::string_view variant) {
  return variant.starts_with("cuda.");
}

// With a bias and a mask for each sequence, whose rows are aligned. cuda.flash_pairs takes no other calls.
attention::Case with_pairs(attention::Case c) {
  c.bias = attention::Bias::each;
  c.visible = c.pairs_aligned = true;
  return c;
}
bool is_of_pairs(std::string_view argument) {
  return argument == "bias" || argument == "visible";
}

// The rows of one sequence of packed arguments, as a call of its own.
template <class Args>
Args alone(Args args, std::int64_t s, Fixture& fixture) {
  const auto *q = args.cu_seqlens_q.template as<std::int32_t>(),
             *k = args.cu_seqlens_k.template as<std::int32_t>();
  const std::int32_t q0 = q[s], nq = q[s + 1] - q0, k0 = k[s], nk = k[s + 1] - k0;
  args.visit([&](std::string_view name, Tensor& t, Access access) {
    if (name.starts_with("cu_") || !t) return;
    if (is_of_pairs(name)) return void(t = t.slice(0, s, 1));
    if (name == "lse") {
      const Tensor part = fixture.output(t.dtype, {t.shape[0], nq});
      for (std::int64_t h = 0; h < t.shape[0]; ++h) {
        for (std::int64_t i = 0; i < nq; ++i) {
          part.as<float>()[h * nq + i] = t.as<float>()[h * t.shape[1] + q0 + i];
        }
      }
      t = part;
      return;
    }
    const bool keys = name == "k" || name == "v" || name == "dk" || name == "dv";
    t = t.slice(0, keys ? k0 : q0, keys ? nk : nq);
    if (access == Access::write) t = fixture.output(t.dtype, t.shape);
  });
  args.cu_seqlens_q = fixture.integers({0, nq});
  args.cu_seqlens_k = fixture.integers({0, nk});
  return args;
}

const attention::Case kPacked{{5, 0, 330, 1, 64, 3}, {5, 7, 330, 99, 64, 200}, 2, 64};

template <class A>
void expect_packed_equals_alone(const Op<A>& op, const Variant<A>& variant, const A& packed) {
  run_variant(op, variant, packed, 2);
  for (std::int64_t s = 0; s + 1 < packed.cu_seqlens_q.shape[0]; ++s) {
    SCOPED_TRACE(s);
    Fixture fixture(0);
    const A single = alone(packed, s, fixture);
    const std::string refusal = variant.refuse(op.problem(single), device_for(variant.name));
    if (refusal == "there are no queries or no keys") continue;
    run_variant(op, variant, single, 1);
    const auto q0 = packed.cu_seqlens_q.template as<std::int32_t>()[s];
    const auto k0 = packed.cu_seqlens_k.template as<std::int32_t>()[s];
    const auto expect_equal = [&](const Tensor& one, const Tensor& all, std::int64_t first) {
      EXPECT_EQ(elements_of(one), elements_of(all.slice(0, first, one.shape[0])));
    };
    if constexpr (std::is_same_v<A, AttentionForward>) {
      expect_equal(single.out, packed.out, q0);
      for (std::int64_t h = 0; h < 2; ++h) {
        expect_equal(single.lse.select(0, h), packed.lse.select(0, h), q0);
      }
    } else {
      expect_equal(single.dq, packed.dq, q0);
      expect_equal(single.dk, packed.dk, k0);
      expect_equal(single.dv, packed.dv, k0);
    }
  }
}

TEST_P(Forward, ASequenceDoesNotDependOnWhatIsPackedBesideIt) {
  std::string reason;
  int checked = 0;
  for (const attention::Case& c : {kPacked, with_pairs(kPacked), attention::windowed(kPacked, 70)}) {
    Fixture fixture(3);
    const auto args = attention::make_forward(c, dtype_for(GetParam()), true, fixture);
    const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
    if (!variant) continue;
    expect_packed_equals_alone(attention_forward_op(), *variant, args);
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

TEST_P(Backward, ASequenceDoesNotDependOnWhatIsPackedBesideIt) {
  std::string reason;
  int checked = 0;
  for (const attention::Case& c : {kPacked, attention::windowed(kPacked, 70)}) {
    Fixture fixture(3);
    const auto args = backward_with_lse(c, dtype_for(GetParam()), fixture);
    const auto* variant = usable(attention_backward_op(), GetParam(), args, reason);
    if (!variant) continue;
    expect_packed_equals_alone(attention_backward_op(), *variant, args);
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

// A (N, KH, HS) tensor with every head repeated, so that there is one for each query head.
Tensor repeated_heads(const Tensor& t, std::int64_t NH, Fixture& fixture) {
  const std::int64_t KH = t.shape[1];
  const Tensor wide = fixture.output(t.dtype, {t.shape[0], NH, t.shape[2]});
  for (std::int64_t h = 0; h < NH; ++h) {
    const Tensor from = t.select(1, h / (NH / KH)), to = wide.select(1, h);
    for (std::int64_t n = 0; n < t.shape[0]; ++n) {
      for (std::int64_t d = 0; d < t.shape[2]; ++d) {
        store_element(to, n * to.strides[0] + d, load_element(from, n * from.strides[0] + d));
      }
    }
  }
  return wide;
}

const attention::Case kGrouped = attention::grouped({{5, 0, 150, 3}, {5, 7, 150, 99}, 6, 64}, 2);

TEST_P(Forward, GroupedHeadsGiveTheBitsOfRepeatedKeys) {
  Fixture fixture(15);
  const auto args = attention::make_forward(kGrouped, dtype_for(GetParam()), true, fixture);
  std::string reason;
  const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  auto wide = args;
  wide.k = repeated_heads(args.k, kGrouped.NH, fixture);
  wide.v = repeated_heads(args.v, kGrouped.NH, fixture);
  wide.out = fixture.output(args.out.dtype, args.out.shape);
  wide.lse = fixture.output(args.lse.dtype, args.lse.shape);
  run_variant(attention_forward_op(), *variant, args, 1);
  run_variant(attention_forward_op(), *variant, wide, 1);
  EXPECT_EQ(elements_of(args.out), elements_of(wide.out));
  EXPECT_EQ(elements_of(args.lse), elements_of(wide.lse));
}

TEST_P(Backward, GroupedHeadsGiveTheBitsOfRepeatedKeysInTheQueries) {
  Fixture fixture(16);
  const auto args = backward_with_lse(kGrouped, dtype_for(GetParam()), fixture);
  std::string reason;
  const auto* variant = usable(attention_backward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  auto wide = args;
  wide.k = repeated_heads(args.k, kGrouped.NH, fixture);
  wide.v = repeated_heads(args.v, kGrouped.NH, fixture);
  wide.dq = fixture.output(args.dq.dtype, args.dq.shape);
  wide.dk = fixture.output(args.dk.dtype, wide.k.shape);
  wide.dv = fixture.output(args.dv.dtype, wide.k.shape);
  run_variant(attention_backward_op(), *variant, args, 1);
  run_variant(attention_backward_op(), *variant, wide, 1);
  EXPECT_EQ(elements_of(args.dq), elements_of(wide.dq));
}

TEST_P(Forward, OneNewQueryGivesTheLastRowOfTheWhole) {
  const DType dtype = dtype_for(GetParam());
  for (const std::int32_t T : {1, 2, 63, 64, 65, 300}) {
    Fixture fixture(static_cast<std::uint64_t>(T));
    const auto whole = attention::make_forward(attention::self_attention({T}, 2, 64), dtype, true, fixture);
    std::string reason;
    const auto* variant = usable(attention_forward_op(), GetParam(), whole, reason);
    if (!variant) GTEST_SKIP() << reason;
    run_variant(attention_forward_op(), *variant, whole, 1);
    auto last = whole;
    last.q = whole.q.slice(0, T - 1, 1);
    last.out = fixture.output(dtype, {1, 2, 64});
    last.lse = fixture.output(DType::f32, {2, 1});
    last.cu_seqlens_q = fixture.integers({0, 1});
    run_variant(attention_forward_op(), *variant, last, 1);
    const auto row = compare(elements_of(last.out), elements_of(whole.out.slice(0, T - 1, 1)), dtype);
    EXPECT_EQ(row.not_finite, 0);
    EXPECT_LE(row.relative, 2 * tolerance(dtype, std::max(T, 64)));
    for (int h = 0; h < 2; ++h) {
      EXPECT_NEAR(last.lse.as<float>()[h], whole.lse.as<float>()[h * T + T - 1], 1e-5);
    }
  }
}

TEST_P(Forward, LseIsOptional) {
  Fixture fixture(4);
  const DType dtype = dtype_for(GetParam());
  auto args = attention::make_forward(kPacked, dtype, true, fixture);
  std::string reason;
  const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  run_variant(attention_forward_op(), *variant, args, 1);
  const auto with = elements_of(args.out);
  args.out = fixture.output(dtype, args.out.shape);
  args.lse = {};
  run_variant(attention_forward_op(), *variant, args, 1);
  EXPECT_EQ(with, elements_of(args.out));
}

void fill_with_nan(const Tensor& t) {
  for_each_element(
      t, [&](std::int64_t offset) { store_element(t, offset, std::numeric_limits<double>::quiet_NaN()); });
}

TEST_P(Forward, NaNInAQueryStaysInItsRow) {
  const DType dtype = dtype_for(GetParam());
  for (const std::int32_t T : {3, 70}) {
    Fixture fixture(5);
    const auto args = attention::make_forward(attention::self_attention({T}, 1, 64), dtype, true, fixture);
    std::string reason;
    const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
    if (!variant) GTEST_SKIP() << reason;
    store_element(args.q, 2 * args.q.strides[0] + 7, std::numeric_limits<double>::quiet_NaN());
    run_variant(attention_forward_op(), *variant, args, 1);
    const auto out = elements_of(args.out), lse = elements_of(args.lse);
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 64 == 2) << i;
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_EQ(std::isnan(lse[i]), i == 2) << i;
  }
}

TEST_P(Forward, NaNInAKeyReachesOnlyTheWindowsThatHoldIt) {
  const DType dtype = dtype_for(GetParam());
  for (const auto& [T, window, key] : {std::tuple(4, 2, 1), {300, 70, 100}, {300, 16, 0}}) {
    SCOPED_TRACE(T);
    Fixture fixture(5);
    const auto c = attention::windowed(attention::self_attention({T}, 1, 64), window);
    const auto args = attention::make_forward(c, dtype, true, fixture);
    std::string reason;
    const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
    if (!variant) GTEST_SKIP() << reason;
    store_element(args.k, key * args.k.strides[0] + 7, std::numeric_limits<double>::quiet_NaN());
    run_variant(attention_forward_op(), *variant, args, 1);
    const auto out = elements_of(args.out), lse = elements_of(args.lse);
    for (int i = 0; i < T; ++i) {
      const bool sees = key <= i && i < key + window;
      EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(i * 64 + 7)]), sees) << i;
      EXPECT_EQ(std::isnan(lse[static_cast<std::size_t>(i)]), sees) << i;
    }
  }
}

// A product by 0 can carry a NaN through the tiles that hold its key. No window of the other tiles reads it.
constexpr std::int64_t kNaNKey = 400, kFar = 70 + 256;
const attention::Case kFarWindows = attention::windowed(attention::self_attention({1000}, 1, 64), 70);

template <class Args>
void put_nan_into_key(const Args& args) {
  for (const Tensor& t : {args.k, args.v}) fill_with_nan(t.slice(0, kNaNKey, 1));
}

void expect_no_nan_far_away(const Tensor& t) {
  const auto elements = elements_of(t);
  for (std::int64_t row = 0; row < t.shape[0]; ++row) {
    if (std::abs(row - kNaNKey) < kFar) continue;
    EXPECT_FALSE(std::isnan(elements[static_cast<std::size_t>(row * 64)])) << row;
  }
}

TEST_P(Forward, NaNInAKeyStaysInItsTiles) {
  Fixture fixture(17);
  const auto args = attention::make_forward(kFarWindows, dtype_for(GetParam()), true, fixture);
  std::string reason;
  const auto* variant = usable(attention_forward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  put_nan_into_key(args);
  run_variant(attention_forward_op(), *variant, args, 1);
  expect_no_nan_far_away(args.out);
}

TEST_P(Backward, NaNInAKeyStaysInItsTiles) {
  Fixture fixture(17);
  const auto args = backward_with_lse(kFarWindows, dtype_for(GetParam()), fixture);
  std::string reason;
  const auto* variant = usable(attention_backward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  put_nan_into_key(args);
  run_variant(attention_backward_op(), *variant, args, 1);
  for (const Tensor& t : {args.dq, args.dk, args.dv}) expect_no_nan_far_away(t);
}

// Longer than the sequences of the cases, with more tiles of keys than any ring buffer holds.
constexpr std::int32_t kLong = 8229, kLongRows = 9;

std::vector<attention::Case> long_cases(const std::string& variant) {
  std::vector<attention::Case> cases;
  for (const std::int64_t HS : {64, 32, 128}) {
    if (HS != 64 && !on_gpu(variant)) continue;  // takes a second each
    for (const Mask mask : {Mask::none, Mask::causal}) {
      cases.push_back(attention::self_attention({kLong, 5}, 2, HS, mask));
      cases.back().padding = 0;
    }
  }
  return cases;
}

// Some rows of the long sequence with the keys that they see. The reference would take minutes for the whole.
template <class Args>
Args rows_of_long(Args args, std::int32_t first, Mask mask, Fixture& fixture) {
  const std::int32_t keys = mask == Mask::causal ? first + kLongRows : kLong;
  args.visit([&](std::string_view name, Tensor& t, Access) {
    if (name.starts_with("cu_") || !t) return;
    if (name == "lse") return void(t = t.slice(1, first, kLongRows));
    const bool of_keys = name == "k" || name == "v" || name == "dk" || name == "dv";
    t = of_keys ? t.slice(0, 0, keys) : t.slice(0, first, kLongRows);
  });
  args.cu_seqlens_q = fixture.integers({0, kLongRows});
  args.cu_seqlens_k = fixture.integers({0, keys});
  return args;
}

void expect_close(const Tensor& out, const Tensor& wanted, const attention::Case& c) {
  const double bound = tolerance(out.dtype, reduction_of(c)(""));
  const Deviation error = compare(elements_of(out), elements_of(wanted), out.dtype);
  EXPECT_EQ(error.not_finite, 0);
  EXPECT_LE(error.relative, bound);
  EXPECT_LE(error.worst, 16 * bound);
}

TEST_P(Forward, LongSequences) {
  std::string reason;
  int checked = 0;
  for (const auto& c : long_cases(GetParam())) {
    const DType dtype = dtype_for(GetParam());
    Fixture shapes = Fixture::of_shapes();
    const auto asked = attention::make_forward(c, dtype, true, shapes);
    const auto* variant = usable(attention_forward_op(), GetParam(), asked, reason);
    if (!variant || too_long(attention_forward_op().problem(asked).flops())) continue;
    Fixture fixture(14);
    const auto args = attention::make_forward(c, dtype, true, fixture);
    run_variant(attention_forward_op(), *variant, args, 2);
    ++checked;
    for (const std::int32_t first : {0, kLong / 2, kLong - kLongRows}) {
      SCOPED_TRACE(fmt::format("{} from {}", attention_forward_op().problem(args).describe(), first));
      Fixture twins(0);
      const auto rows = rows_of_long(args, first, c.mask, fixture);
      const auto twin = fp64_twin(rows, twins);
      run_reference(twin);
      expect_close(rows.out, twin.out, c);
      expect_close(rows.lse, twin.lse, c);
    }
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

// out and lse are the forward's: a backward may compute D from the probabilities instead of from out.
TEST(Attention, CudaLadderIsRightInEveryConfiguration) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  for (const Mask mask : {Mask::causal, Mask::none}) {
    for (const std::int32_t T : {70, 301}) {
      attention::Case c = attention::self_attention({T, T}, 2, 40, mask);
      c.max_seqlen = T;
      check_configurations(
          attention_forward_op(), [&](Fixture& f) { return attention::make_forward(c, DType::f32, true, f); },
          reduction_of(c));
      check_configurations(
          attention_backward_op(),
          [&](Fixture& f) {
            const AttentionBackward b = attention::make_backward(c, DType::f32, f);
            if (f.with_data()) {
              run_reference(
                  {b.q, b.k, b.v, b.cu_seqlens_q, b.cu_seqlens_k, b.out, b.lse, b.scale, b.mask, b.window});
            }
            return b;
          },
          reduction_of(c));
    }
  }
}

// Its scores are rounded to fp16. Those of magnitude 1 are mostly below 2, so by at most 2^-11, which is the
// relative error of their probabilities.
TEST(Attention, CudaLadderHalf2MatchesTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  for (const Mask mask : {Mask::causal, Mask::none}) {
    for (const std::int32_t T : {1, 2, 7, 33, 70, 128, 129, 300, 512, 1001, 1024}) {
      attention::Case c = attention::self_attention({T, T}, 2, T % 2 == 0 ? 64 : 40, mask);
      c.max_seqlen = T;
      Fixture fixture(seed_of(c)), twins(0);
      const auto args = attention::make_forward(c, DType::f16, false, fixture);
      std::string reason;
      const auto* variant = usable(attention_forward_op(), "cuda.ladder_half2", args, reason);
      ASSERT_NE(variant, nullptr) << reason;
      run_variant(attention_forward_op(), *variant, args, 1);
      const auto twin = fp64_twin(args, twins);
      run_reference(twin);
      const Deviation error = compare(elements_of(args.out), elements_of(twin.out), DType::f16);
      const double bound = tolerance(DType::f16, reduction_of(c)("")) + 0x1p-11;
      SCOPED_TRACE(attention_forward_op().problem(args).describe());
      EXPECT_EQ(error.not_finite, 0);
      EXPECT_LE(error.relative, bound);
      EXPECT_LE(error.worst, 16 * bound);
    }
  }
}

// A GPU's blocks run in any order. The sums must not depend on it.
TEST_P(Repeats, AHundredBackwardsGiveTheSameBits) {
  Fixture fixture(10);
  const auto args =
      backward_with_lse(attention::self_attention({700, 130, 1, 512}, 4, 64), dtype_for(GetParam()), fixture);
  std::string reason;
  const auto* variant = usable(attention_backward_op(), GetParam(), args, reason);
  if (!variant) GTEST_SKIP() << reason;
  std::vector<std::vector<std::byte>> first;
  for (int run = 0; run < 100; ++run) {
    run_variant(attention_backward_op(), *variant, args, 1);
    for (std::size_t i = 0; i < fixture.storages().size(); ++i) {
      if (run == 0) first.push_back(fixture.storages()[i].bytes);
      ASSERT_TRUE(first[i] == fixture.storages()[i].bytes) << "run " << run;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, Forward, ::testing::ValuesIn(variant_names(attention_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Attention, Backward, ::testing::ValuesIn(variant_names(attention_backward_op())),
                         test_name);

std::vector<std::string> gpu_variants() {
  auto names = variant_names(attention_backward_op());
  names.erase(std::remove_if(names.begin(), names.end(), [](const auto& name) { return !on_gpu(name); }),
              names.end());
  return names;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Repeats);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Attention, Repeats, ::testing::ValuesIn(gpu_variants()), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

// The dtype that a variant takes, and how the sequences below are repeated.
DType huge_dtype(const std::string& variant) {
  return variant == "cuda.flash_tf32" ? DType::f32 : DType::bf16;
}
Repetition packed_repetition(const std::string& variant) {
  return {.beyond = "out",
          .columns = {"lse"},
          .bounds = {"cu_seqlens_q", "cu_seqlens_k"},
          .tf32 = variant == "cuda.flash_tf32"};
}
// More tiles than a GPU has multiprocessors, as in the repetition: for few tiles, cuda.flash_packed adds in
// another order.
const attention::Case kRepeated = attention::self_attention({150, 97, 66, 31, 140, 128, 5}, 12, 64);

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(11);
  const auto args = attention::make_forward(kRepeated, huge_dtype(GetParam()), true, fixture);
  const auto reason = check_repeated(attention_forward_op(), GetParam(), fixture, args,
                                     reduction_of(kRepeated), packed_repetition(GetParam()));
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeBackward, GivesEveryRowItsBits) {
  Fixture fixture(12);
  const auto args = backward_with_lse(kRepeated, huge_dtype(GetParam()), fixture);
  const auto reason = check_repeated(attention_backward_op(), GetParam(), fixture, args,
                                     reduction_of(kRepeated), packed_repetition(GetParam()));
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Attention, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(attention_forward_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Attention, HugeBackward,
                         ::testing::ValuesIn(gpu_variant_names(attention_backward_op())), test_name);

TEST(AttentionReference, BackwardIsTheDerivativeOfForward) {
  for (const auto& c : {attention::self_attention({5, 3}, 2, 4), attention::Case{{3, 4}, {6, 2}, 1, 5},
                        attention::self_attention({6}, 1, 3, Mask::none),
                        attention::grouped(attention::self_attention({5, 3}, 6, 4), 2),
                        attention::windowed(attention::self_attention({7, 2}, 2, 4), 3),
                        attention::windowed(attention::Case{{3, 4}, {6, 2}, 1, 5}, 2)}) {
    Fixture fixture(seed_of(c));
    AttentionBackward b = attention::make_backward(c, DType::f64, fixture);
    b.out = fixture.output(DType::f64, b.q.shape);
    const AttentionForward f{b.q,   b.k,   b.v,     b.cu_seqlens_q, b.cu_seqlens_k,
                             b.out, b.lse, b.scale, b.mask,         b.window};
    const std::vector<double> dout = elements_of(b.dout);
    const auto loss = [&] {
      run_reference(f);
      const std::vector<double> out = elements_of(f.out);
      double total = 0;
      for (std::size_t i = 0; i < out.size(); ++i) total += out[i] * dout[i];
      return total;
    };
    loss();
    run_variant(attention_backward_op(), find_variant(attention_backward_op(), kReference), b, 1);
    check_gradient(loss, b.q, b.dq, "dq");
    check_gradient(loss, b.k, b.dk, "dk");
    check_gradient(loss, b.v, b.dv, "dv");
  }
}

TEST(AttentionReference, AWindowHidesWhatAMaskCanHide) {
  for (attention::Case c : attention::windowed_cases()) {
    c.visible = true;
    Fixture fixture(seed_of(c));
    AttentionForward args = attention::make_forward(c, DType::f64, true, fixture);
    SCOPED_TRACE(args.problem().describe());
    run_reference(args);
    const auto out = elements_of(args.out), lse = elements_of(args.lse);
    for (std::size_t s = 0; s < c.queries.size(); ++s) {
      const Tensor visible = args.visible.select(0, static_cast<std::int64_t>(s));
      for (std::int64_t i = 0; i < c.queries[s]; ++i) {
        const std::int64_t hidden = i + c.keys[s] - c.queries[s] - c.window + 1;
        for (std::int64_t j = 0; j < std::min<std::int64_t>(hidden, c.keys[s]); ++j) {
          visible.as<std::uint8_t>()[i * visible.strides[0] + j] = 0;
        }
      }
    }
    args.window = 0;
    run_reference(args);
    EXPECT_EQ(out, elements_of(args.out));
    EXPECT_EQ(lse, elements_of(args.lse));
  }
}

// The longest rows that fit into the registers or the shared memory of the softmaxes, and one key more.
TEST(Attention, CudaStagedHoldsRowsUpToItsLimit) {
  const auto names = variant_names(attention_forward_op());
  if (std::find(names.begin(), names.end(), "cuda.staged_shared") == names.end()) {
    GTEST_SKIP() << "needs an NVIDIA GPU";
  }
  DeviceInfo device = device_for("cuda.");
  device.device.kind = DeviceKind::cuda;
  if (cuda_device_count() == 0) device.gpu.shared_bytes_per_block = 227 << 10;
  const auto in_shared = static_cast<std::int32_t>(device.gpu.shared_bytes_per_block / sizeof(float));
  for (const auto& [name, most] : {std::pair("cuda.staged_registers", 1024),
                                   std::pair("cuda.staged_shared", static_cast<int>(in_shared))}) {
    SCOPED_TRACE(name);
    const attention::Case fits{{2}, {most}, 1, 8, Mask::causal}, beyond{{2}, {most + 1}, 1, 8, Mask::causal};
    const auto refusal = [&, variant = name](const attention::Case& c, std::int64_t max_seqlen) {
      Fixture shapes = Fixture::of_shapes();
      auto args = attention::make_forward(c, DType::f32, true, shapes);
      args.max_seqlen = max_seqlen;
      return find_variant(attention_forward_op(), variant)
          .refuse(attention_forward_op().problem(args), device);
    };
    EXPECT_EQ(refusal(fits, 0), "");
    EXPECT_NE(refusal(beyond, 0).find(fmt::format("may have {} keys", most + 1)), std::string::npos);
    EXPECT_NE(refusal(beyond, 0).find(fmt::format("hold {}", most)), std::string::npos);
    EXPECT_EQ(refusal(beyond, most), "");  // several sequences
    EXPECT_NE(refusal(beyond, most + 2), "");
    if (cuda_device_count() == 0) continue;
    Fixture fixture(13);
    const auto args = attention::make_forward(fits, DType::f32, true, fixture);
    EXPECT_EQ(check_variant(attention_forward_op(), name, fixture, args, reduction_of(fits)), "");
  }
}

TEST(Attention, CudaStagedRefusesScoresBeyondAnyMemory) {
  const auto names = variant_names(attention_forward_op());
  if (std::find(names.begin(), names.end(), "cuda.staged") == names.end()) {
    GTEST_SKIP() << "needs an NVIDIA GPU";
  }
  DeviceInfo device;
  device.device.kind = DeviceKind::cuda;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const AttentionForwardProblem p{1, kMost, kMost, 16, 16, 64, DType::bf16};  // 4·NH·Nq·Nk bytes are 2^68
  EXPECT_NE(find_variant(attention_forward_op(), "cuda.staged").refuse(p, device), "");
}

TEST(Attention, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(6);
  Context context{ContextOptions{}};
  const auto args =
      attention::make_forward(attention::self_attention({3, 2}, 2, 8), DType::f32, true, fixture);
  const auto expect_refused = [&](auto&& change) {
    AttentionForward wrong = args;
    change(wrong);
    EXPECT_THROW(attention_forward(context, wrong), Error);
  };
  expect_refused([&](auto& a) { a.window = -1; });
  expect_refused([&](auto& a) { a.window = std::int64_t{1} << 31; });
  expect_refused([&](auto& a) { a.mask = Mask::none, a.window = 3; });
  expect_refused([&](auto& a) { a.k = fixture.random(DType::f32, {5, 2, 7}); });
  expect_refused([&](auto& a) { a.v = fixture.random(DType::f32, {4, 2, 8}); });
  expect_refused([&](auto& a) { a.v = fixture.random(DType::f32, {5, 1, 8}); });
  for (const std::int64_t KH : {0, 3, 4}) {
    expect_refused([&](auto& a) { a.k = a.v = fixture.random(DType::f32, {5, KH, 8}); });
  }
  expect_refused([&](auto& a) { a.v = fixture.random(DType::bf16, {5, 2, 8}); });
  expect_refused([&](auto& a) { a.out = {}; });
  expect_refused([&](auto& a) { a.q.strides[2] = 2; });
  expect_refused([&](auto& a) { a.lse = fixture.output(DType::f32, {5, 2}); });
  expect_refused([&](auto& a) { a.cu_seqlens_k = fixture.integers({0, 5}); });
  expect_refused([&](auto& a) { a.cu_seqlens_q = fixture.random(DType::f32, {3}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::f32, {3, 3, 3}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::f32, {2, 2, 3}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::f32, {1, 2, 3, 3}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::bf16, {2, 3, 3}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::f32, {3, 3}); });
  expect_refused([&](auto& a) { a.visible = fixture.output(DType::u8, {1, 3, 3}); });
  expect_refused([&](auto& a) { a.visible = fixture.output(DType::i32, {2, 3, 3}); });
  expect_refused([&](auto& a) { a.max_seqlen = -1; });
  expect_refused([&](auto& a) { a.max_seqlen = 2; });
}

// fp32 whose factors are rounded to tf32; an ulp of tf32 is that of fp16. There are four independent
// roundings on the way to out (q, k, p, v) and six to a gradient (q, k, dout, v, dS and one factor again).
TEST(Attention, CudaTf32RoundsFactorsAndNothingElse) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  ContextOptions options;
  options.tf32 = true;
  Context context(options, {DeviceKind::cuda, 0});
  const auto check = [&](const auto& op, auto args, Fixture& fixture, double roundings) {
    const auto& variant = find_variant(op, "cuda.flash_tf32");
    const auto problem = op.problem(args);
    if (!variant.refuse(problem, context.device()).empty()) return false;
    SCOPED_TRACE(problem.describe());
    Fixture twin_fixture(0);
    auto twin = fp64_twin(args, twin_fixture);
    run_variant(op, find_variant(op, kReference), twin, 1);
    fixture.snapshot();
    context.reserve_scratch(variant.workspace(problem, context.device()));
    DeviceCopy copy(uses_of(args), context.device().device, context.stream());
    variant.run(context, copy.moved(args));
    copy.download(context.stream());
    expect_only_written(fixture, uses_of(args));
    std::vector<Tensor> expected;
    twin.visit([&](std::string_view, Tensor& t, Access) { expected.push_back(t); });
    std::size_t index = 0;
    args.visit([&](std::string_view name, Tensor& t, Access access) {
      const Tensor& wanted = expected[index++];
      if (access != Access::write) return;
      const Deviation error = compare(elements_of(t), elements_of(wanted), t.dtype);
      EXPECT_EQ(error.not_finite, 0) << name;
      EXPECT_LE(error.relative, std::sqrt(roundings) * tolerance(DType::f16, 64)) << name;
    });
    return true;
  };
  int checked = 0;
  for (const auto& c : taken(attention::test_cases())) {
    if (c.magnitude != 1 || c.bias != attention::Bias::none || c.visible) continue;
    Fixture forward(seed_of(c)), backward(seed_of(c));
    checked +=
        check(attention_forward_op(), attention::make_forward(c, DType::f32, true, forward), forward, 4);
    checked += check(attention_backward_op(), backward_with_lse(c, DType::f32, backward), backward, 6);
  }
  EXPECT_GT(checked, 0);
}

TEST(Attention, RefusesKeyHeadsThatDoNotFit) {
  Fixture fixture(6);
  Context context{ContextOptions{}};
  const attention::Case c = attention::grouped(attention::self_attention({3, 2}, 4, 8), 2);
  const auto args = attention::make_backward(c, DType::f32, fixture);
  attention_backward(context, args);
  const auto expect_refused = [&](auto&& change) {
    AttentionBackward wrong = args;
    change(wrong);
    EXPECT_THROW(attention_backward(context, wrong), Error);
  };
  expect_refused([&](auto& a) { a.dk = fixture.output(DType::f32, {5, 4, 8}); });
  expect_refused([&](auto& a) { a.dv = fixture.output(DType::f32, {5, 4, 8}); });
  for (const std::int64_t KH : {0, 3, 8}) {
    expect_refused([&](auto& a) {
      a.k = a.v = fixture.random(DType::f32, {5, KH, 8});
      a.dk = fixture.output(DType::f32, {5, KH, 8}), a.dv = fixture.output(DType::f32, {5, KH, 8});
    });
  }
}

// The bytes of k and v, and of their gradients, follow from KH; the FLOPs do not.
TEST(Attention, ProblemsCountKeyHeads) {
  const attention::Case c = attention::self_attention({3, 2}, 4, 8);
  Fixture shapes = Fixture::of_shapes();
  const auto expect = [](const auto& equal, const auto& fewer, double moves_of_k_and_v) {
    EXPECT_EQ(equal.describe().find("KH"), std::string::npos) << equal.describe();
    EXPECT_NE(fewer.describe().find("NH=4 KH=2 HS=8"), std::string::npos) << fewer.describe();
    EXPECT_EQ(equal.flops(), fewer.flops());
    constexpr double kBytesOfTwoHeads = 5 * 2 * 8 * sizeof(float);
    EXPECT_EQ(equal.bytes() - fewer.bytes(), moves_of_k_and_v * kBytesOfTwoHeads);
  };
  const auto forward = [&](const attention::Case& each) {
    return attention::make_forward(each, DType::f32, true, shapes).problem();
  };
  const auto backward = [&](const attention::Case& each) {
    return attention::make_backward(each, DType::f32, shapes).problem();
  };
  expect(forward(c), forward(attention::grouped(c, 2)), 2);
  expect(backward(c), backward(attention::grouped(c, 2)), 4);
}

// For one sequence, whose pairs can be counted one by one.
TEST(Attention, ProblemsCountThePairsOfAWindow) {
  Fixture shapes = Fixture::of_shapes();
  for (const auto& [Lq, Lk, window] :
       {std::tuple(9, 9, 4), {9, 9, 1}, {3, 9, 4}, {9, 4, 2}, {1, 9, 3}, {9, 9, 9}}) {
    int pairs = 0, keys = 0;
    for (int j = 0; j < Lk; ++j) {
      int queries = 0;
      for (int i = 0; i < Lq; ++i) queries += j <= i + Lk - Lq && j > i + Lk - Lq - window;
      pairs += queries;
      keys += queries > 0;
    }
    const attention::Case c = attention::windowed({{Lq}, {Lk}, 2, 8}, window);
    SCOPED_TRACE(fmt::format("{} queries, {} keys, window {}", Lq, Lk, window));
    const auto forward = attention::make_forward(c, DType::f32, false, shapes).problem();
    EXPECT_EQ(forward.flops(), 4.0 * pairs * 2 * 8);
    EXPECT_EQ(forward.bytes(), 2.0 * (Lq + keys) * 2 * 8 * sizeof(float));
    EXPECT_EQ(attention::make_backward(c, DType::f32, shapes).problem().flops(), 10.0 * pairs * 2 * 8);
  }
}

// A window as long as the longest sequence is none, so that every kernel may run. If a call is
// batch-invariant, the other sequences must not decide that.
TEST(Attention, AWindowThatHidesNothingIsNone) {
  Fixture shapes = Fixture::of_shapes();
  const auto window_of = [&](std::int64_t window, std::int64_t max_seqlen, bool batch_invariant) {
    attention::Case c = attention::windowed(attention::self_attention({5, 3}, 2, 8), window);
    c.max_seqlen = max_seqlen;
    auto forward = attention::make_forward(c, DType::f32, true, shapes);
    forward.batch_invariant = batch_invariant;
    if (!batch_invariant) {
      EXPECT_EQ(attention::make_backward(c, DType::f32, shapes).problem().window, forward.problem().window);
    }
    return forward.problem().window;
  };
  EXPECT_EQ(window_of(7, 0, false), 7);  // of 8 keys in all
  EXPECT_EQ(window_of(8, 0, false), 0);
  EXPECT_EQ(window_of(4, 5, false), 4);
  EXPECT_EQ(window_of(5, 5, false), 0);
  EXPECT_EQ(window_of(8, 0, true), 8);
  EXPECT_EQ(window_of(5, 5, true), 5);
}

const std::vector<std::vector<std::int32_t>> kWrongBounds{
    {0, 3, 6}, {1, 3, 5}, {0, 6, 5}, {0, -1, 5}, {0, 3, 4}};

// cuda.flash_packed in runs of rows. It uses them for all lengths if the bits must not depend on the batch.
TEST(Attention, CudaPackedInRunsMatchesTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  std::string reason;
  int checked = 0;
  for (const auto& c : taken(attention::test_cases())) {
    if ((c.HS != 32 && c.HS != 64) || c.bias != attention::Bias::none || c.visible) continue;
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Fixture fixture(seed_of(c));
      auto args = attention::make_forward(c, dtype, true, fixture);
      args.batch_invariant = true;
      const auto refusal =
          check_variant(attention_forward_op(), "cuda.flash_packed", fixture, args, reduction_of(c));
      refusal.empty() ? void(++checked) : void(reason = refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

// Here there are more tiles than multiprocessors. The cases above have fewer, which more groups share.
TEST(Attention, CudaPackedInManyTilesMatchesTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  std::string reason;
  int checked = 0;
  for (const Mask mask : {Mask::none, Mask::causal}) {
    const attention::Case c = attention::self_attention({129, 0, 256, 61, 300}, 24, 64, mask);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Fixture fixture(seed_of(c));
      const auto args = attention::make_forward(c, dtype, true, fixture);
      const auto refusal =
          check_variant(attention_forward_op(), "cuda.flash_packed", fixture, args, reduction_of(c));
      refusal.empty() ? void(++checked) : void(reason = refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << reason;
}

// A GPU's variants cannot throw for offsets that only the device knows. They must not touch anything outside
// the tensors.
TEST(Attention, CudaStaysInBoundsWhateverTheSequencesAre) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  attention::Case one_length = attention::self_attention({3, 3}, 1, 64);
  one_length.max_seqlen = 3;
  const auto check = [](const auto& op, const auto& args, Fixture& fixture) {
    for (const auto& variant : op.variants) {
      if (!on_gpu(variant.name) || !variant.refuse(op.problem(args), device_for(variant.name)).empty())
        continue;
      fixture.snapshot();
      run_variant(op, variant, args, 1);
      expect_only_written(fixture, uses_of(args));
    }
  };
  for (const auto& c : {attention::self_attention({3, 2}, 1, 64), one_length}) {
    for (const auto& bounds : kWrongBounds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Fixture forward(7), backward(8);
        auto f = attention::make_forward(c, dtype, true, forward);
        f.cu_seqlens_k = forward.integers(bounds);
        check(attention_forward_op(), f, forward);
        Fixture forward_of_pairs(7);
        auto pairs = attention::make_forward(with_pairs(c), dtype, true, forward_of_pairs);
        pairs.cu_seqlens_k = forward_of_pairs.integers(bounds);
        check(attention_forward_op(), pairs, forward_of_pairs);
        auto b = attention::make_backward(c, dtype, backward);
        b.cu_seqlens_q = backward.integers(bounds);
        check(attention_backward_op(), b, backward);
      }
    }
  }
}

// The first rows of packed arguments.
template <class Args>
Args front(Args args, std::int64_t queries, std::int64_t keys) {
  args.visit([&](std::string_view name, Tensor& t, Access) {
    if (name.starts_with("cu_") || is_of_pairs(name) || !t) return;
    const bool of_keys = name == "k" || name == "v" || name == "dk" || name == "dv";
    t = name == "lse" ? t.slice(1, 0, queries) : t.slice(0, 0, of_keys ? keys : queries);
  });
  return args;
}

// Rows after the last sequence hold NaN. Only the offsets tell where they begin. `bounds_q` and `bounds_k`
// replace the offsets with which the arguments were made.
template <class A>
void expect_leaves_rows_behind(const Op<A>& op, const Variant<A>& variant, A args, Fixture& fixture,
                               const std::vector<std::int32_t>& bounds_q,
                               const std::vector<std::int32_t>& bounds_k, const ReductionLength& reduction) {
  args.cu_seqlens_q = fixture.integers(bounds_q);
  args.cu_seqlens_k = fixture.integers(bounds_k);
  args.visit([&](std::string_view name, Tensor& t, Access access) {
    if (access != Access::read || !t || name.starts_with("cu_") || is_of_pairs(name)) return;
    const bool of_keys = name == "k" || name == "v";
    const int axis = name == "lse" ? 1 : 0;
    const std::int64_t used = of_keys ? bounds_k.back() : bounds_q.back();
    fill_with_nan(t.slice(axis, used, t.shape[axis] - used));
  });
  const A used = front(args, bounds_q.back(), bounds_k.back());
  Fixture twin_fixture(0);
  A twin = fp64_twin(used, twin_fixture);
  run_variant(op, find_variant(op, kReference), twin, 1);
  fixture.snapshot();
  run_variant(op, variant, args, 1);
  expect_only_written(fixture, uses_of(used));
  const auto expected = uses_of(twin);
  std::size_t index = 0;
  for (const TensorUse& use : uses_of(used)) {
    const Tensor& wanted = expected[index++].tensor;
    if (use.access != Access::write) continue;
    const Deviation error = compare(elements_of(use.tensor), elements_of(wanted), use.tensor.dtype);
    EXPECT_EQ(error.not_finite, 0) << use.argument;
    EXPECT_LE(error.relative, tolerance(use.tensor.dtype, reduction(use.argument))) << use.argument;
  }
}

// A captured launch serves every batch that fits.
TEST(Attention, CudaLeavesWhatIsBehindTheLastSequence) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  using Bounds = std::vector<std::int32_t>;
  const auto check = [](const auto& op, const attention::Case& c, const Bounds& bounds_q,
                        const Bounds& bounds_k, auto&& make) {
    for (const auto& variant : op.variants) {
      if (!on_gpu(variant.name)) continue;
      for (const DType dtype : dtypes_for(op, variant.name)) {
        SCOPED_TRACE(fmt::format("{} {} {}", op.name, variant.name, name_of(dtype)));
        Fixture fixture(14);
        const auto args = make(dtype, fixture);
        if (!variant.refuse(op.problem(args), device_for(variant.name)).empty()) continue;
        expect_leaves_rows_behind(op, variant, args, fixture, bounds_q, bounds_k, reduction_of(c));
      }
    }
  };
  for (const std::int64_t HS : {32, 64, 128}) {
    for (const Mask mask : {Mask::causal, Mask::none}) {
      const auto check_both = [&](const attention::Case& c, const Bounds& bounds_q, const Bounds& bounds_k) {
        for (const attention::Case& each : {c, with_pairs(c)}) {
          check(attention_forward_op(), each, bounds_q, bounds_k,
                [&](DType dtype, Fixture& f) { return attention::make_forward(each, dtype, true, f); });
        }
        check(attention_backward_op(), c, bounds_q, bounds_k,
              [&](DType dtype, Fixture& f) { return backward_with_lse(c, dtype, f); });
      };
      // In the second run the last sequence is empty: 103 queries and 182 keys are left.
      check_both({{5, 0, 97, 1, 30}, {5, 7, 97, 73, 70}, 2, HS, mask}, {0, 5, 5, 102, 103, 103},
                 {0, 5, 12, 109, 182, 182});
      attention::Case one_length = attention::self_attention({33, 33, 33}, 2, HS, mask);
      one_length.max_seqlen = 33;
      check_both(one_length, {0, 33, 50, 50}, {0, 33, 50, 50});
    }
  }
}

// Nothing is written before the offsets have been checked. (The caller checks them for a GPU's variants.)
TEST(Attention, RefusesSequencesOutsideTheirRows) {
  const attention::Case c = attention::self_attention({3, 2}, 1, 8);
  for (const auto& bounds : kWrongBounds) {
    for (const auto& variant : attention_forward_op().variants) {
      if (on_gpu(variant.name)) continue;
      Fixture fixture(7);
      auto args = attention::make_forward(c, DType::f32, true, fixture);
      args.cu_seqlens_k = fixture.integers(bounds);
      if (!variant.refuse(attention_forward_op().problem(args), device_for(variant.name)).empty()) continue;
      fixture.snapshot();
      EXPECT_THROW(run_variant(attention_forward_op(), variant, args, 1), Error);
      expect_only_written(fixture, {});
    }
    for (const auto& variant : attention_backward_op().variants) {
      if (on_gpu(variant.name)) continue;
      Fixture fixture(8);
      auto args = attention::make_backward(c, DType::f32, fixture);
      args.cu_seqlens_q = fixture.integers(bounds);
      if (!variant.refuse(attention_backward_op().problem(args), device_for(variant.name)).empty()) continue;
      fixture.snapshot();
      EXPECT_THROW(run_variant(attention_backward_op(), variant, args, 1), Error);
      expect_only_written(fixture, {});
    }
  }
}

TEST(Attention, ABatchInvariantChoiceDoesNotDependOnTheBatch) {
  Context context(ContextOptions{}, device_for("cuda.").device);
  for (const std::int64_t HS : {32, 64, 80, 128}) {
    const auto chosen = [&](std::int64_t S, std::int64_t N) {
      AttentionForwardProblem p{S, N, N, 12, 12, HS, DType::bf16, Mask::none};
      p.batch_invariant = true;
      return choose(context, attention_forward_op(), p).variant->name;
    };
    for (const std::int64_t N : {20, 1000, 40000, 200000}) EXPECT_EQ(chosen(40, N), chosen(1, 1)) << HS;
  }
}

// The processors with AMX run vdpbf16ps at half of fp32's rate.
TEST(Attention, OnACpuBf16TakesTheFastestInstruction) {
  DeviceInfo device;
  const auto expect = [&](std::string_view kernel) {
    const AttentionForwardProblem forward{1, 64, 64, 12, 12, 64, DType::bf16};
    const AttentionBackwardProblem backward{1, 64, 64, 12, 12, 64, DType::bf16};
    EXPECT_EQ(choose(device, attention_forward_op(), forward).variant->name, kernel);
    EXPECT_EQ(choose(device, attention_backward_op(), backward).variant->name, kernel);
  };
  device.cpu = {.avx2 = true, .avx512 = true};
  expect("cpu.avx512");
  device.cpu.avx512_bf16 = true;
  expect("cpu.avx512_bf16");
  device.cpu.avx512_fp16 = true;
  expect("cpu.avx512");
  device.cpu.amx_bf16 = true;
  expect("cpu.amx_bf16");
}

TEST(Attention, RefusesHeadsBeyondItsTiles) {
  Fixture fixture(9);
  const auto args =
      attention::make_forward(attention::self_attention({2}, 1, 257), DType::f32, false, fixture);
  Context context{ContextOptions{}};
  EXPECT_THROW(attention_forward(context, args), Error);
}

}  // namespace
}  // namespace warpwright::ops
