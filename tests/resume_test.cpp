// Tests stopping and resuming a run as a user does: signals, `train --resume --out RUN`, finished runs,
// changed data and tokenizers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"
#include "runtime/tuned.hpp"
#include "tests/process.hpp"
#include "tests/small_data.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ResumeCliTest : public TestFolder {
 protected:
  std::string path(const std::string& name) const { return (folder / name).string(); }

  ProcessResult run(const Words& arguments) const { return run_process(arguments, folder); }

  std::string succeeds(const Words& arguments) const {
    const ProcessResult r = run(arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  }

  void fails(int code, const Words& arguments, const Words& words) const {
    const ProcessResult r = run(arguments);
    EXPECT_EQ(r.code, code) << r.err << r.out;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& word : words)
      EXPECT_NE(r.err.find(word), std::string::npos) << word << " in " << r.err;
  }

  // Makes a text, its tokenizers "tok" and "tok2", and the data folders "text" and "text2" with their ids.
  void make_text() const {
    std::string text;
    const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "saw ", "dog ", "run.\n"};
    std::uint32_t state = 1;
    for (int i = 0; i < 6000; ++i) {
      state = state * 1664525u + 1013904223u;
      text += words[i % 11 == 0 ? 9 : state >> 16 & 7];
    }
    put("text.txt", text);
    for (const auto& [tokenizer, data, size] :
         {std::tuple{"tok", "text", "280"}, std::tuple{"tok2", "text2", "279"}}) {
      succeeds({"tokenizer", "train", "--input", path("text.txt"), "--vocab-size", size, "--out",
                path(tokenizer)});
      succeeds({"data", "build", "--tokenizer", path(tokenizer), "--input", path("text.txt"), "--out",
                path(data), "--val-fraction", "0.1"});
    }
  }

  Words train(const std::string& name, const Words& more, const std::string& data = "data") const {
    Words a = {"train",    "--layers", "1",        "--heads",   "1",    "--channels", "32",
               "--seq",    "16",       "--batch",  "2",         "--lr", "1e-3",       "--data",
               path(data), "--out",    path(name), "--threads", "1"};
    if (data == "data") a.insert(a.end(), {"--vocab", "64"});
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }

  Words resume(const std::string& name, const Words& more = {}) const {
    Words a = {"train", "--resume", "--out", path(name)};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }

  // Seconds of processor time that the process has taken so far.
  static double seconds_worked(pid_t process) {
    clockid_t clock{};
    timespec time{};
    EXPECT_EQ(::clock_getcpuclockid(process, &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &time), 0);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  // Starts a run, waits until `file` below the folder contains `text`, lets the run work for 0.3 s more,
  // however busy the machine is, and sends the signal. Returns the exit code and the seconds until the
  // process ended.
  std::pair<int, double> stop(const Words& arguments, int signal, const std::string& file,
                              const std::string& text) const {
    fs::remove(folder / file);  // from an earlier run
    const pid_t child = start_process(arguments, folder / "out", folder / "err");
    double begun = -1;
    while (begun < 0 || seconds_worked(child) < begun + 0.3) {
      if (waitpid(child, nullptr, WNOHANG) != 0) return {-1000, 0};
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const bool has_begun =
          fs::exists(folder / file) && read_file(folder / file, 1 << 26).find(text) != std::string::npos;
      if (begun < 0 && has_begun) begun = seconds_worked(child);
    }
    const auto sent = std::chrono::steady_clock::now();
    kill(child, signal);
    const int code = wait_for(child);
    return {code, std::chrono::duration<double>(std::chrono::steady_clock::now() - sent).count()};
  }

  std::string weights(const std::string& name) const {
    return read_file(folder / name / "model" / "model.safetensors", 1 << 26);
  }

  std::map<std::string, std::string> state(const std::string& name) const {
    std::map<std::string, std::string> result;
    for (const auto& entry : fs::recursive_directory_iterator(folder / name)) {
      const auto time = fs::last_write_time(entry).time_since_epoch().count();
      result[entry.path().string()] =
          fmt::format("{} {}", time, entry.is_regular_file() ? read_file(entry.path(), 1 << 26) : "");
    }
    return result;
  }
};

