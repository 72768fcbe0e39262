#include "ops/testing/bench.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ops/gelu/cases.hpp"
#include "ops/norm/cases.hpp"
#include "ops/options.hpp"

namespace warpwright::ops {
namespace {

TEST(Bench, CopiesArePackedAndFaithful) {
  testing::Fixture fixture(1);
  const Tensor a = fixture.random(DType::f32, {5}), b = fixture.random(DType::bf16, {40});
  const Context context{ContextOptions{}};
  const testing::Copies copies(fixture, 5000, context);
  ASSERT_EQ(copies.count(), 5000u / (2 * kAlignment) + 1);
  for (std::size_t i = 0; i < copies.count(); ++i) {
    auto* a_copy = static_cast<float*>(copies.address(a.data, i));
    EXPECT_EQ(copies.address(a.as<float>() + 3, i), a_copy + 3);
    EXPECT_EQ(copies.address(b.data, i), a_copy + kAlignment / sizeof(float));
    EXPECT_TRUE(std::equal(a_copy, a_copy + 5, a.as<float>()));
  }
  const float elsewhere = 0;
  EXPECT_THROW(copies.address(&elsewhere, 0), Error);
}

TEST(Bench, EveryVariantRunsOnEveryCopyInTurn) {
  std::vector<std::size_t> first, second;
  const std::vector<std::function<void(std::size_t)>> calls{
      [&](std::size_t copy) { first.push_back(copy); }, [&](std::size_t copy) { second.push_back(copy); }};
  const auto timings = testing::time_interleaved(Context{ContextOptions{}}, calls, 3, 0.01);
  ASSERT_EQ(timings.size(), 2u);
  for (const auto& copies : {first, second}) {
    ASSERT_GE(copies.size(), 6u);
    for (std::size_t i = 0; i < copies.size(); ++i) ASSERT_EQ(copies[i], i % 3);
  }
  for (const auto& timing : timings) {
    EXPECT_GT(timing.min, 0);
    EXPECT_GE(timing.median, timing.min);
  }
}

TEST(Bench, WriteShareCountsAnUpdateAsBoth) {
  float data[12];
  const Tensor x(data, DType::f32, {4});
  EXPECT_EQ(testing::write_share({{"a", x, Access::read}}), 0);
  EXPECT_EQ(testing::write_share({{"a", x, Access::read}, {"b", x, Access::write}}), 0.5);
  EXPECT_EQ(testing::write_share({{"a", x, Access::read}, {"b", x, Access::update}}), 1.0 / 3);
}

void small_norm(Bench& bench) {
  bench.run(norm_forward_op(), [](testing::Fixture& f) { return norm::make_forward({3, 40}, {}, f); });
}

TEST(Bench, TimesEachVariantButTheReferenceAndMarksTheOneAPlanTakes) {
  BenchOptions options;
  options.case_seconds = 0.01;
  std::vector<BenchRow> rows;
  Bench bench(options, [&](const BenchRow& row) { rows.push_back(row); });
  small_norm(bench);
  std::set<std::string> variants;
  int chosen = 0;
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.op, "norm.forward");
    EXPECT_GT(row.median_seconds, 0);
    EXPECT_GT(row.share_of_ceiling(), 0);
    chosen += row.chosen;
    variants.insert(row.variant);
  }
  EXPECT_EQ(variants.size(), rows.size());
  EXPECT_EQ(variants.count(std::string(kReference)), 0u);
  EXPECT_EQ(chosen, rows.empty() ? 0 : 1);
}

// A kernel with two configurations, the second of which needs more scratch. It counts its calls in each.
struct Option {
  int index;
  std::string text() const { return index == 0 ? "short" : "long, wide"; }
};
constexpr std::array kOptions{Option{0}, Option{1}};
int calls[2];

