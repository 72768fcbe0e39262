#include "ops/padding/padding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/padding/cases.hpp"
#include "ops/testing/repeated.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Padding : public testing::VariantTest {};

std::vector<std::int32_t> integers_of(const Tensor& t) {
  const auto* data = t.as<std::int32_t>();
  return {data, data + t.elements()};
}

TEST_P(Padding, LengthsMatchTheReference) {
  const auto& op = padding_lengths_op();
  const auto& variant = find_variant(op, GetParam());
  for (const auto& c : taken(padding::test_cases())) {
    for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::f32, DType::bf16}) {
      Fixture fixture(1), again(1);
      const auto args = padding::make_lengths(c, dtype, fixture),
                 wanted = padding::make_lengths(c, dtype, again);
      const auto problem = op.problem(args);
      if (auto reason = variant.refuse(problem, device_for(variant.name)); !reason.empty())
        GTEST_SKIP() << reason;
      SCOPED_TRACE(problem.describe());
      fixture.snapshot();
      run_variant(op, variant, args, 2);
      expect_only_written(fixture, uses_of(args));
      run_variant(op, find_variant(op, kReference), wanted, 1);
      EXPECT_EQ(integers_of(args.cu_seqlens), integers_of(wanted.cu_seqlens));
      EXPECT_EQ(integers_of(args.indices), integers_of(wanted.indices));
      EXPECT_EQ(*args.odd.as<std::int64_t>(), -1);
    }
  }
}

constexpr DType kMasks[] = {DType::u8, DType::i32, DType::i64, DType::f32, DType::bf16, DType::f16};

// More than 0.5 means one, and the first of the other values is reported, in any dtype.
TEST_P(Padding, LengthsReportTheFirstOddValue) {
  const auto& op = padding_lengths_op();
  const auto& variant = find_variant(op, GetParam());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const padding::Case c{std::vector<std::int32_t>(40, 0), 70, 1};
  for (const DType dtype : kMasks) {
    Fixture fixture(1);
    const auto args = padding::make_lengths(c, dtype, fixture);
    if (auto reason = variant.refuse(op.problem(args), device_for(variant.name)); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    const bool floating = is_floating(dtype);
    padding::set_mask(args.mask, 5, 1);
    padding::set_mask(args.mask, 39 * 70 + 69, floating ? kNan : 2);
    if (floating) {
      padding::set_mask(args.mask, 71, 0.5f);
      padding::set_mask(args.mask, 73, 0.75f);
      padding::set_mask(args.mask, 74, -1);
    } else {
      padding::set_mask(args.mask, 71, 3);
    }
    run_variant(op, variant, args, 2);
    EXPECT_EQ(*args.odd.as<std::int64_t>(), 71);
    const std::vector<std::int32_t> wanted = floating ? std::vector{5, 73, -1} : std::vector{5, 71, 2799};
    const auto indices = integers_of(args.indices);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), indices.begin())) << name_of(dtype);
  }
}

TEST_P(Padding, PairsMatchTheReference) {
  const auto& op = padding_pairs_op();
  const auto& variant = find_variant(op, GetParam());
  struct Size {
    std::int64_t B, Lq, Lk, gap;
  };
  for (const Size& size : {Size{0, 3, 4, 0}, {2, 0, 3, 1}, {3, 5, 33, 3}, {70, 1, 64, 0}, {2, 129, 130, 2}}) {
    for (const DType dtype : kMasks) {
      Fixture fixture(3), again(3);
      const auto make = [&](Fixture& f) {
        return padding::make_pairs(size.B, size.Lq, size.Lk, size.gap, dtype, f);
      };
      const auto args = make(fixture), wanted = make(again);
      if (auto reason = variant.refuse(op.problem(args), device_for(variant.name)); !reason.empty()) {
        GTEST_SKIP() << reason;
      }
      SCOPED_TRACE(op.problem(args).describe());
      const bool odd = size.B == 3 || size.Lk == 130;
      if (odd) {
        for (const Tensor& mask : {args.mask, wanted.mask}) {
          padding::set_mask(mask, 4 * (size.Lk + size.gap) + 7, 7);
          padding::set_mask(mask, (size.B * size.Lq - 1) * (size.Lk + size.gap), 2);
        }
      }
      fixture.snapshot();
      run_variant(op, variant, args, 2);
      expect_only_written(fixture, uses_of(args));
      run_variant(op, find_variant(op, kReference), wanted, 1);
      EXPECT_EQ(*args.odd.as<std::int64_t>(), odd ? 4 * size.Lk + 7 : -1);
      EXPECT_EQ(*wanted.odd.as<std::int64_t>(), *args.odd.as<std::int64_t>());
      for_each_element(args.out, [&](std::int64_t at) {
        ASSERT_EQ(args.out.as<std::uint8_t>()[at], wanted.out.as<std::uint8_t>()[at]) << at;
      });
    }
  }
}

