// Tests that `embed`, `rank` and `eval` give over several ranks, byte by byte, what they give on one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"
#include "tests/on_ranks.hpp"
#include "tests/small_data.hpp"
#include "tests/tiny_bert.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

void change_last_byte(const fs::path& path) {
  std::string bytes = read_file(path, 1 << 26);
  bytes.back() ^= 1;
  write_file_atomically(path, bytes);
}

class Encode : public TestFolder {
 protected:
  void SetUp() override {
    make_tiny_bert(folder / "bert");
    make_tiny_bert(folder / "cross", 1);
    std::ofstream lines(folder / "texts.jsonl");
    const Words words = {"the", "cat", "sat", "on", "a", "mat", "dogs", "."};
    for (std::size_t i = 0; i < 500; ++i) {
      std::string text;
      for (std::size_t w = 0; w < i * 7 % 23; ++w) text += words[(i + w * w) % words.size()] + " ";
      if (i % 50 == 7) text += "boom";  // its batch fails
      lines << nlohmann::json({{"id", i}, {"text", text}}).dump() << "\n";
      if (i % 90 == 11) lines << "no JSON\n";
    }
  }

  Words encoding(const std::string& command, const std::string& model, const Words& more) const {
    Words words = {command,     "--model", path(model),      "--input", path("texts.jsonl"),
                   "--threads", "1",       "--batch-tokens", "64",      "--weights-cache",
                   "none"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  // A small model and shards for it.
  void train() const {
    make_shards(folder / "data", 3000, 700);
    const ProcessResult r =
        run_process({"train", "--data", path("data"), "--out", path("run"), "--vocab", "64", "--layers", "1",
                     "--heads", "1", "--channels", "16", "--context", "16", "--steps", "2"},
                    folder);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  Words evaluation() const {
    return {"eval", "--model", path("run/model"), "--data", path("data"), "--batch",
            "3",    "--json",  "--threads",       "1",      "--baselines"};
  }

  // Two ranks, the second one in another working directory, end because they differ in this.
  void expect_apart(const Words& first, const Words& second, const std::string& what,
                    const fs::path& second_runs_in = ".") const {
    const int port = free_local_port();
    const fs::path here = fs::current_path();
    fs::current_path(folder);
    std::vector<pid_t> processes = {start_launched(0, first, as_torchrun(0, 2, port), folder)};
    fs::current_path(second_runs_in);
    processes.push_back(start_launched(1, second, as_torchrun(1, 2, port), folder));
    fs::current_path(here);
    Words lines;
    for (const int r : {0, 1}) {
      const Outcome outcome = outcome_of(r, processes[static_cast<std::size_t>(r)], folder);
      EXPECT_EQ(outcome.code, 1) << what;
      lines.insert(lines.end(), outcome.lines.begin(), outcome.lines.end());
    }
    ASSERT_EQ(lines.size(), 1u) << what;
    EXPECT_NE(lines[0].find("rank 0 and rank 1 differ in the " + what), std::string::npos) << lines[0];
  }
};

class RanksEncode : public Encode {
 protected:
  void SetUp() override {
    if (const std::string reason = no_ranks_here(); !reason.empty()) GTEST_SKIP() << reason;
    Encode::SetUp();
  }
};

TEST_F(RanksEncode, EmbedGivesTheBytesOfOneRank) {
  const ProcessResult one = run_on_ranks(1, encoding("embed", "bert", {}), folder);
  EXPECT_EQ(one.code, 1);  // some texts have no vector
  EXPECT_EQ(std::ranges::count(one.out, '\n'), 506);
  for (const int ranks : {2, 3}) {
    const ProcessResult r = run_on_ranks(ranks, encoding("embed", "bert", {}), folder);
    EXPECT_NE(r.code, 0);
    EXPECT_TRUE(r.out == one.out) << ranks;
    const Words lines = own_lines(r.err);
    ASSERT_EQ(lines.size(), 1u) << r.err;
    EXPECT_NE(lines[0].find("texts have no result"), std::string::npos) << lines[0];
  }
  const auto file_of = [&](int ranks) {
    const std::string out = path(fmt::format("{}.npy", ranks));
    run_on_ranks(ranks, encoding("embed", "bert", {"--out", out, "--dtype", "bf16"}), folder);
    return read_file(out, 1 << 26);
  };
  const std::string npy = file_of(1);
  EXPECT_EQ(npy.size(), 128u + 506 * kTinyBertSize * sizeof(float));
  EXPECT_TRUE(file_of(3) == npy);
}

TEST_F(RanksEncode, TheSummaryCountsAllRanks) {
  std::ofstream(folder / "texts.jsonl")
      << "{\"text\": \"the cat\"}\n{\"text\": \"a dog\"}\n{\"text\": \"\"}\n";
  for (const int ranks : {1, 2, 3}) {
    const Words more = {"--json", "--out", path(fmt::format("{}.npy", ranks))};
    const ProcessResult r = run_on_ranks(ranks, encoding("embed", "bert", more), folder);
    EXPECT_EQ(r.code, 0) << r.err;
    const auto json = nlohmann::json::parse(r.out);
    EXPECT_EQ(json["texts"], 3) << ranks;
    EXPECT_EQ(json["tokens"], 4 + 4 + 2) << ranks;
  }
}

TEST_F(RanksEncode, RankGivesTheBytesOfOneRank) {
  const Words words = encoding("rank", "cross", {"--query", "the cat", "--top", "40"});
  const ProcessResult one = run_on_ranks(1, words, folder);
  EXPECT_GT(std::ranges::count(one.out, '\n'), 40);
  for (const int ranks : {2, 3}) EXPECT_TRUE(run_on_ranks(ranks, words, folder).out == one.out) << ranks;
}

TEST_F(RanksEncode, EvalGivesTheBytesOfOneRank) {
  train();
  const Words words = evaluation();
  const ProcessResult one = run_on_ranks(1, words, folder);
  EXPECT_EQ(one.code, 0) << one.err;
  for (const int ranks : {2, 3}) {
    const ProcessResult r = run_on_ranks(ranks, words, folder);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.out, one.out) << ranks;
  }
}

// Texts need no MPI, on CPUs neither.
TEST_F(Encode, AnyLauncherGivesTheBytesOfOneRank) {
  train();
  for (const Words& words :
       {encoding("embed", "bert", {}), encoding("rank", "cross", {"--query", "the cat", "--top", "40"}),
        evaluation()}) {
    const ProcessResult one = run_process(words, folder);
    EXPECT_FALSE(one.out.empty()) << one.err;
    for (const auto launcher : {as_torchrun, as_srun}) {
      const std::vector<Outcome> ranks = run_launched(3, words, folder, 0, launcher);
      EXPECT_EQ(ranks[0].code, one.code) << words[0];
      EXPECT_TRUE(ranks[0].out == one.out) << words[0];
      for (const int r : {1, 2}) EXPECT_EQ(ranks[static_cast<std::size_t>(r)].out, "") << words[0];
    }
  }
}

// A new start mends the loss of a rank, and not an error.
TEST_F(Encode, TheExitCodeTellsALostRankFromAnError) {
  const int port = free_local_port();
  const pid_t lost = fork();
  if (lost == 0) {
    const Store store({.rank = 1, .ranks = 2, .address = "localhost", .port = port}, [](const Verdict&) {});
    ::_exit(0);  // without leaving the others
  }
  const pid_t rank = start_launched(0, encoding("embed", "bert", {}), as_torchrun(0, 2, port), folder);
  const Outcome outcome = outcome_of(0, rank, folder);
  wait_for(lost);
  EXPECT_EQ(outcome.code, 75);
  ASSERT_EQ(outcome.lines.size(), 1u);
  EXPECT_NE(outcome.lines[0].find("has ended without saying why"), std::string::npos) << outcome.lines[0];
  for (const Outcome& error : run_launched(2, encoding("embed", "nowhere", {}), folder)) {
    EXPECT_EQ(error.code, 1);
  }
}

TEST_F(Encode, RanksWithAnotherCommandAreNamed) {
  const int port = free_local_port();
  const pid_t first = start_launched(0, encoding("embed", "bert", {}), as_torchrun(0, 2, port), folder);
  const pid_t second =
      start_launched(1, encoding("rank", "cross", {"--query", "a"}), as_torchrun(1, 2, port), folder);
  const Outcome outcome = outcome_of(0, first, folder), other = outcome_of(1, second, folder);
  ASSERT_EQ(outcome.lines.size(), 1u);
  EXPECT_NE(outcome.lines[0].find("runs rank, and rank 0 runs embed"), std::string::npos) << outcome.lines[0];
  EXPECT_TRUE(other.lines.empty());
  for (const int code : {outcome.code, other.code}) EXPECT_EQ(code, 1);
}

// An option that only rank 1 has, and data of its own.
TEST_F(Encode, RanksWithOtherOptionsOrDataAreRefused) {
  train();
  make_shards(folder / "other", 3000, 900);
  const auto apart = [&](const Words& first, Words second, const Words& more, const std::string& why) {
    second.insert(second.end(), more.begin(), more.end());
    expect_apart(first, second, why);
  };
  const Words texts = encoding("embed", "bert", {});
  apart(texts, texts, {"--pooling", "cls"}, "options: no such option and --pooling cls");
  apart(encoding("embed", "bert", {"--max-length", "5"}), encoding("embed", "bert", {"--max-length", "6"}),
        {}, "options: --max-length 5 and --max-length 6");
  apart(encoding("rank", "cross", {"--query", "the cat"}), encoding("rank", "cross", {"--query", "a"}), {},
        "options: --query the cat and --query a");
  apart(evaluation(), evaluation(), {"--seq", "8"}, "options: no such option and --seq 8");
  Words other = evaluation();
  other[4] = path("other");
  apart(evaluation(), other, {}, "contents of the data");
}

// Under one path, which rank 1 reaches from another working directory.
TEST_F(Encode, RanksWithOtherWeightsAreRefused) {
  train();
  fs::create_directories(folder / "elsewhere");
  for (const char* name : {"bert", "cross", "run"}) {
    fs::copy(folder / name, folder / "elsewhere" / name, fs::copy_options::recursive);
    const bool is_run = std::string_view(name) == "run";
    change_last_byte(folder / "elsewhere" / name / (is_run ? "model" : "") / "model.safetensors");
  }
  const auto relative = [](Words words, const std::string& model) {
    words[2] = model;
    return words;
  };
  for (const Words& words : {relative(encoding("embed", "bert", {}), "bert"),
                             relative(encoding("rank", "cross", {"--query", "the cat"}), "cross"),
                             relative(evaluation(), "run")}) {
    expect_apart(words, words, "weights", folder / "elsewhere");
  }
}

// Under one path and of one size.
TEST_F(Encode, RanksWithAnotherInputAreRefused) {
  train();
  fs::create_directories(folder / "elsewhere");
  fs::copy(folder / "texts.jsonl", folder / "elsewhere");
  change_last_byte(folder / "elsewhere/texts.jsonl");
  const auto relative = [](Words words) {
    words[4] = "texts.jsonl";
    return words;
  };
  for (const Words& words :
       {relative(encoding("embed", "bert", {})), relative(encoding("rank", "cross", {"--query", "the cat"})),
        Words{"eval", "--model", path("run/model"), "--choices", "texts.jsonl"}}) {
    expect_apart(words, words, "contents of the input", folder / "elsewhere");
  }
}

// The ranks note the first error before they connect, and the second one after.
TEST_F(Encode, AllEndLikeTheRankThatReports) {
  Words after = encoding("embed", "bert", {});
  after[4] = "-";
  for (const Words& words : {encoding("embed", "bert", {"--lora"}), after}) {
    Words lines;
    for (const Outcome& outcome : run_launched(3, words, folder)) {
      EXPECT_EQ(outcome.code, 2);
      lines.insert(lines.end(), outcome.lines.begin(), outcome.lines.end());
    }
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(std::regex_search(lines[0], std::regex("^warpwright: rank [012] on .*, --"))) << lines[0];
  }
}

TEST_F(Encode, VariablesThatDoNotFitAreOneLine) {
  const auto without_a_port = [](int rank, int ranks, int) {
    Settings settings = as_torchrun(rank, ranks, 0);
    settings.pop_back();
    return settings;
  };
  Words lines;
  for (const Outcome& outcome : run_launched(3, encoding("embed", "bert", {}), folder, 0, without_a_port)) {
    EXPECT_EQ(outcome.code, 1);
    lines.insert(lines.end(), outcome.lines.begin(), outcome.lines.end());
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("MASTER_PORT: is not set"), std::string::npos) << lines[0];
}

TEST_F(RanksEncode, StandardInputAndStreamsBelongToOneProcess) {
  Words words = encoding("embed", "bert", {"--stream"});
  const auto refused = [&](const char* flag) {
    const ProcessResult r = run_on_ranks(2, words, folder);
    EXPECT_NE(r.code, 0);
    const Words lines = own_lines(r.err);
    ASSERT_EQ(lines.size(), 1u) << r.err;
    EXPECT_NE(lines[0].find(flag), std::string::npos) << lines[0];
    EXPECT_EQ(r.out, "");
  };
  refused("--stream");
  words.pop_back();
  words[4] = "-";
  refused("--input");
}

TEST_F(RanksEncode, AnErrorOfAllIsOneLine) {
  const ProcessResult r = run_on_ranks(3, encoding("embed", "nowhere", {}), folder);
  EXPECT_NE(r.code, 0);
  EXPECT_EQ(own_lines(r.err).size(), 1u) << r.err;
}

TEST_F(RanksEncode, AnInputThatIsNotThereIsNamedAsOnOneProcess) {
  Words words = encoding("embed", "bert", {});
  words[4] = (folder / "nowhere").string();
  const ProcessResult r = run_on_ranks(2, words, folder);
  EXPECT_NE(r.code, 0);
  const Words lines = own_lines(r.err);
  ASSERT_EQ(lines.size(), 1u) << r.err;
  EXPECT_NE(lines[0].find("nowhere: cannot open: No such file"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace warpwright
