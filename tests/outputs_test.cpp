// Tests where the commands write and which earlier content they preserve: links, devices, pipes, permissions,
// folders with content, signals, and file systems without the usual features.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"
#include "tests/process.hpp"
#include "tests/tiny_bert.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class OutputsTest : public TestFolder {
 protected:
  OutputsTest() {
    std::string text;
    for (int i = 0; i < 2000; ++i)
      text += i % 3 == 0 ? "the cat sat on the mat.\n" : "a dog saw the cat run.\n";
    put("text.txt", text);
    scratch = fs::path(folder.string() + ".scratch");
    fs::remove_all(scratch);
    fs::create_directories(scratch);
  }
  ~OutputsTest() override { fs::remove_all(scratch); }

  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::string get(const std::string& name) const { return read_file(folder / name, 1 << 26); }

  std::vector<std::string> tokenizer(const std::string& out,
                                     const std::vector<std::string>& more = {}) const {
    return with(
        {"tokenizer", "train", "--input", path("text.txt"), "--vocab-size", "280", "--out", path(out)}, more);
  }
  std::vector<std::string> data(const std::string& out, const std::vector<std::string>& more = {}) const {
    return with(
        {"data", "build", "--tokenizer", path("tok"), "--input", path("text.txt"), "--out", path(out)}, more);
  }
  std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more = {}) const {
    return with({"train", "--layers", "1", "--heads", "1", "--channels", "16", "--seq", "16", "--batch", "2",
                 "--steps", "2", "--threads", "1", "--data", path("data"), "--out", path(out)},
                more);
  }
  std::vector<std::string> convert(const std::string& from, const std::string& to, const std::string& format,
                                   const std::vector<std::string>& more = {}) const {
    return with({"convert", "--from", path(from), "--to", path(to), "--format", format}, more);
  }
  std::vector<std::string> embed(const std::string& out) const {
    return {"embed", "--model", path("bert"),     "--weights-cache", "none",   "--threads",
            "1",     "--input", path("text.txt"), "--out",           path(out)};
  }

  void succeeds(const std::vector<std::string>& arguments) const {
    const ProcessResult r = run_process(arguments, scratch);
    EXPECT_EQ(r.code, 0) << arguments[0] << ": " << r.err;
  }
  void fails(const std::vector<std::string>& arguments, const std::string& word) const {
    const ProcessResult r = run_process(arguments, scratch);
    EXPECT_EQ(r.code, 1) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_NE(r.err.find(word), std::string::npos) << r.err;
  }
  // Makes the tokenizer, data and model that the other commands need.
  void make_inputs() const {
    succeeds(tokenizer("tok"));
    succeeds(data("data"));
    succeeds(train("run"));
  }
  int partials() const {
    int count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      count += is_partial_name(entry.path().filename().native());
    }
    return count;
  }

  fs::path scratch;

 private:
  static std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(OutputsTest, EveryCommandWritesThroughLinks) {
  make_inputs();
  make_tiny_bert(folder / "bert");
  fs::create_directory(folder / "disk");
  const auto link = [&](const std::string& name) {
    // A relative link whose target does not exist yet.
    fs::create_symlink("disk/" + name, folder / name);
    return name;
  };
  succeeds(tokenizer(link("tok1")));
  succeeds(data(link("data1")));
  succeeds(train(link("run1"), {"--checkpoint-every", "1"}));
  succeeds(convert("run/model", link("hf"), "hf"));
  succeeds(convert("run/model", link("llmc.bin"), "llmc"));
  succeeds(embed(link("v.npy")));
  succeeds(embed(link("v.jsonl")));
  fs::create_directory_symlink("disk", folder / "parent");
  succeeds(tokenizer("parent/tok2"));
  succeeds(train("parent/run2"));
  for (const char* name :
       {"tok1/tokenizer.json", "data1/data.json", "run1/model/config.json", "run1/metrics.jsonl",
        "run1/checkpoints/step_00000002/trainer.json", "hf/config.json", "llmc.bin", "v.npy", "v.jsonl",
        "tok2/vocab.json", "run2/model/config.json"}) {
    EXPECT_TRUE(fs::exists(folder / "disk" / name)) << name;
  }
  for (const char* name : {"tok1", "data1", "run1", "hf", "llmc.bin", "v.npy", "v.jsonl", "parent"}) {
    EXPECT_TRUE(fs::is_symlink(folder / name)) << name;
  }
  succeeds(train("run1", {"--resume", "--steps", "3"}));  // replaces run1/model through the link
  EXPECT_TRUE(fs::is_symlink(folder / "run1"));
  EXPECT_EQ(partials(), 0);
}