TEST_F(ResumeCliTest, ResumeAndOutAreEnough) {
  make_shards(folder / "data", 5000, 500);
  const Words options = {"--steps",        "4000", "--warmup",           "7",
                         "--total-batch",  "64",   "--val-every",        "500",
                         "--val-batches",  "3",    "--sample-every",     "1000",
                         "--weight-decay", "0.03", "--checkpoint-every", "100",
                         "--skip-norm-z",  "9",    "--schedule",         "linear",
                         "--seed",         "11"};
  succeeds(train("whole", options));
  const auto [code, seconds] = stop(train("parts", options), SIGINT, "parts/metrics.jsonl", "\"step\":50,");
  ASSERT_EQ(code, 130) << read_file(folder / "err", 1 << 20);
  EXPECT_TRUE(fs::exists(folder / "parts/model/config.json"));
  const std::string out = succeeds(resume("parts"));
  EXPECT_NE(out.find("resumed after step"), std::string::npos) << out;
  EXPECT_EQ(out.find("changes from"), std::string::npos) << out;
  EXPECT_EQ(weights("parts"), weights("whole"));
}

TEST_F(ResumeCliTest, ASignalThatTheCallerIgnoresIsIgnored) {
  make_shards(folder / "data", 5000, 500);
  const auto ignore = [] { std::signal(SIGINT, SIG_IGN); };
  const pid_t child = start_process(train("run", {"--steps", "400"}), folder / "out", folder / "err", ignore);
  while (!fs::exists(folder / "run/metrics.jsonl") || fs::file_size(folder / "run/metrics.jsonl") == 0) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << read_file(folder / "err", 1 << 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGINT);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000400"));
}

TEST_F(ResumeCliTest, OptionsOnTheCommandLineCountAndAreTold) {
  make_shards(folder / "data", 5000, 500);
  succeeds(train("run", {"--steps", "4", "--dtype", "bf16", "--schedule", "constant"}));
  const std::string out =
      succeeds(resume("run", {"--steps", "6", "--lr", "0.5", "--batch", "1", "--keep", "5"}));
  for (const char* line :
       {"steps changes from 4 to 6\n", "lr changes from 0.001 to 0.5\n", "batch changes from 2 to 1\n",
        "keep changes from 2 to 5\n", "step: 2 slices × 1 sequence × 16 tokens = 32 tokens in bf16"}) {
    EXPECT_NE(out.find(line), std::string::npos) << line << " in " << out;
  }
  EXPECT_EQ(out.find("dtype changes"), std::string::npos);
  // A resumed run keeps an option that was given once.
  EXPECT_EQ(succeeds(resume("run", {"--steps", "7"})).find("lr changes"), std::string::npos);
  fails(1, resume("run", {"--steps", "9", "--seed", "5"}), {"--seed:", "1337", "5"});
  fails(1, resume("run", {"--steps", "9", "--seq", "8"}), {"--seq:", "16", "8"});
  fails(1, resume("run", {"--steps", "9", "--channels", "64"}), {"--channels:", "n_embd 32", "n_embd 64"});
  fails(1, resume("run", {"--steps", "9", "--dtype", "fp32"}), {"--dtype:", "bf16", "fp32"});
  fails(1, resume("run", {"--seed", "5"}), {"--seed:", "1337", "5"});  // also if it is finished
  fails(2, resume("run", {"--steps", "3"}), {"--steps:", "is 3", "done 7"});
}

TEST_F(ResumeCliTest, WithoutACheckpointItSaysSo) {
  make_shards(folder / "data", 5000, 500);
  fails(1, resume("none"), {"none: ", "holds no checkpoint", "--out", "--data", "without --resume"});
  EXPECT_FALSE(fs::exists(folder / "none"));
  const std::string out = succeeds(train("run", {"--steps", "2", "--resume"}));
  EXPECT_NE(out.find("holds no checkpoint: the run starts at step 0"), std::string::npos) << out;
}

