// Tests embed and rank as parts of a larger program: pipes, summaries, signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/cli_fixture.hpp"
#include "tests/tiny_bert.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class StreamTest : public CliTest {
 protected:
  StreamTest() { make_tiny_bert(folder / "bert"); }

  std::vector<std::string> embed(const std::vector<std::string>& more) {
    std::vector<std::string> a = {"embed", "--model",   path("bert"), "--weights-cache",
                                  "none",  "--threads", "1"};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }

  static constexpr const char* kEmbed = "$W embed --model bert --weights-cache none --threads 1";
};

// The writer sends the second line only after the first answer.
TEST_F(StreamTest, EachAnswerIsThereBeforeTheNextLine) {
  const std::string command = fmt::format(
      "mkfifo answers && (exec 4< answers; echo the cat; read -r line <&4; echo \"$line\" > first; echo a "
      "dog; "
      "exec >&-; cat <&4 > rest) | {} --stream > answers 2> /dev/null",
      kEmbed);
  shell_fails(0, command, {});
  EXPECT_EQ(json::parse(read_file(folder / "first", 1 << 20))["line"], 1);
  EXPECT_EQ(json::parse(read_file(folder / "rest", 1 << 20))["line"], 2);
}

TEST_F(StreamTest, AStreamsAnswersAreThoseOfTheFile) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "the cat sat\n" : "a dog\n";
  put("texts", text + "the end");
  succeeds(embed({"--input", path("texts"), "--batch-invariant"}));
  const std::string wanted = output_;
  shell_fails(0, fmt::format("cat texts | {} --stream --batch-invariant > out 2> /dev/null", kEmbed), {});
  EXPECT_EQ(read_file(folder / "out", 1 << 26), wanted);
}

// The vectors of int8 are close to fp32's, or one line says what the processor lacks.
TEST_F(StreamTest, Int8) {
  put("texts", "the cat sat\na dog\n");
  const ProcessResult int8 = run(embed({"--input", path("texts"), "--dtype", "int8"}));
  if (int8.code != 0) {
    EXPECT_EQ(int8.code, 2);
    EXPECT_NE(
        int8.err.find("--dtype: int8 needs a processor with AMX, AVX512_VNNI or AVX-VNNI; use fp32 or bf16"),
        std::string::npos)
        << int8.err;
    return;
  }
  succeeds(embed({"--input", path("texts")}));
  std::istringstream exact(output_), rounded(int8.out);
  int lines = 0;
  for (std::string a, b; std::getline(exact, a) && std::getline(rounded, b); ++lines) {
    const auto wanted = json::parse(a)["embedding"].get<std::vector<double>>(),
               found = json::parse(b)["embedding"].get<std::vector<double>>();
    ASSERT_EQ(found.size(), wanted.size());
    double dot = 0, left = 0, right = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      dot += wanted[i] * found[i], left += wanted[i] * wanted[i], right += found[i] * found[i];
    }
    EXPECT_GT(dot / std::sqrt(left * right), 0.99);
    EXPECT_NE(found, wanted);
  }
  EXPECT_EQ(lines, 2);
  const ProcessResult rank = run({"rank", "--model", path("bert"), "--query", "x", "--input", path("texts"),
                                  "--weights-cache", "none", "--dtype", "int8"});
  EXPECT_NE(rank.err.find("has no classification head"), std::string::npos) << rank.err;
}

TEST_F(StreamTest, TheSummaryIsAnObjectIfAskedFor) {
  put("texts.jsonl", "{\"text\": \"the cat\"}\nno\n");
  const ProcessResult lines = run(embed({"--input", path("texts.jsonl"), "--json"}));
  EXPECT_EQ(lines.code, 1);
  const json error_summary =
      json::parse(lines.err.substr(lines.err.find('{'), lines.err.find('}') + 1 - lines.err.find('{')));
  EXPECT_EQ(error_summary["texts"], 2);
  EXPECT_EQ(error_summary["errors"], 1);
  put("texts", "the cat\n");
  succeeds(embed({"--input", path("texts"), "--out", path("v.ndjson"), "--json"}));
  const json summary = json::parse(output_);
  EXPECT_EQ(summary["texts"], 1);
  EXPECT_EQ(summary["tokens"], 4);
  EXPECT_GT(summary["seconds"], 0);
  EXPECT_EQ(json::parse(read_file(folder / "v.ndjson", 1 << 20))["line"], 1);
  make_tiny_bert(folder / "cross", 1);
  const ProcessResult rank = run({"rank", "--model", path("cross"), "--query", "x", "--input", path("texts"),
                                  "--weights-cache", "none", "--json"});
  EXPECT_EQ(rank.code, 0);
  EXPECT_EQ(json::parse(rank.err)["texts"], 1);
}

// On a terminal, which `script` provides, progress is shown from the start.
TEST_F(StreamTest, ProgressSaysHowFarAndHowLong) {
  put("texts", "the cat\na dog\n");
  const std::string line = fmt::format(
      "cd '{}' && W='{}' script -q -e -c '{} --input texts --out v.npy' terminal < /dev/null > /dev/null",
      folder.string(), WARPWRIGHT_BINARY, kEmbed);
  ASSERT_EQ(std::system(line.c_str()), 0);
  const std::string shown = read_file(folder / "terminal", 1 << 20);
  EXPECT_NE(shown.find("0 texts, 0 tokens, 0 tokens/s, 0%"), std::string::npos) << shown;
  EXPECT_NE(shown.find("100%, 0s left"), std::string::npos) << shown;
}

TEST_F(StreamTest, SignalsEndAnyCommandWithTheirExitCode) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  // Makes readers block instead of seeing the end.
  const int held_open = ::open(path("pipe").c_str(), O_RDWR);
  ASSERT_GE(held_open, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child =
        start_process(embed({"--input", path("pipe"), "--stream"}), folder / "o", folder / "e");
    ASSERT_EQ(::write(held_open, "the cat\n", 8), 8);
    while (!fs::exists(folder / "o") || fs::file_size(folder / "o") == 0)
      usleep(1000);  // then it waits for more
    kill(child, signal);
    EXPECT_EQ(wait_for(child), 128 + signal);
    EXPECT_EQ(read_file(folder / "e", 1 << 20), "");
    fs::remove(folder / "o");
  }
  ::close(held_open);
}

TEST_F(StreamTest, ASignalThatWasIgnoredStaysIgnored) {
  const std::string command = fmt::format(
      "trap '' INT; mkfifo lines || exit 1; {} --stream < lines > out 2> /dev/null & pid=$!; exec 3> lines; "
      "echo the cat >&3; "
      "until [ -s out ]; do sleep 0.01; done; kill -INT $pid; echo a dog >&3; exec 3>&-; wait $pid",
      kEmbed);
  shell_fails(0, command, {});
  const std::string out = read_file(folder / "out", 1 << 20);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
}

}  // namespace
}  // namespace warpwright
