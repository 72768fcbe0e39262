// Tests training over ranks as a user starts it, with mpirun on CPUs and with --gpus on GPUs: the same bits
// for any number of ranks, and what happens when a rank is refused or dies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <sstream>
#include <thread>

#include "model/safetensors.hpp"
#include "runtime/device.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"
#include "tests/on_ranks.hpp"
#include "tests/small_data.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// Data for a small run, and its results.
class SmallRun : public TestFolder {
 protected:
  void SetUp() override { make_shards(folder / "data", 9000, 500); }

  // A shard holds multiples of 128 rows of these matrices, so that ranks also share one of them. 12 slices.
  Words training(const std::string& run, const Words& more = {}) const {
    const std::string options =
        "--vocab 64 --layers 3 --heads 2 --channels 128 --context 16 --batch 2 --total-batch 384 --steps 6 "
        "--threads 1 --val-every 2";
    Words words = {"train", "--data", (folder / "data").string(), "--out", (folder / run).string()};
    std::istringstream split(options);
    for (std::string word; split >> word;) words.push_back(word);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // The weights, the optimizer, and the losses of each step.
  std::vector<std::string> bits_of(const std::string& name, int steps) const {
    const fs::path path = folder / name, checkpoint = path / "checkpoints" / fmt::format("step_{:08}", steps);
    std::string losses;
    std::istringstream lines(read_file(path / "metrics.jsonl", 1 << 20));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      losses += fmt::format("{} {} {} {}\n", json["step"].dump(), json["loss"].dump(), json["norm"].dump(),
                            json.value("val_loss", nlohmann::json()).dump());
    }
    return {losses, read_file(path / "model" / "model.safetensors", 1 << 26),
            joined(tensors_in(checkpoint, "model")), joined(tensors_in(checkpoint, "optimizer"))};
  }

  // The bytes of the tensors in the parts of all ranks, by their names.
  using Tensors = std::map<std::string, std::string>;
  static Tensors tensors_in(const fs::path& checkpoint, const std::string& content) {
    std::map<std::string, std::map<std::int64_t, std::string>> rows;  // by the first of them
    for (const fs::path& path : list_folder(checkpoint)) {
      const std::string file_name = path.filename().string();
      if (!file_name.starts_with(content) || !file_name.ends_with(".safetensors")) continue;
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.entries()) {
        const std::size_t bracket = entry.name.find('[');
        const auto first = bracket == std::string::npos ? 0 : std::stoll(entry.name.substr(bracket + 1));
        const auto bytes = file.bytes(entry);
        rows[entry.name.substr(0, bracket)][first] = {reinterpret_cast<const char*>(bytes.data()),
                                                      bytes.size()};
      }
    }
    Tensors tensors;
    for (const auto& [name, parts] : rows) {
      for (const auto& [first, bytes] : parts) tensors[name] += bytes;
    }
    return tensors;
  }

  static std::string joined(const Tensors& tensors) {
    std::string all;
    for (const auto& [name, bytes] : tensors) all += name + bytes;
    return all;
  }

  // moments: of each weight, at least.
  void expect_same_bits(const std::string& a, const std::string& b, int steps = 6,
                        std::size_t moments = 2) const {
    const auto bits_a = bits_of(a, steps), bits_b = bits_of(b, steps);
    EXPECT_EQ(std::ranges::count(bits_a[0], '\n'), steps);
    EXPECT_EQ(bits_a[0], bits_b[0]) << b;
    EXPECT_TRUE(bits_a[1] == bits_b[1]) << "weights of " << b;
    EXPECT_TRUE(bits_a[2] == bits_b[2]) << "weights in the checkpoint of " << b;
    EXPECT_GT(bits_a[3].size(), moments * bits_a[2].size());
    EXPECT_TRUE(bits_a[3] == bits_b[3]) << "optimizer of " << b;
  }

  // Compares two fp32 runs that add up 12 slices in different orders. Each order rounds at most 11 times, by
  // at most 2⁻²⁴ of the sum of the terms' absolute values. If the terms are independent, that is √12 times
  // their sum. A squared gradient has twice the error. The runs have a large --eps, so that the update does
  // not magnify errors of the second moment.
  void expect_rounded_alike(const std::string& a, const std::string& b) const {
    const double tolerance = 2 * std::sqrt(12) * 2 * 11 * 0x1p-24;
    for (const char* content : {"model", "optimizer"}) {
      const auto of = [&](const std::string& run) {
        return tensors_in(folder / run / "checkpoints" / "step_00000006", content);
      };
      const Tensors tensors_a = of(a), tensors_b = of(b);
      EXPECT_EQ(tensors_a.size(), tensors_b.size());
      for (const auto& [name, bytes] : tensors_a) {
        EXPECT_LE(difference(bytes, tensors_b.at(name)), tolerance) << name << " of " << b;
      }
    }
  }

  // ‖a − b‖ / ‖a‖ of fp32 tensors.
  static double difference(const std::string& a, const std::string& b) {
    std::vector<float> of_a(a.size() / sizeof(float)), of_b(b.size() / sizeof(float));
    std::memcpy(of_a.data(), a.data(), a.size());
    std::memcpy(of_b.data(), b.data(), b.size());
    EXPECT_EQ(of_a.size(), of_b.size());
    double squares = 0, all = 0;
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      squares += std::pow(static_cast<double>(of_a[i]) - of_b[i], 2);
      all += std::pow(of_a[i], 2);
    }
    return std::sqrt(squares / all);
  }
};

class Ranks : public SmallRun {
 protected:
  void SetUp() override {
    if (const std::string reason = no_ranks_here(); !reason.empty()) GTEST_SKIP() << reason;
    SmallRun::SetUp();
  }

  ProcessResult run(int ranks, const Words& words) const { return run_on_ranks(ranks, words, folder); }

  void succeeds(int ranks, const Words& words) const {
    const ProcessResult r = run(ranks, words);
    EXPECT_EQ(r.code, 0) << ranks << " ranks: " << r.err << r.out;
  }