// Another process trains there, and has not written a checkpoint yet.
TEST_F(ResumeCliTest, AFolderInUseIsNotOneWithoutACheckpoint) {
  make_shards(folder / "data", 4'000'000, 500);
  const Words arguments = train("run", {"--steps", "3", "--total-batch", "3200000"});
  const pid_t child = start_process(arguments, folder / "out", folder / "err");
  while (!fs::exists(folder / "out") ||
         read_file(folder / "out", 1 << 20).find("memory plan:") == std::string::npos) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << read_file(folder / "err", 1 << 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  fails(1, resume("run"), {fmt::format("run: is in use by process {}; wait", child)});
  kill(child, SIGKILL);
  wait_for(child);
  fails(1, resume("run"), {"holds no checkpoint"});
}

TEST_F(ResumeCliTest, ARefusedStartIsNoOwnerOfTheFolder) {
  make_shards(folder / "data", 5000, 500);
  succeeds(train("run", {"--steps", "2"}));
  const std::string owner = read_file(folder / "run/lock", 100);
  EXPECT_TRUE(owner.starts_with("warpwright process ")) << owner;
  fails(1, train("run", {"--steps", "2"}), {"run"});
  fails(1, resume("run", {"--steps", "9", "--seed", "5"}), {"--seed:"});
  EXPECT_EQ(read_file(folder / "run/lock", 100), owner);
}

TEST_F(ResumeCliTest, MetricsOfOthersAreLeftAlone) {
  make_shards(folder / "data", 5000, 500);
  fs::create_directories(folder / "run");
  put("run/metrics.jsonl", "my results\n");
  fails(1, train("run", {"--steps", "2"}), {"metrics.jsonl", "is not the metrics"});
  fails(1, train("run", {"--steps", "2", "--resume"}), {"metrics.jsonl", "is not the metrics"});
  EXPECT_EQ(read_file(folder / "run/metrics.jsonl", 100), "my results\n");
}

TEST_F(ResumeCliTest, APathThatACheckpointCannotRecordIsRefusedAtTheStart) {
  make_shards(folder / "data", 5000, 500);
  fs::rename(folder / "data", folder / "da\xffta");
  fails(2, train("run", {"--steps", "2", "--vocab", "64"}, "da\xffta"), {"--data", "UTF-8"});
}

TEST_F(ResumeCliTest, ARunWithoutAModelNamesItsNewestCheckpoint) {
  make_shards(folder / "data", 5000, 500);
  succeeds(train("run", {"--steps", "4", "--checkpoint-every", "2"}));
  fs::remove_all(folder / "run/model");
  fails(1, {"eval", "--model", path("run"), "--data", path("data")},
        {"run: ", "has not written its model yet", "step_00000004"});
}

TEST_F(ResumeCliTest, AFinishedRunChangesNothing) {
  make_shards(folder / "data", 5000, 500);
  succeeds(train("run", {"--steps", "4"}));
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000004/trainer.json"));
  const auto before = state("run");
  const std::string out = succeeds(resume("run"));
  EXPECT_NE(out.find("finished already after step 4"), std::string::npos) << out;
  EXPECT_EQ(state("run"), before);
  succeeds(resume("run", {"--steps", "6"}));
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000006/trainer.json"));
}

// As for a run that would go on. Without --data, the data are no longer needed.
TEST_F(ResumeCliTest, AFinishedRunIsRefusedWithOtherData) {
  make_shards(folder / "data", 5000, 500);
  make_shards(folder / "other", 5000, 600);
  succeeds(train("run", {"--steps", "2"}));
  const Words other = resume("run", {"--data", path("other")});
  fails(1, other, {"other: is not what the run was trained on", "--allow-data-change"});
  Words allowed = other;
  allowed.emplace_back("--allow-data-change");
  fs::rename(folder / "data", folder / "moved");
  for (const Words& words : {allowed, resume("run"), resume("run", {"--data", path("moved")})}) {
    EXPECT_NE(succeeds(words).find("finished already after step 2"), std::string::npos);
  }
  fails(1, resume("run", {"--data", path("data")}), {"data: is not a folder"});
}

// The device is a CPU, which cannot use a table measured on a GPU.
TEST_F(ResumeCliTest, ATunedTableThatDoesNotFitIsTold) {
  make_shards(folder / "data", 5000, 500);
  succeeds(train("run", {"--steps", "1"}));
  TunedTable table({"NVIDIA H200", "580.159.04", "130002", "0.1.0"});
  table.set("matmul.dx", "M=32 N=96 K=32 bf16", "cuda.mma_block");
  const fs::path trainer = folder / "run/checkpoints/step_00000001/trainer.json";
  auto json = nlohmann::json::parse(read_file(trainer, 1 << 20));
  json["settings"]["tuned"] = table.checksum();
  json.erase("checksum");
  const std::string text = json.dump();
  json["checksum"] = checksum_of(std::as_bytes(std::span(text)));
  write_file_atomically(trainer, json.dump(2) + "\n");

  const auto told = [&](const std::string& name) {
    const ProcessResult r = run(resume(name, {"--steps", "2"}));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.err;
  };
  const auto copy = [&] {
    fs::copy(folder / "run/checkpoints", folder / "kept", fs::copy_options::recursive);
  };
  copy();
  EXPECT_NE(told("run").find("run/tuned.json"), std::string::npos);  // missing
  fs::remove_all(folder / "run/checkpoints");
  fs::rename(folder / "kept", folder / "run/checkpoints");
  table.write(folder / "run/tuned.json");
  fs::rename(folder / "run", folder / "run\xff");
  const std::string line = told("run\xff");
  EXPECT_NE(line.find("run\ufffd/tuned.json was measured with the GPU \"NVIDIA H200\", here "),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("it is not used"), std::string::npos) << line;
}

TEST_F(ResumeCliTest, ATokenizerThatTheRunDidNotKnowIsTold) {
  make_text();
  fs::create_directories(folder / "plain");
  for (const auto& entry : fs::directory_iterator(folder / "text")) {
    if (entry.path().extension() == ".bin") fs::copy(entry.path(), folder / "plain");
  }
  succeeds(train("run", {"--steps", "1", "--vocab", "280"}, "plain"));
  for (const auto& entry : fs::directory_iterator(folder / "tok")) fs::copy(entry.path(), folder / "plain");
  const std::string out = succeeds(resume("run", {"--steps", "2"}));
  EXPECT_NE(out.find("has a tokenizer, but the run records none"), std::string::npos) << out;
}

TEST_F(ResumeCliTest, CheckpointsThatCannotBeListedAreNotStepZero) {
  make_shards(folder / "data", 5000, 500);
  const Words arguments = train("run", {"--steps", "4", "--resume"});
  succeeds(arguments);
  const std::string metrics = read_file(folder / "run/metrics.jsonl", 1 << 20);
  fs::rename(folder / "run/checkpoints", folder / "run/aside");
  fs::create_symlink("checkpoints", folder / "run/checkpoints");  // a link that points to itself
  fails(1, arguments, {"run/checkpoints: cannot be examined"});
  fails(1, resume("run"), {"run/checkpoints: cannot be examined"});
  fs::remove(folder / "run/checkpoints");
  put("run/checkpoints", "a file");
  fails(1, arguments, {"run/checkpoints: cannot be listed"});
  EXPECT_EQ(read_file(folder / "run/metrics.jsonl", 1 << 20), metrics);
}

// Each of these would run for minutes without a signal. The bound allows for a busy machine.
TEST_F(ResumeCliTest, SignalsTakeEffectInTheMiddleOfAnything) {
  make_shards(folder / "data", 4'000'000, 4'000'000);
  constexpr double kMost = 30;
  const Words accumulation = {"--steps", "3", "--total-batch", "3200000"};
  const auto [code, seconds] = stop(train("accumulation", accumulation), SIGTERM, "out", "memory plan:");
  EXPECT_EQ(code, 143) << read_file(folder / "err", 1 << 20);
  EXPECT_LT(seconds, kMost);
  EXPECT_TRUE(fs::exists(folder / "accumulation/checkpoints/step_00000000/trainer.json"));
  EXPECT_TRUE(fs::exists(folder / "accumulation/model/model.safetensors"));
  const std::map<std::string, Words> others = {
      {"validation", {"--steps", "3", "--batch", "1", "--val-every", "1"}},
      {"samples", {"--steps", "3", "--sample-every", "1", "--sample-tokens", "100000000"}}};
  for (const auto& [name, more] : others) {
    const auto [other_code, other_seconds] = stop(train(name, more), SIGINT, "out", "step 1/3");
    EXPECT_EQ(other_code, 130) << name << read_file(folder / "err", 1 << 20);
    EXPECT_LT(other_seconds, kMost) << name;
    EXPECT_TRUE(fs::exists(folder / name / "checkpoints/step_00000001/trainer.json")) << name;
    EXPECT_TRUE(fs::exists(folder / name / "model/model.safetensors")) << name;
  }
}

TEST_F(ResumeCliTest, AnotherTokenizersIdsAreRefused) {
  make_text();
  succeeds(train("run", {"--steps", "2"}, "text"));
  const auto eval = [&](const std::string& model, const std::string& data, const Words& more = {}) {
    Words a = {"eval", "--model", path(model), "--data", path(data), "--json"};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  };
  const Words words = {"text2:", "a different tokenizer", "the vocabulary (280 tokens, now 279)", "merges",
                       "--allow-tokenizer-change"};
  succeeds(eval("run/model", "text"));
  fails(1, eval("run/model", "text2"), words);
  const ProcessResult allowed = run(eval("run/model", "text2", {"--allow-tokenizer-change"}));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("a different tokenizer"), std::string::npos) << allowed.err;
  put("q.jsonl", R"({"ctx": "the cat", "endings": ["sat on", "a"], "label": 0})");
  Words choices = {"eval", "--model", path("run"), "--choices", path("q.jsonl")};
  succeeds(choices);
  choices.insert(choices.end(), {"--tokenizer", path("tok2")});
  fails(1, choices, {"tok2:", "a different tokenizer", "merges", "--allow-tokenizer-change"});
  fails(1, eval("run/model", "text", {"--tokenizer", path("tok2")}), {"tok2:", "a different tokenizer"});
  Words generate = {"generate",     "--model", path("run"),   "--prompt",  "the",
                    "--max-tokens", "2",       "--tokenizer", path("tok2")};
  fails(1, generate, {"tok2:", "a different tokenizer", "--allow-tokenizer-change"});
  generate.push_back("--allow-tokenizer-change");
  EXPECT_EQ(run(generate).code, 0);
  fails(1,
        {"convert", "--from", path("run"), "--to", path("relabelled"), "--format", "hf", "--tokenizer",
         path("tok2")},
        {"tok2:", "a different tokenizer", "--allow-tokenizer-change"});
  EXPECT_FALSE(fs::exists(folder / "relabelled"));
  const Words tune = {"train", "--model",     path("run/model"), "--data", path("text2"),
                      "--out", path("tuned"), "--steps",         "2",      "--batch",
                      "2"};
  fails(1, tune, words);
  // The tokenizer's own files decide, as in a Hugging Face folder.
  fs::remove(folder / "run/model/warpwright.json");
  fails(1, eval("run/model", "text2"), words);
  succeeds(eval("run/model", "text"));
  // Without a tokenizer to compare, one line says so, and a larger vocabulary is refused.
  succeeds({"convert", "--from", path("run/model"), "--to", path("model.bin"), "--format", "llmc"});
  fails(1, eval("model.bin", "text2", {"--tokenizer", path("tok")}), {"text2:", "a different tokenizer"});
  const ProcessResult none = run(eval("model.bin", "text2"));
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_NE(none.err.find("model.bin has no tokenizer to compare"), std::string::npos) << none.err;
  EXPECT_EQ(std::count(none.err.begin(), none.err.end(), '\n'), 1) << none.err;
  succeeds(train("run2", {"--steps", "2"}, "text2"));
  succeeds({"convert", "--from", path("run2"), "--to", path("model2.bin"), "--format", "llmc"});
  fails(1, eval("model2.bin", "text"), {"text:", "vocabulary of 280", "279"});
}

