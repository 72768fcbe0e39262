// Tests of `warpwright plan`.
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/cli_fixture.hpp"

namespace warpwright {
namespace {

class PlanTest : public CliTest {
 protected:
  PlanTest() {
    const auto row = [](const char* op, double ms) {
      return nlohmann::json({{"op", op}, {"variant", "cuda.x"}, {"ms", ms}, {"bytes", ms * 4e9}});
    };
    // The operations one by one take 8 ms, the whole step 16 ms.
    const nlohmann::json step = {{"model", "gpt2:124M"},
                                 {"dtype", "bf16"},
                                 {"batch", 4},
                                 {"seq", 1024},
                                 {"machine", "a GPU"},
                                 {"recompute", "none"},
                                 {"ms_median", 16},
                                 {"ops",
                                  {row("matmul.forward", 2), row("attention.backward", 1),
                                   row("matmul.dw", 2), row("matmul.dx", 1), row("adamw", 2)}}};
    put("record.json", nlohmann::json({{"steps", {step}}, {"links", {{"link_gbps", 800}}}}).dump());
  }

  nlohmann::json planned(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan", "--dtype", "bf16", "--record", path("record.json"), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    succeeds(words);
    return nlohmann::json::parse(output_);
  }
};

TEST_F(PlanTest, ARecordsStepIsUsedAsItIs) {
  const auto plan = planned({"--model", "gpt2:124M", "--batch", "4"});
  EXPECT_DOUBLE_EQ(plan["kernels"]["forward_ms"], 4);
  EXPECT_DOUBLE_EQ(plan["kernels"]["backward_ms"], 8);
  EXPECT_DOUBLE_EQ(plan["kernels"]["update_ms"], 4);
  EXPECT_DOUBLE_EQ(plan["step_ms"], 16);
  EXPECT_DOUBLE_EQ(plan["compute_share"], 1);
  EXPECT_EQ(plan["sent_bytes"], 0);
  EXPECT_EQ(std::string(plan["kernels"]["source"]).find("scaled"), std::string::npos);
}

TEST_F(PlanTest, AnotherOptimizersStepIsNotUsed) {
  fails(1,
        {"plan", "--dtype", "bf16", "--record", path("record.json"), "--model", "gpt2:124M", "--optimizer",
         "muon"},
        {"record.json", "no step of exactly this kind with Muon", "bench step --optimizer muon --json"});
}

// Muon's products belong to the update, not to forward and backward.
TEST_F(PlanTest, MuonsProductsAreTheUpdates) {
  std::set<std::string> names;
  succeeds({"bench", "step", "--model", "gpt2:d1", "--batch", "1", "--seq", "16", "--steps", "1", "--device",
            "cpu", "--optimizer", "muon", "--json"});
  const auto report = nlohmann::json::parse(output_);
  EXPECT_EQ(report["optimizer"], "muon");
  for (const auto& row : report["ops"]) names.insert(row["op"]);
  for (const char* name : {"matmul.forward", "muon.matmul.forward", "muon.matmul.dw", "muon.matmul.dx",
                           "muon.momentum", "muon.update", "adamw"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("muon.muon.update"));
}

TEST_F(PlanTest, AnotherSizeIsScaledAndSaysSo) {
  const auto plan = planned({"--model", "gpt2:124M", "--batch", "8"});
  EXPECT_DOUBLE_EQ(plan["kernels"]["forward_ms"], 8);
  EXPECT_DOUBLE_EQ(plan["kernels"]["backward_ms"], 16);
  EXPECT_DOUBLE_EQ(plan["kernels"]["update_ms"], 4);
  EXPECT_NE(std::string(plan["kernels"]["source"]).find("scaled by operation"), std::string::npos);
}

// A record's step with another --logits-mib is used as it is, or not at all.
TEST_F(PlanTest, AStepWithOtherPartsOfLogitsIsNotScaled) {
  auto record = nlohmann::json::parse(read_file(folder / "record.json", 1 << 20));
  auto in_parts = record["steps"][0];
  in_parts["batch"] = 8;
  in_parts["logits_mib"] = 64;
  in_parts["ms_median"] = 160;
  record["steps"].push_back(in_parts);
  put("record.json", record.dump());
  const std::vector<std::string> whole = {"--model", "gpt2:124M", "--batch", "8"},
                                 parts = {"--model", "gpt2:124M", "--batch", "8", "--logits-mib", "64"};
  EXPECT_DOUBLE_EQ(planned(parts)["kernels"]["forward_ms"], 40);
  EXPECT_DOUBLE_EQ(planned(whole)["kernels"]["forward_ms"], 8);
  record["steps"].erase(0);
  put("record.json", record.dump());
  fails(1,
        {"plan", "--dtype", "bf16", "--record", path("record.json"), "--model", "gpt2:124M", "--batch", "8"},
        {"record.json", "only steps that", "--logits-mib"});
}

// Products grow with the matrices, attention with the layers' width alone.
TEST_F(PlanTest, EachKindOfOperationIsScaledByItsOwnWork) {
  const auto matrices = [](double layers, double C) { return layers * 12 * C * C + 50304 * C; };
  const double products = matrices(24, 1024) / matrices(12, 768), attention = 24.0 * 1024 / (12 * 768);
  const auto plan = planned({"--model", "gpt2:355M", "--batch", "4"});
  EXPECT_NEAR(plan["kernels"]["forward_ms"], 4 * products, 0.01);
  EXPECT_NEAR(plan["kernels"]["backward_ms"], 6 * products + 2 * attention, 0.01);
}

// All products of the blocks but the last one of each, which has a third of their FLOPs.
TEST_F(PlanTest, RecomputedBlocksLeaveOutTheirLastProductAndTheHead) {
  const double of_blocks = 12.0 * 8 * 768 * 768, all = 12.0 * 12 * 768 * 768 + 50304 * 768;
  const auto plan = planned({"--model", "gpt2:124M", "--batch", "8", "--recompute", "block"});
  EXPECT_NEAR(plan["kernels"]["backward_ms"], 16 + 8 * of_blocks / all, 0.01);
}

// At the speed of the record's update, 4 TB/s. The record has no normalization.
TEST_F(PlanTest, ARecomputedActivationFunctionReadsAndWritesItsTensor) {
  const auto backward = [&](const char* model, const char* recompute) {
    return planned({"--model", model, "--batch", "8", "--seq", "1024", "--recompute",
                    recompute})["kernels"]["backward_ms"]
        .get<double>();
  };
  const double of_tensor = 12.0 * 8 * 1024 * 4 * 768 * 2 / 4e9;  // ms of 12 layers
  EXPECT_DOUBLE_EQ(backward("gpt2:124M", "none"), 16);
  EXPECT_NEAR(backward("gpt2:124M", "gelu"), 16 + 2 * of_tensor, 1e-9);
  EXPECT_NEAR(backward("gpt2:124M", "norm"), 16 + 2 * of_tensor, 1e-9);
  // The kernel of a gate's gradient reads what it needs anyway.
  const double of_gated = 30.0 * 8 * 1024 * 1536 * 2 / 4e9;
  EXPECT_NEAR(backward("smollm2:135M", "gelu") - backward("smollm2:135M", "none"), of_gated, 1e-9);
}

TEST_F(PlanTest, LinksComeFromOptionsOrTheRecord) {
  const std::vector<std::string> two = {"--model", "gpt2:124M", "--batch", "4",
                                        "--gpus",  "2",         "--shard", "optimizer"};
  auto plan = planned(two);
  EXPECT_EQ(plan["links"]["link_gbps"], 800);
  EXPECT_EQ(plan["slices_of_rank"], 1);
  EXPECT_EQ(plan["total_batch"], 2 * 4 * 1024);
  // A rank keeps half of gradients and of bf16 weights.
  const double gradients = static_cast<double>(plan["sent_bytes"]) / 0.75;
  EXPECT_NEAR(gradients, 4.0 * 124475904, 1e6);
  std::vector<std::string> faster = two;
  faster.insert(faster.end(), {"--link-gbps", "1600"});
  EXPECT_EQ(planned(faster)["links"]["link_gbps"], 1600);
  EXPECT_LT(planned(faster)["exchange_share"], plan["exchange_share"]);
}

TEST_F(PlanTest, TheTotalBatchThatTrainNeedsIsNamed) {
  std::vector<std::string> words = {"plan",    "--dtype",   "bf16",    "--record", path("record.json"),
                                    "--model", "gpt2:124M", "--batch", "4",        "--gpus",
                                    "2",       "--shard",   "none"};
  const std::string line = "\n  for this step `train` needs --total-batch 8192\n";
  succeeds(words);
  EXPECT_NE(output_.find(line), std::string::npos) << output_;
  words.insert(words.end(), {"--total-batch", "8192"});
  succeeds(words);
  EXPECT_EQ(output_.find("--total-batch"), std::string::npos) << output_;
}

// Two ranks with six slices each have two whole nodes of the tree.
TEST_F(PlanTest, ALibrarysSumTakesLessMemoryAndOneExchange) {
  const auto of = [&](const char* reduce) {
    return planned({"--model", "gpt2:124M", "--batch", "4", "--gpus", "2", "--shard", "none", "--total-batch",
                    std::to_string(12 * 4 * 1024), "--reduce", reduce});
  };
  const auto tree = of("tree"), ring = of("ring");
  EXPECT_EQ(tree["reduce"], "tree");
  EXPECT_EQ(ring["reduce"], "ring");
  EXPECT_DOUBLE_EQ(tree["sent_bytes"].get<double>() / ring["sent_bytes"].get<double>(), 1.5);
  // The second rank of the tree has its half of the other's two nodes. Its first node, of two slices, waits
  // for a second one of four, which takes one set more than the six slices by themselves.
  EXPECT_NEAR(tree["memory"]["gradients"].get<double>() - ring["memory"]["gradients"].get<double>(),
              2 * 4.0 * 124475904, 1e7);
  EXPECT_EQ(tree["memory"]["optimizer"], ring["memory"]["optimizer"]);
}

TEST_F(PlanTest, WhatIsUnknownIsNamed) {
  const std::vector<std::string> base = {"plan",    "--dtype",   "bf16",    "--record", path("record.json"),
                                         "--model", "gpt2:124M", "--batch", "4",        "--gpus",
                                         "4"};
  const auto refused = [&](int code, const std::vector<std::string>& more,
                           const std::vector<std::string>& words) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    fails(code, all, words);
  };
  refused(2, {"--nodes", "2", "--shard", "none"}, {"--network-gbps", "is missing"});
  refused(2, {}, {"--memory-gb", "--shard"});
  refused(2, {"--nodes", "3"}, {"--gpus", "3 nodes"});
  refused(2, {"--total-batch", "12288"}, {"--total-batch", "3 slices", "4 ranks"});
  refused(1, {"--dtype", "fp32", "--shard", "none"}, {"record.json", "fp32"});
  put("record.json", "{}");
  refused(1, {"--shard", "none", "--link-gbps", "1"}, {"record.json", "no time of a step"});
}

TEST_F(PlanTest, AModelThatIsTooLargeToTimeHasItsMemory) {
  const std::vector<std::string> huge = {"plan",   "--layers", "4", "--heads",  "1024", "--channels",
                                         "262144", "--batch",  "4", "--device", "cpu"};
  succeeds(huge);
  EXPECT_TRUE(std::regex_search(output_, std::regex("memory of the rank.*\n(.*\n)* *does not fit: .* TB of")))
      << output_;
  EXPECT_TRUE(
      std::regex_search(output_, std::regex("\ntime: unknown: one rank alone needs .* TB .*; give --record "
                                            "with a machine's record.*\n$")))
      << output_;
  EXPECT_EQ(output_.find("kernels:"), std::string::npos) << output_;
  std::vector<std::string> as_json = huge;
  as_json.push_back("--json");
  succeeds(as_json);
  const auto plan = nlohmann::json::parse(output_);
  EXPECT_GT(plan["memory"]["total"], 1e12);
  EXPECT_NE(std::string(plan["not_timed"]).find("one rank alone needs"), std::string::npos);
  for (const char* key : {"kernels", "sent_bytes", "step_ms", "tokens_per_second"})
    EXPECT_FALSE(plan.contains(key)) << key;
}

TEST_F(PlanTest, ThePlannerChoosesByTheMemoryThatIsGiven) {
  const auto sharding = [&](const char* gigabytes) {
    return planned(
        {"--model", "gpt2:124M", "--batch", "4", "--gpus", "8", "--memory-gb", gigabytes})["shard"];
  };
  EXPECT_EQ(sharding("141"), "optimizer");
  EXPECT_EQ(sharding("1"), "parameters");
}

}  // namespace
}  // namespace warpwright