  // The lines of a run that fails, with other arguments for rank 0 than for rank 1.
  Words apart(const Words& first, const Words& second) const {
    return second_started_by({WARPWRIGHT_BINARY}, first, second);
  }
  // The lines of rank 0 of a run whose rank 1 never starts MPI.
  Words without_the_second(const Words& first) const { return second_started_by({"sleep"}, first, {"100"}); }
  // The same with equal arguments, for a rank 1 that sees the folder `local` in the place of `shared`.
  Words with_a_mount(const std::string& local, const std::string& shared, const Words& arguments) const {
    const Words mount{"unshare",
                      "-m",
                      "sh",
                      "-c",
                      "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"",
                      (folder / local).string(),
                      (folder / shared).string(),
                      WARPWRIGHT_BINARY};
    return second_started_by(mount, arguments, arguments);
  }
  static bool may_mount() { return std::system("unshare -m mount --bind / /mnt 2>/dev/null") == 0; }

  // A start that is refused leaves a folder that has only "checkpoints" as it was.
  void expect_nothing_begun(const std::string& name) const {
    EXPECT_TRUE(list_folder(folder / name / "checkpoints").empty()) << name;
    EXPECT_EQ(list_folder(folder / name).size(), 1u) << name;
  }

 private:
  Words second_started_by(const Words& program, const Words& first, const Words& second) const {
    Words words = on_ranks(1, first);
    words.insert(words.end(), {":", "-n", "1"});
    words.insert(words.end(), program.begin(), program.end());
    words.insert(words.end(), second.begin(), second.end());
    const ProcessResult r = run_process(words, folder, "mpirun");
    EXPECT_NE(r.code, 0);
    return own_lines(r.err);
  }
};

TEST_F(Ranks, AnyNumberThatDividesTheSlicesGivesTheSameBits) {
  succeeds(1, training("one"));
  for (const int ranks : {2, 3, 4, 6, 12}) {
    for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
      const std::string name = std::to_string(ranks) + shard;
      succeeds(ranks, training(name, {"--shard", shard}));
      expect_same_bits("one", name);
    }
  }
}

// With the order of MPI.
TEST_F(Ranks, TheLibrarysSumIsTheTreesToRounding) {
  const auto ring = [&](const std::string& run, const std::string& shard) {
    return training(run, {"--eps", "1", "--reduce", "ring", "--shard", shard});
  };
  succeeds(1, training("tree", {"--eps", "1"}));
  succeeds(1, ring("one", "none"));
  expect_same_bits("tree", "one");
  for (const int ranks : {2, 3}) {
    for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
      const std::string name = std::to_string(ranks) + shard;
      succeeds(ranks, ring(name, shard));
      expect_rounded_alike("tree", name);
      // The six slices of one of two ranks are no node of the tree. Three ranks may have the tree's order.
      const bool same = bits_of("tree", 6)[3] == bits_of(name, 6)[3];
      EXPECT_FALSE(ranks == 2 && same) << "the tree's order in " << name;
      succeeds(ranks, ring(name + "again", shard));
      expect_same_bits(name, name + "again");
    }
  }
}

// A sum of two terms has one order.
TEST_F(Ranks, TwoSlicesHaveTheSameSumEitherWay) {
  const Words two = {"--total-batch", "64"};
  succeeds(2, training("tree", two));
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    succeeds(2, training(shard, {"--total-batch", "64", "--reduce", "ring", "--shard", shard}));
    expect_same_bits("tree", shard);
  }
}

TEST_F(Ranks, ALibrarysSumIsOfANumberOfRanks) {
  const Words constant = {"--schedule", "constant", "--reduce", "ring", "--resume"};
  const auto to = [&](const std::string& steps) {
    Words words = training("parts", constant);
    words.insert(words.end(), {"--steps", steps});
    return words;
  };
  const std::string line = "was written over 2 ranks, and the run goes on over 3: with --reduce ring";
  succeeds(2, to("2"));
  EXPECT_EQ(run(2, to("4")).out.find(line), std::string::npos);
  const ProcessResult r = run(3, to("6"));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find(line), std::string::npos) << r.out;
}

// Muon's matrices are not cut, so ranks have other pieces than with AdamW.
TEST_F(Ranks, MuonHasTheSameBits) {
  Words more = {"--optimizer", "muon", "--shard", "none"};
  succeeds(1, training("one", more));
  for (const int ranks : {2, 3}) {
    for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
      more.back() = shard;
      const std::string name = std::to_string(ranks) + shard;
      succeeds(ranks, training(name, more));
      expect_same_bits("one", name, 6, 1);
    }
  }
  more.insert(more.begin(), {"--dtype", "bf16", "--master-weights", "none"});
  succeeds(1, training("bf16", more));
  succeeds(4, training("bf16_4", more));
  expect_same_bits("bf16", "bf16_4");
}

TEST_F(Ranks, Bf16HasTheSameBits) {
  for (const std::string masters : {"none", "fp32"}) {
    Words more = {"--dtype", "bf16", "--master-weights", masters, "--shard", "none"};
    succeeds(1, training("one" + masters, more));
    for (const std::string shard : {"optimizer", "gradients", "parameters"}) {
      more.back() = shard;
      succeeds(4, training(shard + masters, more));
      expect_same_bits("one" + masters, shard + masters);
    }
  }
}

// The memory of a rank's plan, in MB, by category.
TEST_F(Ranks, DivideMemory) {
  std::map<std::string, std::map<std::string, double>> taken;
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    const ProcessResult r =
        run(4, training(shard, {"--shard", shard, "--layers", "12", "--steps", "1", "--plan"}));
    for (const std::string category : {"parameters", "gradients", "optimizer"}) {
      std::smatch line;
      const bool found = std::regex_search(r.out, line, std::regex("\n *" + category + " +([0-9.]+)"));
      ASSERT_TRUE(found) << r.out << r.err;
      taken[shard][category] = std::stod(line[1]);
    }
  }
  auto& none = taken["none"];
  for (const std::string shard : {"optimizer", "gradients", "parameters"}) {
    EXPECT_NEAR(taken[shard]["optimizer"], none["optimizer"] / 4, none["optimizer"] / 12) << shard;
  }
  EXPECT_LT(taken["gradients"]["gradients"], none["gradients"] / 2);
  EXPECT_EQ(taken["gradients"]["parameters"], none["parameters"]);
  EXPECT_LT(taken["parameters"]["parameters"], none["parameters"] / 2);
}