TEST_F(ResumeCliTest, ARebuiltDataFolderIsRefused) {
  make_text();
  succeeds(train("run", {"--steps", "2"}, "text"));
  const Words more = resume("run", {"--steps", "4"});
  const Words build = {"data",           "build", "--tokenizer", path("tok"),     "--input",
                       path("text.txt"), "--out", path("text"),  "--val-fraction"};
  const auto rebuild = [&](const std::string& fraction) {
    fs::remove_all(folder / "text");
    Words a = build;
    a.push_back(fraction);
    succeeds(a);
  };
  rebuild("0.2");
  fails(1, more, {"text:", "train_000000.bin of the train split has other contents", "--allow-data-change"});
  rebuild("0.1");  // the same data again
  succeeds(more);
  rebuild("0.2");
  Words allowed = resume("run", {"--steps", "6", "--allow-data-change"});
  EXPECT_NE(succeeds(allowed).find("train_000000.bin of the train split"), std::string::npos);
  // Every command that reads a shard refuses it if its checksum differs from data.json's.
  std::string shard = read_file(folder / "text/val_000000.bin", 1 << 20);
  shard.back() ^= 1;
  put("text/val_000000.bin", shard);
  const Words eval = {"eval", "--model", path("run"), "--data", path("text")};
  fails(1, eval, {"text/val_000000.bin", "data.json", "--allow-data-change"});
  fails(1, train("other", {"--steps", "1"}, "text"), {"text/val_000000.bin", "data.json"});
}

