// Runs the program in a temporary folder.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/test_folder.hpp"
#include "tests/process.hpp"

namespace warpwright {

class CliTest : public TestFolder {
 protected:
  ProcessResult run(const std::vector<std::string>& arguments) { return run_process(arguments, folder); }

  std::string path(const std::string& name) const { return (folder / name).string(); }

  void succeeds(const std::vector<std::string>& arguments) {
    const ProcessResult r = run(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
    output_ = r.out;
  }

  // Expects this exit code, nothing on stdout, and one line on stderr that contains these words.
  void fails(int code, const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
    const ProcessResult r = run(arguments);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& word : words)
      EXPECT_NE(r.err.find(word), std::string::npos) << word << " in " << r.err;
  }

  // Runs the program through a shell, where W is its path, and makes the same checks. Returns the text on
  // stderr.
  void shell_fails(int code, const std::string& command, const std::vector<std::string>& words) {
    const std::string whole =
        fmt::format("cd '{}' && W='{}' && exec 2> err && {}", folder.string(), WARPWRIGHT_BINARY, command);
    const int status = std::system(whole.c_str());
    const std::string err = read_file(folder / "err", 1 << 20);
    EXPECT_TRUE(WIFEXITED(status)) << command;
    EXPECT_EQ(WEXITSTATUS(status), code) << command << ": " << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), words.empty() ? 0 : 1) << err;
    for (const std::string& word : words)
      EXPECT_NE(err.find(word), std::string::npos) << word << " in " << err;
  }

  // Makes a text of a few hundred words, its tokenizer and its shards.
  void make_data() {
    std::string text;
    const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "saw ", "dog ", "run.\n"};
    std::uint32_t state = 1;
    for (int i = 0; i < 6000; ++i) {
      state = state * 1664525u + 1013904223u;
      text += words[state >> 16 & 7];
      if (i % 11 == 0) text += words[9];
    }
    put("text.txt", text);
    succeeds(
        {"tokenizer", "train", "--input", path("text.txt"), "--vocab-size", "300", "--out", path("tok")});
    succeeds({"data", "build", "--tokenizer", path("tok"), "--input", path("text.txt"), "--out", path("data"),
              "--val-fraction", "0.1"});
  }

  std::vector<std::string> train_arguments(const std::string& run_name,
                                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> a = {"train",      "--layers", "2",           "--heads",   "2", "--channels",
                                  "32",         "--seq",    "32",          "--batch",   "2", "--lr",
                                  "1e-3",       "--steps",  "4",           "--threads", "1", "--data",
                                  path("data"), "--out",    path(run_name)};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }

  std::string output_;
};

}  // namespace warpwright