TEST_F(OutputsTest, AFolderWithContentIsReplacedOnlyWithForceAndIfItIsOfTheSameKind) {
  make_inputs();
  succeeds(convert("run/model", "hf", "hf"));
  const std::pair<std::string, std::function<std::vector<std::string>(std::vector<std::string>)>> writers[] =
      {{"tok", [&](const auto& more) { return tokenizer("tok", more); }},
       {"data", [&](const auto& more) { return data("data", more); }},
       {"hf", [&](const auto& more) { return convert("run/model", "hf", "hf", more); }}};
  for (const auto& [out, command] : writers) {
    fails(command({}), "--force");
    put(out + "/notes.txt", "mine");
    fails(command({}), "--force");
    fails(command({"--force"}), "notes.txt");
    EXPECT_EQ(get(out + "/notes.txt"), "mine");
    fs::remove(folder / out / "notes.txt");
    fs::permissions(folder / out, fs::perms(0700));
    succeeds(command({"--force"}));
    struct stat status {};
    ASSERT_EQ(::stat(path(out).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u) << out;
  }
  put("home/notes.txt", "mine");
  fails(tokenizer("home", {"--force"}), "notes.txt");
  fails(data("home", {"--force"}), "notes.txt");
  fails(convert("run/model", "home", "hf", {"--force"}), "notes.txt");
  EXPECT_EQ(partials(), 0);
}

TEST_F(OutputsTest, StandardOutputDevicesAndPipesAreWrittenTo) {
  make_inputs();
  make_tiny_bert(folder / "bert");
  succeeds(convert("run/model", "model.bin", "llmc"));
  succeeds(embed("v.npy"));
  const auto shell = [&](const std::string& command) {
    const std::string whole = fmt::format("cd '{}' && W='{}' && exec 2> '{}/err' && {}", folder.string(),
                                          WARPWRIGHT_BINARY, scratch.string(), command);
    EXPECT_EQ(std::system(whole.c_str()), 0) << command << ": " << read_file(scratch / "err", 1 << 20);
  };
  const std::string convert = "$W convert --from run/model --format llmc --to ",
                    embed =
                        "$W embed --model bert --weights-cache none "
                        "--threads 1 --input text.txt --format npy --out ";
  shell(convert + "/dev/stdout | cmp - model.bin");
  shell(convert + "/dev/stdout > out && cmp out model.bin");
  shell("exec 7> out && " + convert + "/dev/fd/7 && cmp out model.bin");
  shell(convert + "/proc/self/fd/1 | cmp - model.bin");
  shell("(echo head; " + convert + "/dev/stdout) > out && tail -c +6 out | cmp - model.bin");
  shell("mkfifo pipe && (cmp pipe model.bin & " + convert + "pipe && wait $!) && test -p pipe");
  shell("ln -s /dev/null null && " + convert + "null && test -L null && test -c /dev/null");
  shell(embed + "/dev/stdout | cmp - v.npy");
  shell("(cmp pipe v.npy & " + embed + "pipe && wait $!) && test -p pipe");
  EXPECT_EQ(partials(), 0);
}

TEST_F(OutputsTest, SignalsLeaveNoPartsOfOutputs) {
  make_tiny_bert(folder / "bert");
  put("v.jsonl", "old");
  fs::remove(folder / "text.txt");
  ASSERT_EQ(::mkfifo(path("text.txt").c_str(), 0600), 0);
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "the cat sat\n";
  for (const bool unnamed : {true, false}) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGKILL}) {
      if (signal == SIGKILL && !unnamed) continue;  // the next command removes the named partial file
      EXPECT_EQ(run_in_child([&] {
                  if (!unnamed && !fail_system_call(SYS_openat, EOPNOTSUPP, 2, O_TMPFILE & ~O_DIRECTORY))
                    return 2;
                  const pid_t child = start_process(embed("v.jsonl"), scratch / "out", scratch / "err");
                  OutputFile feed(path("text.txt"));
                  feed.write(lines);
                  // Returns when embed has read most of it. embed then waits for more.
                  feed.flush();
                  if (!unnamed && partials() != 1) return 3;
                  ::kill(child, signal);
                  return wait_for(child) == (signal == SIGKILL ? -signal : 128 + signal) ? 0 : 1;
                }),
                0)
          << signal << read_file(scratch / "err", 1 << 20);
      EXPECT_EQ(get("v.jsonl"), "old");
      EXPECT_EQ(partials(), 0);
      EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3);
    }
  }
}

TEST_F(OutputsTest, AnInterruptedBuildLeavesNothing) {
  succeeds(tokenizer("tok"));
  std::string text;
  while (text.size() < (24u << 20)) text += get("text.txt");
  put("text.txt", text);
  const auto before = std::distance(fs::directory_iterator(folder), {});
  const pid_t child = start_process(data("data"), scratch / "out", scratch / "err");
  while (partials() == 0 && !fs::exists(folder / "data")) usleep(1000);
  ASSERT_FALSE(fs::exists(folder / "data")) << "the text is too short for this machine";
  ::kill(child, SIGTERM);
  EXPECT_EQ(wait_for(child), 128 + SIGTERM);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), before);
}

TEST_F(OutputsTest, FileSystemsThatLackExchangesAndUnnamedFilesWork) {
  EXPECT_EQ(run_in_child([&] {
              if (!fail_system_call(SYS_openat, EOPNOTSUPP, 2, O_TMPFILE & ~O_DIRECTORY)) return 2;
              if (!fail_system_call(SYS_renameat2, EINVAL)) return 2;
              make_inputs();
              succeeds(tokenizer("tok", {"--force"}));
              succeeds(data("data", {"--force"}));
              succeeds(convert("run/model", "hf", "hf"));
              succeeds(convert("run/model", "hf", "hf", {"--force"}));
              succeeds(train("again", {"--checkpoint-every", "1"}));
              const ProcessResult r = run_process(
                  train("again", {"--resume", "--steps", "3", "--checkpoint-every", "1"}), scratch);
              const bool said = r.out.find("replaced in two steps") != std::string::npos;
              return r.code == 0 && said && !HasFailure() ? 0 : 1;
            }),
            0)
      << read_file(scratch / "stderr", 1 << 20);
  for (const char* name :
       {"tok/tokenizer.json", "data/data.json", "hf/config.json", "again/model/config.json"}) {
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  }
  EXPECT_EQ(partials(), 0);
}

}  // namespace
}  // namespace warpwright