const Option& option_for(const GeluProblem& p, const DeviceInfo& device) {
  return option_of(kOptions, "gelu.forward", "cpu.toy", p, device);
}
std::size_t toy_workspace(const GeluProblem& p, const DeviceInfo& device) {
  return option_for(p, device).index == 0 ? 64 : 4096;
}
void count_call(const Context& context, const GeluForward& args) {
  ++calls[option_for(args.problem(), context.device()).index];
  EXPECT_GE(context.scratch_bytes(), toy_workspace(args.problem(), context.device()));
}
std::string toy_configuration(const GeluProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> toy_configurations(const GeluProblem&, const DeviceInfo&) {
  return configurations_of(kOptions);
}
constexpr Kernel<GeluForward> kToy{.needs = Needs::cpu,
                                   .dtypes = kCpuDTypes,
                                   .run = count_call,
                                   .workspace = toy_workspace,
                                   .configuration = toy_configuration,
                                   .configurations = toy_configurations};

TEST(Bench, TimesEachConfigurationIfAsked) {
  const std::vector<Variant<GeluForward>> variants{{"cpu.toy", &kToy}};
  const Op<GeluForward> op{"gelu.forward", variants, [](const GeluForward& args) { return args.problem(); }};
  for (const bool configurations : {false, true}) {
    calls[0] = calls[1] = 0;
    BenchOptions options;
    options.case_seconds = 0.01;
    options.configurations = configurations;
    std::vector<std::string> timed, chosen;
    Bench bench(options, [&](const BenchRow& row) {
      timed.push_back(row.variant);
      if (row.chosen) chosen.push_back(row.variant);
    });
    bench.run(op, [](testing::Fixture& f) {
      return gelu::make_forward({40}, DType::f32, Activation::gelu_tanh, f);
    });
    using Names = std::vector<std::string>;
    EXPECT_EQ(timed,
              configurations ? (Names{"cpu.toy[short]", "cpu.toy[long, wide]"}) : Names{"cpu.toy[short]"});
    EXPECT_EQ(chosen, Names{"cpu.toy[short]"});
    EXPECT_GT(calls[0], 0);
    EXPECT_EQ(calls[1] > 0, configurations);
  }
}

TEST(Bench, TableHasALineForEachRow) {
  BenchOptions options;
  options.case_seconds = 0.01;
  std::ostringstream table, json;
  write_benches({small_norm}, options, table);
  options.json = true;
  write_benches({small_norm}, options, json);
  const auto rows = nlohmann::json::parse(json.str()).at("rows").size();
  const std::string text = table.str();
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), 2 + rows);
}

TEST(Bench, JsonNamesTheMachineItsCeilingsAndNoRowThatTheFilterExcludes) {
  BenchOptions options;
  options.json = true;
  options.case_seconds = 0.01;
  options.filter = "cpu.portable";
  std::ostringstream out;
  write_benches({small_norm}, options, out);
  const auto document = nlohmann::json::parse(out.str());
  EXPECT_GT(document.at("ceilings").at("copy_bytes_per_second").get<double>(), 0);
  EXPECT_EQ(document.at("threads").get<int>(), cpu_device_info().threads);
  EXPECT_FALSE(document.at("rows").empty());
  for (const auto& row : document.at("rows")) {
    EXPECT_NE(row.at("variant").get<std::string>().find(options.filter), std::string::npos);
  }
  EXPECT_GE(document.at("other_processors").get<double>(), 0);
  EXPECT_GE(document.at("ceiling_change").get<double>(), 0);
  EXPECT_TRUE(document.at("disturbed").is_boolean());
}

// Benches compute a case's problem before they make its data. A filter that matches nothing shows it.
TEST(Bench, NoCaseNeedsDataToTellItsShape) {
  BenchOptions options;
  options.json = true;
  options.filter = "no such variant";
  std::ostringstream out;
  EXPECT_THROW(run_benches({}, options, out), UsageError);
  EXPECT_TRUE(out.str().empty());
}

TEST(Bench, UnknownNameIsAUsageError) {
  std::ostringstream out;
  EXPECT_THROW(run_benches({"layer norm"}, {}, out), UsageError);
  EXPECT_TRUE(out.str().empty());
}

}  // namespace
}  // namespace warpwright::ops