template <class A>
void expect_same_rows(const Op<A>& op, const std::string& name,
                      A (*make)(const padding::Case&, DType, Fixture&)) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : taken(padding::test_cases())) {
    for (const DType dtype : dtypes_for(op, name)) {
      Fixture fixture(static_cast<std::uint64_t>(c.C));
      const auto exact = [](std::string_view) { return 0.0; };
      const auto reason = check_variant(op, name, fixture, make(c, dtype, fixture), exact);
      reason.empty() ? void(++checked) : void(refusal = reason);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Padding, PackMatchesTheReference) {
  expect_same_rows(padding_pack_op(), GetParam(), padding::make_pack);
}
TEST_P(Padding, UnpackMatchesTheReference) {
  expect_same_rows(padding_unpack_op(), GetParam(), padding::make_unpack);
}

// ByteTransformer's definition with its mask (B, S, S): the lengths come from the first row of each sequence,
// batch_idx holds their prefix sums, and word_idx[batch_idx[b] + i] = b·S + i.
TEST_P(Padding, IsByteTransformersWhereTheOnesComeFirst) {
  const auto& op = padding_lengths_op();
  const auto& variant = find_variant(op, GetParam());
  const std::vector<std::int32_t> lengths{3, 2, 0, 5, 1};
  const std::int64_t B = 5, S = 5;
  Fixture fixture(2);
  const Tensor mask = fixture.output(DType::f32, {B, S, S});
  std::vector<std::int32_t> batch_idx{0}, word_idx;
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int32_t length = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < S * S; ++i) {
      mask.as<float>()[b * S * S + i] = i / S < length && i % S < length ? 1.0f : 0.0f;
    }
    batch_idx.push_back(batch_idx.back() + length);
    for (std::int32_t i = 0; i < length; ++i) word_idx.push_back(static_cast<std::int32_t>(b * S) + i);
  }
  PaddingLengths args{mask.select(1, 0), fixture.output(DType::i32, {B + 1}),
                      fixture.output(DType::i32, {B * S}), fixture.output(DType::i64, {1})};
  if (auto reason = variant.refuse(op.problem(args), device_for(variant.name)); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(op, variant, args, 1);
  EXPECT_EQ(integers_of(args.cu_seqlens), batch_idx);
  const auto indices = integers_of(args.indices);
  EXPECT_TRUE(std::equal(word_idx.begin(), word_idx.end(), indices.begin()));
}

INSTANTIATE_TEST_SUITE_P(Padding, Padding, ::testing::ValuesIn(variant_names(padding_lengths_op())),
                         test_name);

class Huge : public testing::VariantTest {};  // for the variants of a GPU