// On CPUs the ranks of a machine share its memory.
TEST_F(Ranks, WhatDoesNotFitIsOneLineThatCountsAllRanks) {
  const Words huge = {"--layers", "12", "--heads", "256", "--channels", "65536", "--shard", "gradients"};
  const ProcessResult r = run(2, training("never", huge));
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  for (const char* part :
       {"memory plan", "the 2 ranks on ", "smaller model", "--shard parameters would need"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  }
  EXPECT_FALSE(fs::exists(folder / "never"));
}

// The sum of the columns of a rank's line is its total, but for rounding.
TEST_F(Ranks, ThePlanShowsWhatEachRankHolds) {
  const ProcessResult r = run(3, training("shown", {"--steps", "1", "--plan"}));
  EXPECT_NE(r.out.find("and --shard optimizer, as the planner chooses"), std::string::npos) << r.out;
  const std::string table = r.out.substr(r.out.find("memory of each rank:"));
  for (const std::string rank : {"0", "1", "2"}) {
    std::smatch line;
    ASSERT_TRUE(std::regex_search(table, line, std::regex("\n +" + rank + " +([0-9].*)"))) << r.out;
    std::istringstream words(std::regex_replace(line[1].str(), std::regex("MiB"), ""));
    std::vector<double> columns;
    for (double number = 0; words >> number;) columns.push_back(number);
    ASSERT_GT(columns.size(), 4u);
    const double total = columns.back();
    columns.pop_back();
    EXPECT_NEAR(std::accumulate(columns.begin(), columns.end(), 0.0), total, 0.5);
  }
  const std::string state =
      read_file(folder / "shown" / "checkpoints" / "step_00000001" / "trainer.json", 1 << 20);
  EXPECT_EQ(nlohmann::json::parse(state)["settings"]["shard"], "auto");
}

// `plan` knows ranks that do not run.
TEST_F(Ranks, PlanPredictsTheMemoryOfTheRankThatHoldsMost) {
  for (const int ranks : {2, 3}) {
    for (const std::string mode :
         {"none adamw tree", "optimizer adamw tree", "gradients adamw tree", "parameters adamw tree",
          "optimizer muon tree", "parameters muon tree", "optimizer adamw ring", "gradients adamw ring"}) {
      std::string shard, optimizer, reduce;
      std::istringstream(mode) >> shard >> optimizer >> reduce;
      const std::string name = std::to_string(ranks) + shard + optimizer + reduce;
      const Words sizes = {"--shard", shard, "--optimizer", optimizer, "--reduce", reduce, "--threads", "1"};
      Words words = training(name, sizes);
      words.insert(words.end(), {"--plan", "--steps", "1"});
      const std::string shown = run(ranks, words).out;
      double most = 0;
      const std::regex total("\\n +[0-9]+ .* ([0-9.]+) MiB(?=\\n)");
      const std::string table = shown.substr(shown.find("memory of each rank:"), 600);
      for (std::sregex_iterator line(table.begin(), table.end(), total), end; line != end; ++line) {
        most = std::max(most, std::stod((*line)[1]));
      }
      words = {"plan",        "--vocab", "64",         "--layers",      "3",
               "--heads",     "2",       "--channels", "128",           "--context",
               "16",          "--batch", "2",          "--total-batch", "384",
               "--link-gbps", "10",      "--json",     "--gpus",        std::to_string(ranks)};
      words.insert(words.end(), sizes.begin(), sizes.end());
      const ProcessResult planned = run(1, words);
      ASSERT_EQ(planned.code, 0) << planned.err;
      const double bytes = nlohmann::json::parse(planned.out)["memory"]["total"];
      EXPECT_EQ(fmt::format("{:.1f}", bytes / 0x1p20), fmt::format("{:.1f}", most)) << name << shown;
    }
  }
}

TEST_F(Ranks, PlanMeasuresKernelsAndLinks) {
  for (const int ranks : {1, 2}) {
    const ProcessResult r =
        run(ranks, {"plan", "--layers", "2", "--heads", "2", "--channels", "128", "--vocab", "64",
                    "--context", "64", "--threads", "1", "--json", "--gpus", std::to_string(ranks)});
    ASSERT_EQ(r.code, 0) << r.err;
    const auto plan = nlohmann::json::parse(r.out);
    const auto& kernels = plan["kernels"];
    for (const char* part : {"forward_ms", "backward_ms", "update_ms"}) EXPECT_GT(kernels[part], 0) << part;
    EXPECT_GE(plan["step_ms"], kernels["forward_ms"].get<double>() + kernels["backward_ms"].get<double>());
    EXPECT_EQ(plan["links"].contains("link_gbps"), ranks == 2);
    EXPECT_EQ(plan["exchange_share"].get<double>() > 0, ranks == 2);
    EXPECT_NEAR(plan["exchange_share"].get<double>() + plan["compute_share"].get<double>(), 1, 1e-9);
  }
}

TEST_F(Ranks, PlanReportsAnErrorOnce) {
  for (const Words& more :
       {Words{"--layers", "x"}, Words{"--layers", "2", "--shard", "auto", "--vocab", "0"}}) {
    Words words = {"plan", "--gpus", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult r = run(2, words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_EQ(own_lines(r.err).size(), 1u) << r.err;
  }
}

// Recomputation and validation use a layer's parameters, too, and 5 validation batches are not the same
// number for each rank.
TEST_F(Ranks, DivideWhatAWholeModelAndRecomputationNeed) {
  const Words first = {"--steps", "2"};
  succeeds(1, training("start", first));
  Words more = {"--model",       (folder / "start" / "model").string(),
                "--recompute",   "block",
                "--val-batches", "5",
                "--shard",       "none"};
  const auto from_model = [&](const std::string& name) {
    Words words = training(name, more);
    for (const char* flag : {"--vocab", "--layers", "--heads", "--channels", "--context"}) {
      const auto found = std::ranges::find(words, flag);
      words.erase(found, found + 2);
    }
    return words;
  };
  succeeds(1, from_model("one"));
  more.back() = "parameters";
  succeeds(4, from_model("four"));
  expect_same_bits("one", "four");
}

TEST_F(Ranks, AnotherNumberMayResume) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    const Words constant = {"--schedule", "constant", "--optimizer", optimizer};
    succeeds(1, training("whole" + optimizer, constant));
    const auto to = [&](const std::string& steps) {
      Words words = training("parts" + optimizer, constant);
      words.insert(words.end(), {"--steps", steps, "--resume"});
      return words;
    };
    succeeds(1, to("2"));
    succeeds(4, to("4"));
    Words divided = to("6");
    divided.insert(divided.end(), {"--shard", "parameters"});
    succeeds(2, divided);
    expect_same_bits("whole" + optimizer, "parts" + optimizer, 6, optimizer == "muon" ? 1 : 2);
  }
}

// Parts of six ranks, read by three, four and one, which divide the state in other ways.
TEST_F(Ranks, EveryModeReadsThePartsOfEveryOther) {
  for (const std::string masters : {"none", "fp32"}) {
    const Words more = {"--dtype",    "bf16",     "--master-weights", masters,
                        "--schedule", "constant", "--val-every",      "1"};
    const auto to = [&](const std::string& steps, const std::string& shard) {
      Words words = training("parts" + masters, more);
      words.insert(words.end(), {"--steps", steps, "--shard", shard, "--resume"});
      return words;
    };
    succeeds(1, training("whole" + masters, more));
    succeeds(6, to("1", "none"));
    succeeds(3, to("2", "parameters"));
    succeeds(4, to("3", "gradients"));
    succeeds(2, to("4", "optimizer"));
    succeeds(12, to("5", "parameters"));
    succeeds(1, to("6", "none"));
    expect_same_bits("whole" + masters, "parts" + masters);
  }
}

TEST_F(Ranks, ACheckpointIsAModel) {
  succeeds(3, training("run"));
  const auto report_of = [&](const fs::path& model) {
    const ProcessResult r =
        run(1, {"eval", "--model", model.string(), "--data", (folder / "data").string(), "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  const fs::path checkpoint = folder / "run" / "checkpoints" / "step_00000006";
  EXPECT_TRUE(fs::exists(checkpoint / "model-00003-of-00003.safetensors"));
  EXPECT_EQ(report_of(checkpoint), report_of(folder / "run" / "model"));
}

class RanksWithDamage : public Ranks {
 protected:
  void SetUp() override {
    Ranks::SetUp();
    if (IsSkipped()) return;
    succeeds(3, training("run", {"--checkpoint-every", "2"}));
    fs::copy(folder / "run", folder / "whole", fs::copy_options::recursive);
    fs::remove_all(folder / "run" / "model");  // a finished run is not resumed
  }

  fs::path part(int step, const std::string& name) const {
    return folder / "run" / "checkpoints" / fmt::format("step_{:08}", step) /
           fmt::format("{}-00002-of-00003.safetensors", name);
  }

  // Goes on from step 4, whatever the ranks, and says why in one line.
  void goes_on_from_before(const std::string& name) const {
    const ProcessResult r = run(2, training("run", {"--resume"}));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("resumed after step 4"), std::string::npos) << r.out;
    std::smatch line;
    const std::regex wanted("step_00000006 is damaged \\(.*" + name + "-00002-of-00003.*before it");
    EXPECT_TRUE(std::regex_search(r.out, line, wanted)) << r.out;
    EXPECT_FALSE(std::regex_search(line.suffix().str(), wanted)) << r.out;
    expect_same_bits("whole", "run");
  }
};

TEST_F(RanksWithDamage, AMissingPartIsNamed) {
  fs::remove(part(6, "optimizer"));
  goes_on_from_before("optimizer");
}

TEST_F(RanksWithDamage, APartOfAnotherCheckpointIsNamed) {
  fs::copy_file(part(4, "model"), part(6, "model"), fs::copy_options::overwrite_existing);
  goes_on_from_before("model");
}

TEST_F(RanksWithDamage, WithoutAWholeCheckpointOneRankSaysSo) {
  fs::remove(part(4, "optimizer"));
  fs::remove(part(6, "model"));
  const ProcessResult r = run(3, training("run", {"--resume"}));
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  EXPECT_NE(lines[0].find("checkpoints: holds no intact checkpoint: " + part(4, "optimizer").string()),
            std::string::npos)
      << lines[0];
}

TEST_F(Ranks, RanksThatSeeOtherCheckpointsAreRefused) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  succeeds(1, training("a", {"--checkpoint-every", "2"}));
  fs::copy(folder / "a" / "checkpoints", folder / "b", fs::copy_options::recursive);
  fs::remove_all(folder / "b" / "step_00000004");
  const Words lines = with_a_mount("b", "a/checkpoints", training("a", {"--resume", "--steps", "9"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("rank 0 sees the checkpoints 4 6, and rank 1 6"), std::string::npos) << lines[0];
}

TEST_F(Ranks, ANumberThatDoesNotDivideIsRefused) {
  const ProcessResult r = run(5, training("five"));
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  for (const char* part : {"rank ", " on ", "12 slices", "5 ranks", "start 4 or 6 ranks"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  }
  EXPECT_FALSE(fs::exists(folder / "five"));
}

TEST_F(Ranks, WithoutATotalBatchThereIsOneSlice) {
  Words words = training("one_slice");
  const auto option = std::ranges::find(words, "--total-batch");
  words.erase(option, option + 2);
  const ProcessResult r = run(3, words);
  EXPECT_EQ(r.code, 2);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  EXPECT_NE(lines[0].find("--total-batch: is not given, and a step is then one slice of batch × seq, which 3 "
                          "ranks cannot share; give ranks × batch × seq = 96"),
            std::string::npos)
      << lines[0];
}

// A job of one process sets these variables, and mpirun passes them on.
TEST_F(Ranks, VariablesOfOneRankDoNotHideMpirun) {
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  const ProcessResult r = run(3, training("three"));
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("ranks: 3"), std::string::npos) << r.out;
}

TEST_F(Ranks, WrongUsageKeepsItsExitCode) {
  const ProcessResult r = run(2, training("odd", {"--heads", "3", "--channels", "40"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(own_lines(r.err).size(), 1u) << r.err;
}

TEST_F(Ranks, AnErrorOfAllIsOneLine) {
  Words words = training("missing");
  words[2] = (folder / "nowhere").string();
  const ProcessResult r = run(3, words);
  EXPECT_NE(r.code, 0);
  EXPECT_EQ(own_lines(r.err).size(), 1u) << r.err;
}

TEST_F(Ranks, AWrongCommandLineIsOneLine) {
  for (const Words& words :
       {Words{"trian"}, training("wrong", {"--lora"}), training("wrong", {"--seed", "x"})}) {
    const ProcessResult r = run(3, words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_EQ(own_lines(r.err).size(), 1u) << r.err;
  }
  const Words lines = apart(training("wrong"), training("wrong", {"--lora"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("--lora: unknown option"), std::string::npos) << lines[0];
  EXPECT_TRUE(lines[0].starts_with("warpwright: rank 1 on ")) << lines[0];
}

// The ranks know no more of each other than that one mpirun has started the scripts that started them.
TEST_F(Ranks, WrongVariablesAreOneLineOfRanksThatScriptsStart) {
  Words words = on_ranks(3, training("wrong"));
  const auto program = std::ranges::find(words, std::string(WARPWRIGHT_BINARY));
  const Words script = {"sh", "-c", "\"$0\" \"$@\"; exit $?"};
  words.insert(program, script.begin(), script.end());
  ::setenv("RANK", "0", 1);
  const ProcessResult r = run_process(words, folder, "mpirun");
  ::unsetenv("RANK");
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  EXPECT_NE(lines[0].find("WORLD_SIZE: is not set, but RANK is"), std::string::npos) << lines[0];
}

TEST_F(Ranks, RanksWithAnotherCommandAreNamed) {
  const Words lines = apart(training("train"), {"eval", "--model", "model", "--data", "data"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("runs eval, and rank 0 runs train"), std::string::npos) << lines[0];
}

// The others wait until rank 0 has written the checkpoint of the step before.
TEST_F(Ranks, ALossThatIsNotFiniteLeavesACheckpoint) {
  for (const std::string shard : {"optimizer", "parameters"}) {
    const ProcessResult r =
        run(3, training(shard, {"--lr", "1e30", "--warmup", "0", "--clip", "0", "--shard", shard}));
    EXPECT_NE(r.code, 0);
    const Words lines = own_lines(r.err);
    ASSERT_EQ(lines.size(), 1u) << r.err;
    EXPECT_NE(lines[0].find("the first tensor that is not finite is"), std::string::npos) << lines[0];
    const auto checkpoints = fs::directory_iterator(folder / shard / "checkpoints");
    EXPECT_EQ(std::distance(fs::begin(checkpoints), fs::end(checkpoints)), 1);
  }
}

TEST_F(Ranks, SamplesNeedWholeWeights) {
  const ProcessResult r = run(2, training("samples", {"--sample-every", "2", "--shard", "parameters"}));
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  EXPECT_NE(lines[0].find("--sample-every"), std::string::npos) << lines[0];
}

TEST_F(Ranks, RanksWithOtherOptionsAreRefused) {
  const Words lines = apart(training("apart", {"--seed", "1"}), training("apart", {"--seed", "2"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("rank 0 and rank 1 differ in options/seed: 1 and 2"), std::string::npos)
      << lines[0];
  const Words sums = apart(training("sums"), training("sums", {"--reduce", "ring"}));
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_NE(sums[0].find("differ in options/reduce: \"tree\" and \"ring\""), std::string::npos) << sums[0];
  for (const char* name : {"apart", "sums"}) EXPECT_FALSE(fs::exists(folder / name)) << name;
}

// The folders exist, and even look like a run's.
TEST_F(Ranks, AFolderThatIsNotRank0sIsRefusedAtTheStart) {
  for (const char* run : {"a", "b"}) create_folders(folder / run / "checkpoints");
  const Words lines = apart(training("a"), training("b"));
  ASSERT_EQ(lines.size(), 1u);
  const std::string a = (folder / "a").string(), b = (folder / "b").string();
  EXPECT_NE(lines[0].find("--out: " + a + " of rank 0 is not " + b + " of rank 1 on "), std::string::npos)
      << lines[0];
  expect_nothing_begun("a");
  expect_nothing_begun("b");
}

TEST_F(Ranks, AFolderThatIsLocalToAMachineIsRefusedAtTheStart) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  for (const char* run : {"run", "local"}) create_folders(folder / run / "checkpoints");
  const std::string run = (folder / "run").string();
  const Words lines = with_a_mount("local", "run", training("run"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("--out: " + run + " is one folder for rank 0 and another for rank 1 on "),
            std::string::npos)
      << lines[0];
  expect_nothing_begun("run");
  expect_nothing_begun("local");
}

TEST_F(Ranks, Bf16TakesAnOddNumberOfChannels) {
  const Words odd = {"--dtype", "bf16", "--heads", "3", "--channels", "39", "--steps", "2"};
  succeeds(1, training("one", odd));
  for (const char* shard : {"none", "parameters"}) {
    Words more = odd;
    more.insert(more.end(), {"--shard", shard});
    succeeds(2, training(shard, more));
    expect_same_bits("one", shard, 2);
  }
}

TEST_F(Ranks, RanksWithOtherWeightsAreRefused) {
  succeeds(1, training("a", {"--seed", "1"}));
  succeeds(1, training("b", {"--seed", "2"}));
  const auto from = [&](const char* run, const std::string& shard) {
    return Words{"train",
                 "--data",
                 (folder / "data").string(),
                 "--out",
                 (folder / "apart").string(),
                 "--model",
                 (folder / run / "model").string(),
                 "--batch",
                 "2",
                 "--total-batch",
                 "384",
                 "--threads",
                 "1",
                 "--steps",
                 "2",
                 "--shard",
                 shard};
  };
  for (const std::string shard : {"optimizer", "parameters"}) {
    const Words lines = apart(from("a", shard), from("b", shard));
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("differ in weights: "), std::string::npos) << lines[0];
    EXPECT_FALSE(fs::exists(folder / "apart"));
  }
}

TEST_F(Ranks, ARunThatIsFinishedForOneRankAloneIsRefused) {
  succeeds(1, training("done"));
  const Words lines = apart(training("done", {"--resume"}), training("done", {"--resume", "--steps", "9"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("is finished for some ranks"), std::string::npos) << lines[0];
}

TEST_F(Ranks, ARankThatDoesNotStartMpiEndsTheRun) {
  const Words lines = without_the_second(training("run", {"--collective-timeout", "3"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("start of MPI: another rank has kept this one waiting for more than 3 s"),
            std::string::npos)
      << lines[0];
}

// Rank 0 draws a long sample, and rank 1 waits for it.
TEST_F(Ranks, ARankThatWaitsTooLongEndsTheRun) {
  const ProcessResult r = run(2, training("slow", {"--sample-every", "1", "--sample-tokens", "10000000",
                                                   "--collective-timeout", "10"}));
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  for (const char* part : {"rank 0 on ", ", step 1, own work: rank 0 on ", "waiting for more than 10 s"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  }
}

// The process ID of a rank: a child of its launcher, the last one unless `index` says which, or of a process
// between them, as MPICH has it.
pid_t child_of(pid_t parent, int index = -1) {
  const std::string list = fmt::format("/proc/{}/task/{}/children", parent, parent);
  std::istringstream children(read_file(list, 1 << 16));
  pid_t last = 0;
  int i = 0;
  for (pid_t child = 0; children >> child;) {
    last = child;
    if (i++ == index) break;
  }
  const pid_t below = last > 0 ? child_of(last, index) : 0;
  return below > 0 ? below : last;
}

// Returns when the run has done a step, or kills the launcher (and returns 0) if that does not happen.
pid_t when_under_way(pid_t launcher, const fs::path& run) {
  const fs::path metrics = run / "metrics.jsonl";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!fs::exists(metrics) || fs::file_size(metrics) == 0) {
    if (waitpid(launcher, nullptr, WNOHANG) != 0) return 0;
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(launcher, SIGKILL);  // its ranks end with it
      wait_for(launcher);
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return launcher;
}

class RanksUnderWay : public Ranks {
 protected:
  // Starts a run on three ranks, and returns when it has done a step.
  pid_t started(const std::string& name) const {
    const pid_t launcher = start_process(on_ranks(3, training(name, {"--steps", "1000000"})), folder / "out",
                                         folder / "err", nullptr, "mpirun");
    return when_under_way(launcher, folder / name);
  }
};

TEST_F(RanksUnderWay, ASignalToOneStopsAll) {
  const pid_t launcher = started("stopped");
  ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  ::kill(rank, SIGTERM);
  EXPECT_EQ(wait_for(launcher), 128 + SIGTERM);
  EXPECT_NE(read_file(folder / "out", 1 << 20).find("goes on"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "stopped" / "model" / "model.safetensors"));
  EXPECT_TRUE(own_lines(read_file(folder / "err", 1 << 20)).empty());
}

// While the ranks load, and when they have just begun.
TEST_F(RanksUnderWay, ASignalToOneBeforeTheFirstStepStopsAll) {
  for (int i = 0; i < 8; ++i) {
    const std::string name = fmt::format("early{}", i);
    const fs::path run = folder / name;
    const Words words = training(name, {"--steps", "1000000", "--layers", "12", "--channels", "256"});
    const pid_t launcher =
        start_process(on_ranks(3, words), folder / "out", folder / "err", nullptr, "mpirun");
    while (!fs::exists(run)) {
      ASSERT_EQ(waitpid(launcher, nullptr, WNOHANG), 0) << read_file(folder / "err", 1 << 20);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * i));
    const pid_t rank = child_of(launcher, i % 3);
    ASSERT_GT(rank, 0);
    ::kill(rank, SIGTERM);
    EXPECT_EQ(wait_for(launcher), 128 + SIGTERM);
    EXPECT_TRUE(own_lines(read_file(folder / "err", 1 << 20)).empty()) << read_file(folder / "err", 1 << 20);
    const bool begun = fs::exists(run);
    EXPECT_EQ(fs::exists(run / "model" / "model.safetensors"), begun);
    const std::string wanted = begun ? "stopped: a checkpoint and model" : "stopped before the first step";
    EXPECT_NE(read_file(folder / "out", 1 << 20).find(wanted), std::string::npos) << wanted;
  }
}

// Rank 0 waits for another one, which is stopped.
TEST_F(RanksUnderWay, ASecondCtrlCEndsARankAtOnceAndASecondSigtermDoesNot) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string name = fmt::format("twice{}", signal);
    const pid_t launcher = started(name);
    ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
    const pid_t waiting = child_of(launcher, 0), other = child_of(launcher, 2);
    ASSERT_GT(std::min(waiting, other), 0);
    ::kill(other, SIGSTOP);
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ::kill(waiting, signal);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const bool goes_on = waitpid(launcher, nullptr, WNOHANG) == 0 && ::kill(waiting, 0) == 0;
    ::kill(other, SIGCONT);
    if (signal == SIGTERM) {
      EXPECT_TRUE(goes_on);
      EXPECT_EQ(wait_for(launcher), 128 + SIGTERM);
    } else {
      wait_for(launcher);
    }
    EXPECT_EQ(fs::exists(folder / name / "model"), signal == SIGTERM);
  }
}

TEST_F(RanksUnderWay, TheOthersEndIfOneIsKilled) {
  const pid_t launcher = started("killed");
  ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
  const auto start = std::chrono::steady_clock::now();
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  ::kill(rank, SIGKILL);
  EXPECT_NE(wait_for(launcher), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_LE(own_lines(read_file(folder / "err", 1 << 20)).size(), 1u);
}

// Rank 0 names the rank, and the next one names rank 0.
TEST_F(RanksUnderWay, TheOthersEndIfOneHangs) {
  for (const int hung : {0, 2}) {
    const pid_t launcher = started(fmt::format("hung{}", hung));
    ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
    const auto start = std::chrono::steady_clock::now();
    const pid_t rank = child_of(launcher, hung);
    ASSERT_GT(rank, 0);
    ::kill(rank, SIGSTOP);
    EXPECT_NE(wait_for(launcher), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
    const Words lines = own_lines(read_file(folder / "err", 1 << 20));
    ASSERT_EQ(lines.size(), 1u);
    const std::string name = fmt::format("rank {} on ", hung);
    for (const std::string& part : {name, std::string(", step "), std::string("no sign of life")}) {
      EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
    }
  }
}

TEST_F(RanksUnderWay, ASlowRankIsNamed) {
  using namespace std::chrono_literals;
  const pid_t launcher = start_process(on_ranks(2, training("slow", {"--steps", "120"})), folder / "out",
                                       folder / "err", nullptr, "mpirun");
  ASSERT_GT(when_under_way(launcher, folder / "slow"), 0) << read_file(folder / "err", 1 << 20);
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  int status = 0;
  while (waitpid(launcher, &status, WNOHANG) == 0) {  // the rank works a third of the time
    ::kill(rank, SIGSTOP);
    std::this_thread::sleep_for(60ms);
    ::kill(rank, SIGCONT);
    std::this_thread::sleep_for(30ms);
  }
  EXPECT_EQ(status, 0) << read_file(folder / "err", 1 << 20);
  const std::string out = read_file(folder / "out", 1 << 20);
  EXPECT_TRUE(std::regex_search(out, std::regex("rank [01] on .* is the slowest: .*steps 2 to 120\\)")))
      << out;
}

// Ranks that a launcher such as torchrun has started.
class LaunchedRanks : public SmallRun {
 protected:
  std::vector<Outcome> run(int ranks, const Words& words, int missing = 0) const {
    return run_launched(ranks, words, folder, missing);
  }
};

TEST_F(LaunchedRanks, OnCpusTheyNeedMpi) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = run(1, training("cpus"), 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));  // waits for nobody
  ASSERT_EQ(outcomes[0].lines.size(), 1u);
  EXPECT_NE(outcomes[0].lines[0].find("3 ranks on CPUs need MPI"), std::string::npos) << outcomes[0].lines[0];
  EXPECT_EQ(outcomes[0].code, 2);
}

TEST_F(LaunchedRanks, WithoutACheckpointTheyAskForOneFolder) {
  Words lines;
  for (const Outcome& outcome : run(2, {"train", "--resume", "--out", (folder / "none").string()})) {
    EXPECT_EQ(outcome.code, 1);
    lines.insert(lines.end(), outcome.lines.begin(), outcome.lines.end());
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("holds no checkpoint to go on from; check --out, where all ranks must see one "
                          "folder, or start over"),
            std::string::npos)
      << lines[0];
}

// No launcher ends them.
TEST_F(LaunchedRanks, AnErrorOfAllIsOneLine) {
  const auto start = std::chrono::steady_clock::now();
  std::size_t lines = 0;
  for (const Outcome& outcome : run(4, training("cpus"))) {
    EXPECT_EQ(outcome.code, 2);
    lines += outcome.lines.size();
  }
  EXPECT_EQ(lines, 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(LaunchedRanks, AnErrorOfACommandWithoutRanksWaitsForNoRank) {
  const auto start = std::chrono::steady_clock::now();
  for (const Outcome& outcome : run(2, {"generate", "--lora"})) EXPECT_EQ(outcome.lines.size(), 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(2900));
}

TEST_F(LaunchedRanks, OneRankIsAloneWithoutAStore) {
  EXPECT_EQ(run(1, training("one"))[0].code, 0);
}

TEST_F(SmallRun, MoreGpusThanThereAreAreRefused) {
  const ProcessResult r = run_process(training("many", {"--gpus", "1000"}), folder);
  EXPECT_EQ(r.code, 1);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u);
  const int here = cuda_device_count();
  const std::string part =
      here == 0 ? "--gpus: " : fmt::format("asks for 1000 GPUs, and this machine has {}", here);
  EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  EXPECT_FALSE(fs::exists(folder / "many"));
}

class CudaRanks : public LaunchedRanks {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs an NVIDIA GPU for each of two ranks";
    SmallRun::SetUp();
  }
  Words on_gpus(const std::string& run, const Words& where, const Words& more = {}) const {
    Words words = training(run, more);
    words.insert(words.end(), where.begin(), where.end());
    return words;
  }
  void succeeds(const Words& words) const {
    const ProcessResult r = run_process(words, folder);
    EXPECT_EQ(r.code, 0) << r.err << r.out;
  }
};

TEST_F(CudaRanks, TwoGpusGiveTheBitsOfOne) {
  for (const Words& more : {Words{}, {"--dtype", "bf16"}, {"--dtype", "bf16", "--master-weights", "none"}}) {
    const std::string suffix = fmt::format("_{}", more.size());
    succeeds(on_gpus("one" + suffix, {"--device", "cuda"}, more));
    succeeds(on_gpus("two" + suffix, {"--gpus", "2"}, more));
    expect_same_bits("one" + suffix, "two" + suffix);
  }
}

// One slice for each rank is a graph with its exchange, and NCCL carries what copy engines do not.
TEST_F(CudaRanks, EveryShardModeHasTheSameBits) {
  for (const std::string tokens : {"64", "384"}) {
    const Words slices = {"--dtype", "bf16", "--total-batch", tokens};
    succeeds(on_gpus("one" + tokens, {"--device", "cuda"}, slices));
    for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
      for (const std::string carrier : {"", "nccl"}) {
        ::unsetenv("WARPWRIGHT_EXCHANGE");
        if (!carrier.empty()) ::setenv("WARPWRIGHT_EXCHANGE", carrier.c_str(), 1);
        const std::string run = shard + tokens + carrier;
        succeeds(on_gpus(run, {"--gpus", "2", "--shard", shard}, slices));
        expect_same_bits("one" + tokens, run);
      }
    }
  }
  ::unsetenv("WARPWRIGHT_EXCHANGE");
}

// NCCL adds up, whoever carries the other exchanges. Two slices have one order.
TEST_F(CudaRanks, TheLibrarysSumIsTheTreesInEveryShardMode) {
  const Words large = {"--eps", "1"}, two = {"--dtype", "bf16", "--total-batch", "64"};
  succeeds(on_gpus("tree", {"--device", "cuda"}, large));
  succeeds(on_gpus("two", {"--device", "cuda"}, two));
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    for (const std::string carrier : {"copies", "nccl"}) {
      ::setenv("WARPWRIGHT_EXCHANGE", carrier.c_str(), 1);
      const Words ring = {"--gpus", "2", "--reduce", "ring", "--shard", shard};
      const std::string run = shard + carrier;
      succeeds(on_gpus(run, ring, large));
      expect_rounded_alike("tree", run);
      succeeds(on_gpus(run + "again", ring, large));
      expect_same_bits(run, run + "again");
      succeeds(on_gpus(run + "two", ring, two));
      expect_same_bits("two", run + "two");
    }
  }
  ::unsetenv("WARPWRIGHT_EXCHANGE");
}

TEST_F(CudaRanks, TorchrunsVariablesGiveTheSameBits) {
  succeeds(on_gpus("one", {"--device", "cuda"}));
  for (const Outcome& outcome : run(2, on_gpus("two", {"--device", "cuda"}))) EXPECT_EQ(outcome.code, 0);
  expect_same_bits("one", "two");
}

TEST_F(CudaRanks, AnotherNumberMayResume) {
  const Words schedule = {"--schedule", "constant"};
  const auto to = [&](const std::string& steps) {
    return Words{"--schedule", "constant", "--steps", steps, "--resume"};
  };
  succeeds(on_gpus("whole", {"--device", "cuda"}, schedule));
  succeeds(on_gpus("parts", {"--device", "cuda"}, to("2")));
  succeeds(on_gpus("parts", {"--gpus", "2"}, to("4")));
  succeeds(on_gpus("parts", {"--device", "cuda"}, to("6")));
  expect_same_bits("whole", "parts");
}

TEST_F(CudaRanks, FourTwoAndOneGpusMayResumeEachOther) {
  if (cuda_device_count() < 4) GTEST_SKIP() << "needs an NVIDIA GPU for each of four ranks";
  const auto to = [&](const std::string& steps) {
    return Words{"--dtype", "bf16",    "--schedule", "constant", "--val-every",
                 "50",      "--steps", steps,        "--resume"};
  };
  succeeds(on_gpus("whole", {"--device", "cuda"}, to("300")));
  succeeds(on_gpus("parts", {"--device", "cuda"}, to("50")));
  succeeds(on_gpus("parts", {"--gpus", "4", "--shard", "gradients"}, to("150")));
  succeeds(on_gpus("parts", {"--gpus", "2", "--shard", "parameters"}, to("250")));
  succeeds(on_gpus("parts", {"--device", "cuda"}, to("300")));
  expect_same_bits("whole", "parts", 300);
}

// Also while parts of a checkpoint are written: one follows another.
TEST_F(CudaRanks, TwoGpusGoOnAfterOneOfFourIsKilled) {
  if (cuda_device_count() < 4) GTEST_SKIP() << "needs an NVIDIA GPU for each of four ranks";
  const auto to = [&](int steps) {
    return Words{"--schedule",          "constant", "--checkpoint-every", "2", "--steps",
                 std::to_string(steps), "--resume"};
  };
  const Words words = on_gpus("killed", {"--gpus", "4"}, to(1000000));
  const pid_t launcher = start_process(words, folder / "out", folder / "err");
  const fs::path checkpoints = folder / "killed" / "checkpoints";
  const auto steps_written = [&] {
    int steps = 0;
    for (const fs::path& path : fs::exists(checkpoints) ? list_folder(checkpoints) : std::vector<fs::path>())
      if (fs::exists(path / "trainer.json"))
        steps = std::max(steps, std::stoi(path.filename().string().substr(5)));
    return steps;
  };
  ASSERT_GT(when_under_way(launcher, folder / "killed"), 0) << read_file(folder / "err", 1 << 20);
  while (steps_written() < 6) {
    ASSERT_EQ(waitpid(launcher, nullptr, WNOHANG), 0) << read_file(folder / "err", 1 << 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  const auto start = std::chrono::steady_clock::now();
  ::kill(rank, SIGKILL);
  EXPECT_NE(wait_for(launcher), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(own_lines(read_file(folder / "err", 1 << 20)).size(), 1u);
  const int steps = steps_written() + 4;
  succeeds(on_gpus("killed", {"--gpus", "2"}, to(steps)));
  succeeds(on_gpus("whole", {"--device", "cuda"}, to(steps)));
  expect_same_bits("whole", "killed", steps);
}

// The second step exchanges in a graph, and its loss is not finite.
TEST_F(CudaRanks, AnErrorOfAllEndsThem) {
  for (const std::string carrier : {"copies", "nccl"}) {
    ::setenv("WARPWRIGHT_EXCHANGE", carrier.c_str(), 1);
    const Words words =
        on_gpus(carrier, {"--gpus", "2"},
                {"--dtype", "bf16", "--total-batch", "64", "--schedule", "constant", "--lr", "1e30"});
    const pid_t launcher = start_process(words, folder / "out", folder / "err");
    ::unsetenv("WARPWRIGHT_EXCHANGE");
    int status = 0;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waitpid(launcher, &status, WNOHANG) == 0 && std::chrono::steady_clock::now() < late)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool ended = std::chrono::steady_clock::now() < late;
    EXPECT_TRUE(ended) << carrier;
    if (!ended) ::kill(launcher, SIGKILL), wait_for(launcher);
    EXPECT_NE(status, 0);
    const Words lines = own_lines(read_file(folder / "err", 1 << 20));
    ASSERT_EQ(lines.size(), 1u) << carrier;
    EXPECT_NE(lines[0].find("not finite"), std::string::npos) << lines[0];
  }
}

TEST_F(CudaRanks, TheOthersEndIfOneHangs) {
  const Words words = on_gpus("hung", {"--gpus", "2"}, {"--steps", "1000000", "--collective-timeout", "5"});
  const pid_t launcher =
      when_under_way(start_process(words, folder / "out", folder / "err"), folder / "hung");
  ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  const auto start = std::chrono::steady_clock::now();
  ::kill(rank, SIGSTOP);
  EXPECT_NE(wait_for(launcher), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(own_lines(read_file(folder / "err", 1 << 20)).size(), 1u);
}

TEST_F(CudaRanks, TheOthersEndIfOneIsKilled) {
  const Words words = on_gpus("killed", {"--gpus", "2"}, {"--steps", "1000000"});
  const pid_t launcher =
      when_under_way(start_process(words, folder / "out", folder / "err"), folder / "killed");
  ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 0);
  const auto start = std::chrono::steady_clock::now();
  ::kill(rank, SIGKILL);
  EXPECT_NE(wait_for(launcher), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  const Words lines = own_lines(read_file(folder / "err", 1 << 20));
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"rank 0 on ", ", step ", "rank 1 on ", "has ended without saying why"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  }
}

TEST_F(CudaRanks, ASignalStopsAll) {
  const Words words = on_gpus("stopped", {"--gpus", "2"}, {"--steps", "1000000"});
  const pid_t launcher =
      when_under_way(start_process(words, folder / "out", folder / "err"), folder / "stopped");
  ASSERT_GT(launcher, 0) << read_file(folder / "err", 1 << 20);
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(wait_for(launcher), 128 + SIGTERM);
  EXPECT_TRUE(fs::exists(folder / "stopped" / "model" / "model.safetensors"));
  EXPECT_TRUE(own_lines(read_file(folder / "err", 1 << 20)).empty());
}

}  // namespace
}  // namespace warpwright
