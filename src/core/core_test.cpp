#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/one_line.hpp"
#include "core/tensor.hpp"

namespace warpwright {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // a tie goes to even
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
}

TEST(F16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    f16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(h);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(value))));
    } else {
      ASSERT_EQ(f16(value).bits, bits);
    }
  }
}

TEST(F16, RoundsHalfwayCasesToEven) {
  EXPECT_EQ(f16(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(f16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);
  EXPECT_EQ(f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(f16(0x1p-25f).bits, 0);
  EXPECT_EQ(f16(0x1.8p-24f).bits, 2);
}

TEST(Tensor, SlicesAndSelectsKeepStrides) {
  std::vector<float> storage(2 * 3 * 4);
  for (std::size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<float>(i);
  const Tensor t(storage.data(), DType::f32, {2, 3, 4});
  const Tensor k = t.select(1, 2);
  EXPECT_EQ(k.shape, (Shape{2, 4}));
  EXPECT_FALSE(k.contiguous());
  EXPECT_EQ(k.as<float>()[k.strides[0]], 20.0f);
  EXPECT_EQ(t.slice(0, 1, 1).as<float>()[0], 12.0f);
  EXPECT_TRUE(t.slice(0, 1, 1).contiguous());
}

TEST(Tensor, RefusesWrongDtypeAndRange) {
  float x[4] = {};
  const Tensor t(x, DType::f32, {4});
  EXPECT_THROW(t.as<bf16>(), Error);
  EXPECT_THROW(t.slice(0, 2, 3), Error);
  EXPECT_THROW(t.slice(0, 1, INT64_MAX), Error);
  EXPECT_THROW(t.slice(0, INT64_MAX, 1), Error);
  EXPECT_THROW(t.slice(0, INT64_MAX, INT64_MAX), Error);
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW(Shape().append(INT64_MIN), Error);
  EXPECT_THROW(t.view({3}), Error);
  EXPECT_THROW((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}).elements(), Error);
  EXPECT_THROW((Tensor(nullptr, DType::f32, {std::int64_t{1} << 31, std::int64_t{1} << 31}).bytes()), Error);
  EXPECT_EQ((Tensor(nullptr, DType::f64, {std::int64_t{1} << 59}).bytes()), std::size_t{1} << 62);
}

TEST(Error, IsOneLineWhateverItNames) {
  EXPECT_EQ(one_line("a\tb\r\n\x1b[31m\x7f\u00e9"), "a\\tb\\r\\n\\x1b[31m\\x7f\u00e9");
  const Error error("is no\nfile", "two\nlines", "name another");
  EXPECT_STREQ(error.what(), "two\\nlines: is no\\nfile; name another");
  EXPECT_EQ(error.where(), "two\nlines");
  EXPECT_STREQ(Error("does not exist", "", "name one").what(), "'': does not exist; name one");
}

TEST(Error, IsOneLineOfBoundedLength) {
  const std::string name = std::string(10 << 20, 'n') + "\nend";
  const Error error("has no " + name, "folder/" + name, "remove " + name);
  EXPECT_LT(std::string(error.what()).size(), 3100u);
  EXPECT_LT(error.problem().size(), 1001u);
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  EXPECT_EQ(error.where().find("folder/nnn"), 0u);
  EXPECT_NE(error.where().find("nnn\nend"), std::string::npos);
  const std::string exact(1000, 'x');
  EXPECT_EQ(Error(exact, "", "").problem(), exact);
}

TEST(Error, IsCutBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 1000; ++i) name += "\u20ac";
  for (const char* prefix : {"", "a", "ab"}) {
    const std::string problem = Error(prefix + name, "", "").problem();
    for (std::size_t i = std::string(prefix).size(); i < problem.size();) {
      const std::string_view rest = std::string_view(problem).substr(i);
      ASSERT_TRUE(rest.starts_with("\u20ac") || rest.starts_with(" \u2026 ")) << i;
      i += rest[0] == ' ' ? 5 : 3;
    }
  }
}

}  // namespace
}  // namespace warpwright