TEST_F(ResumeCliTest, TrainAndEvalReportTheSameLoss) {
  make_text();
  const std::string out =
      succeeds(train("run", {"--steps", "8", "--batch", "5", "--val-every", "8"}, "text"));
  const std::string mark = "step 8: validation loss ";
  const std::string loss = out.substr(out.find(mark) + mark.size(), 6);
  const std::string report = succeeds({"eval", "--model", path("run"), "--data", path("text")});
  EXPECT_NE(report.find(fmt::format("loss                 {}\n", loss)), std::string::npos) << report << out;
}

TEST_F(ResumeCliTest, ARunIsAModel) {
  make_text();
  succeeds(train("run", {"--steps", "2"}, "text"));
  const auto output = [&](Words a, const std::string& flag, const std::string& name) {
    a.insert(a.end(), {flag, path(name)});
    return succeeds(a);
  };
  for (const Words& a : {Words{"generate", "--prompt", "the", "--max-tokens", "9", "--seed", "3"},
                         Words{"eval", "--json", "--data", path("text")}}) {
    EXPECT_EQ(output(a, "--model", "run"), output(a, "--model", "run/model"));
  }
  output({"convert", "--to", path("a.bin"), "--format", "llmc"}, "--from", "run");
  output({"convert", "--to", path("b.bin"), "--format", "llmc"}, "--from", "run/model");
  EXPECT_EQ(read_file(folder / "a.bin", 1 << 26), read_file(folder / "b.bin", 1 << 26));
  output({"train", "--data", path("text"), "--out", path("tuned"), "--steps", "1", "--batch", "2"}, "--model",
         "run");
  fails(1, {"embed", "--model", path("run"), "--input", path("text.txt")}, {"run/model"});
}

}  // namespace
}  // namespace warpwright
