// Compares rotary position embeddings with transformers' (tests/goldens/make_rope_goldens.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ops/element.hpp"
#include "ops/rope/angles.hpp"
#include "ops/rope/rope.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using testing::Fixture;
using Matrix = std::vector<std::vector<double>>;

const nlohmann::json& goldens() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(WARPWRIGHT_SOURCE_DIR "/tests/goldens/rope.json"));
  return json;
}

RopeAngles angles_of(const nlohmann::json& golden) {
  const nlohmann::json& given = golden["parameters"];
  const std::string type = given["rope_type"];
  RopeAngles a{.theta = given["rope_theta"], .R = golden["R"]};
  a.scaling = type == "linear"   ? RopeScaling::linear
              : type == "llama3" ? RopeScaling::llama3
              : type == "yarn"   ? RopeScaling::yarn
                                 : RopeScaling::none;
  a.factor = given.value("factor", a.factor);
  a.original_positions = given.value("original_max_position_embeddings", a.original_positions);
  a.low_freq_factor = given.value("low_freq_factor", a.low_freq_factor);
  a.high_freq_factor = given.value("high_freq_factor", a.high_freq_factor);
  a.beta_fast = given.value("beta_fast", a.beta_fast);
  a.beta_slow = given.value("beta_slow", a.beta_slow);
  a.truncate = given.value("truncate", a.truncate);
  if (given.contains("attention_factor")) a.attention_factor = given["attention_factor"];
  a.mscale = given.value("mscale", a.mscale);
  a.mscale_all_dim = given.value("mscale_all_dim", a.mscale_all_dim);
  return a;
}

// Each frequency is a product and a sum of a few rounded numbers.
TEST(RopeGoldens, FrequenciesAreThoseOfTransformers) {
  for (const auto& [name, golden] : goldens()["descriptions"].items()) {
    SCOPED_TRACE(name);
    const RopeAngles angles = angles_of(golden);
    const std::vector<double> frequencies = rope_frequencies(angles), wanted = golden["frequencies"];
    ASSERT_EQ(frequencies.size(), wanted.size());
    const double bound = testing::tolerance(DType::f64, 16);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(frequencies[i], wanted[i], bound * wanted[i]) << i;
    EXPECT_DOUBLE_EQ(rope_attention_factor(angles), golden["attention_factor"]);
  }
}

// The tables differ at most by the rounding to fp32: half an ulp on each side.
TEST(RopeGoldens, TablesAreThoseOfTransformers) {
  for (const auto& [name, golden] : goldens()["descriptions"].items()) {
    SCOPED_TRACE(name);
    const RopeAngles angles = angles_of(golden);
    const std::vector<std::int64_t> positions = golden["positions"];
    Fixture fixture(0);
    const Tensor cos = fixture.output(DType::f32, {positions.back() + 1, angles.R / 2});
    const Tensor sin = fixture.output(DType::f32, cos.shape);
    write_rope_tables(angles, cos, sin);
    for (const auto& [table, key] : {std::pair{cos, "cos"}, std::pair{sin, "sin"}}) {
      const Matrix wanted = golden[key];
      for (std::size_t p = 0; p < positions.size(); ++p) {
        const auto row = testing::elements_of(table.select(0, positions[p]));
        const auto error = testing::compare(row, wanted[p], DType::f32);
        EXPECT_EQ(error.not_finite, 0);
        EXPECT_LE(error.worst, 0x1p-23) << key << " of position " << positions[p];
      }
    }
  }
}

Tensor tensor_of(Fixture& fixture, DType dtype, const Shape& shape, const std::vector<double>& values) {
  const Tensor tensor = fixture.output(dtype, shape);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(tensor, static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

Tensor table_of(Fixture& fixture, DType dtype, const Matrix& rows) {
  std::vector<double> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  const auto P = static_cast<std::int64_t>(rows.size()), pairs = static_cast<std::int64_t>(rows[0].size());
  return tensor_of(fixture, accumulation_dtype(dtype), {P, pairs}, values);
}

class Variants : public testing::VariantTest {};

TEST_P(Variants, RotateAsTransformersDoes) {
  const nlohmann::json& golden = goldens()["rotated"];
  const auto& variant = testing::find_variant(rope_forward_op(), GetParam());
  const std::vector<std::int64_t> sizes = golden["shape"];
  const Shape shape{sizes[0], sizes[1], sizes[2]};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const RopeLayout layout : kRopeLayouts) {
      if (!variant.takes(dtype)) continue;
      Fixture fixture(0);
      RopeForward a;
      a.x = tensor_of(fixture, dtype, shape, golden["x"]);
      a.positions = fixture.integers(golden["positions"]);
      a.cos = table_of(fixture, dtype, golden["cos"]);
      a.sin = table_of(fixture, dtype, golden["sin"]);
      a.out = fixture.output(dtype, shape);
      a.wrong = fixture.output(DType::i64, {1});  // −1: all its bits are 1
      a.layout = layout;
      testing::run_variant(rope_forward_op(), variant, a, 1);
      const auto error =
          testing::compare(testing::elements_of(a.out), golden[std::string(name_of(layout))], dtype);
      EXPECT_EQ(error.not_finite, 0);
      EXPECT_LE(error.relative, testing::tolerance(dtype, 2)) << name_of(dtype) << " " << name_of(layout);
    }
  }
}

std::vector<std::string> all_variants() {
  std::vector<std::string> names = testing::variant_names(rope_forward_op());
  names.emplace_back(kReference);
  return names;
}
INSTANTIATE_TEST_SUITE_P(RopeGoldens, Variants, ::testing::ValuesIn(all_variants()), testing::test_name);

}  // namespace
}  // namespace warpwright::ops