// More than 2^31 elements on both sides. The rows cycle through a few kinds, whose number is such that an
// address that wraps around would meet a row of another kind.
TEST_P(Huge, MovesEveryRow) {
  constexpr std::int64_t kB = 33, kS = 1024, kC = 65536, kRows = kB * kS, kKinds = 61, kStep = 211;
  const DeviceInfo device = device_for(GetParam());
  Fixture fixture(6);
  const auto places =
      padding::make_places({std::vector<std::int32_t>(kB, 1010), kS, kC, padding::Form::holes}, fixture);
  const Tensor kinds = fixture.random(DType::bf16, {kKinds, kC}),
               poison = fixture.output(DType::bf16, {1, kC}), row = fixture.output(DType::bf16, {kC}),
               zero = fixture.output(DType::bf16, {kC});
  std::fill_n(static_cast<std::byte*>(zero.data), zero.bytes(), std::byte{0});
  static_assert(kB * 1010 * kC > std::int64_t{1} << 31);

  const auto& pack = find_variant(padding_pack_op(), GetParam());
  const auto& unpack = find_variant(padding_unpack_op(), GetParam());
  const PaddingRowsProblem problem{places.N, kRows, kC, DType::bf16};
  if (auto reason = pack.refuse(problem, device); !reason.empty()) GTEST_SKIP() << reason;
  const std::size_t row_bytes = row.bytes(),
                    needed = static_cast<std::size_t>(2 * kRows + places.N) * row_bytes;
  if (available_memory(device.device) < needed + (std::size_t{1} << 30)) {
    GTEST_SKIP() << "needs an NVIDIA GPU with " << (needed >> 30) + 1 << " GiB of free memory";
  }
  Context context(ContextOptions{}, device.device);
  std::vector<Buffer> buffers;
  // Rows on the device: the rows of `from`, repeated.
  const auto rows_of = [&](const Shape& shape, const Tensor& from) {
    const auto whole = static_cast<std::size_t>(shape.elements()) * size_of(DType::bf16);
    buffers.emplace_back(whole, device.device, "rows of a test");
    std::byte* data = buffers.back().data();
    const auto bytes = [&](std::byte* at, std::size_t count) {
      return Tensor(at, DType::u8, {static_cast<std::int64_t>(count)}, device.device);
    };
    copy(bytes(data, from.bytes()), {from.data, DType::u8, {static_cast<std::int64_t>(from.bytes())}},
         context.stream());
    for (std::size_t done = from.bytes(); done < whole;) {
      const std::size_t more = std::min(done, whole - done);
      copy(bytes(data + done, more), bytes(data, more), context.stream());
      done += more;
    }
    context.synchronize();
    return Tensor(data, DType::bf16, shape, device.device);
  };
  const auto on_device = [&](const Tensor& host) {
    buffers.emplace_back(host.bytes(), device.device, "integers of a test");
    const Tensor to(buffers.back().data(), host.dtype, host.shape, device.device);
    copy(to, host, context.stream());
    context.synchronize();
    return to;
  };
  const Tensor indices = on_device(places.indices), bounds = on_device(places.cu_seqlens);
  const Tensor x = rows_of({kRows, kC}, kinds), packed = rows_of({places.N, kC}, poison),
               unpacked = rows_of({kB, kS, kC}, poison);
  pack.run(context, {x, indices.slice(0, 0, places.N), packed});
  unpack.run(context, {packed, bounds, indices, unpacked});
  context.synchronize();

  const auto expect_row = [&](const Tensor& of, std::int64_t at, const void* wanted) {
    std::byte* data = static_cast<std::byte*>(of.data) + static_cast<std::size_t>(at) * row_bytes;
    copy(row, {data, DType::bf16, {kC}, device.device}, context.stream());
    context.synchronize();
    EXPECT_EQ(std::memcmp(row.data, wanted, row_bytes), 0) << "row " << at;
  };
  const auto kind = [&](std::int64_t at) {
    return static_cast<const std::byte*>(kinds.data) + static_cast<std::size_t>(at % kKinds) * row_bytes;
  };
  const std::vector<std::int32_t> from = integers_of(places.indices.slice(0, 0, places.N));
  for (std::int64_t r = places.N - 1; r >= 0; r -= kStep) {
    expect_row(packed, r, kind(from[static_cast<std::size_t>(r)]));
  }
  for (std::int64_t r = kRows - 1; r >= 0; r -= kStep) {
    const bool valid = std::binary_search(from.begin(), from.end(), static_cast<std::int32_t>(r));
    expect_row(unpacked, r, valid ? kind(r) : static_cast<const std::byte*>(zero.data));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Padding, Huge, ::testing::ValuesIn(gpu_variant_names(padding_pack_op())), test_name);

TEST(Padding, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  auto lengths = padding::make_lengths({{1, 2}, 3, 4}, DType::f32, fixture);
  lengths.indices = fixture.output(DType::i32, {5});
  EXPECT_THROW(padding_lengths(context, lengths), Error);
  auto pairs = padding::make_pairs(2, 3, 4, 0, DType::f32, fixture);
  pairs.out = fixture.output(DType::u8, {2, 4, 3});
  EXPECT_THROW(padding_pairs(context, pairs), Error);
  auto pack = padding::make_pack({{1, 2}, 3, 4}, DType::f32, fixture);
  pack.out = fixture.output(DType::bf16, {3, 4});
  EXPECT_THROW(padding_pack(context, pack), Error);
  auto unpack = padding::make_unpack({{1, 2}, 3, 4}, DType::f32, fixture);
  unpack.out = fixture.output(DType::f32, {2, 3, 5});
  EXPECT_THROW(padding_unpack(context, unpack), Error);
}

std::string error_of(auto&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Mask, ItsShapeDecides) {
  EXPECT_EQ(mask_form("mask", {2, 3}, 2, 3), MaskForm::tokens);
  EXPECT_EQ(mask_form("mask", {2, 1, 3, 3}, 2, 3), MaskForm::pairs);
  for (const Shape& shape : {Shape{3, 2}, Shape{2, 3, 3}, Shape{2, 1, 1, 3}, Shape{2, 2, 3, 3}, Shape{6}}) {
    EXPECT_EQ(
        error_of([&] { mask_form("mask", shape, 2, 3); }),
        "mask: has shape " + shape.to_string() + "; give (2, 3) for the tokens or (2, 1, 3, 3) for pairs");
  }
}

TEST(Mask, NamesThePlaceOfAnOddValue) {
  require_no_odd("mask", {2, 3}, -1);
  EXPECT_EQ(error_of([] {
              require_no_odd("mask", {2, 3}, 4);
            }),
            "mask: has a value other than 0 and 1 at (1, 1); use 1 for what is seen and 0 for what is not");
  EXPECT_EQ(error_of([] {
              require_no_odd("mask", {2, 1, 3, 3}, 11);
            }),
            "mask: has a value other than 0 and 1 at (1, 0, 0, 2); use 1 for what is seen and 0 for what is "
            "not");
}

}  // namespace
}  // namespace warpwright::ops
