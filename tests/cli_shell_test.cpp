// Tests completion in a real bash, and the other scripts and the man pages as text.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "cli/arguments.hpp"
#include "cli/completion.hpp"
#include "cli/manual.hpp"
#include "cli/program.hpp"
#include "tests/cli_fixture.hpp"
#include "tests/visit_commands.hpp"

namespace warpwright {
namespace {

using WordSet = std::set<std::string>;

class ShellTest : public CliTest {
 protected:
  ShellTest() { put("completion.bash", cli::bash_completion(*cli::make_program())); }

  // The words that bash offers for the last of these words. "=" is a separate word, as in bash.
  WordSet offered(const std::string& line) {
    put("try.bash",
        "source ./completion.bash || exit 1\nCOMP_WORDS=(" + line +
            ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_warpwright\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    const int status =
        std::system(fmt::format("cd '{}' && bash --norc try.bash > offered 2>&1", folder.string()).c_str());
    EXPECT_EQ(status, 0) << line;
    std::istringstream lines(read_file(folder / "offered", 1 << 20));
    WordSet words;
    for (std::string word; std::getline(lines, word);) {
      if (!word.empty()) words.insert(word);
    }
    return words;
  }
};

TEST_F(ShellTest, BashOffersCommandsOptionsAndValues) {
  EXPECT_EQ(offered("warpwright tr"), WordSet{"train"});
  EXPECT_TRUE(offered("warpwright ''").contains("embed"));
  EXPECT_TRUE(offered("warpwright ''").contains("completion"));
  EXPECT_EQ(offered("warpwright tokenizer ''"), (WordSet{"train", "encode", "decode", "--help"}));
  EXPECT_EQ(offered("warpwright tokenizer train --vo"), WordSet{"--vocab-size"});
  EXPECT_EQ(offered("warpwright train --batch 4 --sched"), WordSet{"--schedule"});
  EXPECT_EQ(offered("warpwright train --dtype ''"), (WordSet{"fp32", "tf32", "bf16"}));
  EXPECT_EQ(offered("warpwright train --dtype = b"), WordSet{"bf16"});
  EXPECT_EQ(offered("warpwright train --dtype ="), (WordSet{"fp32", "tf32", "bf16"}));
  EXPECT_EQ(offered("warpwright embed --dtype ''"), (WordSet{"fp32", "tf32", "bf16", "fp16", "int8"}));
  EXPECT_EQ(offered("warpwright train --device c"), (WordSet{"cpu", "cuda"}));
  EXPECT_EQ(offered("warpwright train --lr ''"), WordSet{});
  EXPECT_EQ(offered("warpwright eval --split train --bas"), WordSet{"--baselines"});
  EXPECT_EQ(offered("warpwright bench ops mat"), WordSet{"matmul"});
  EXPECT_TRUE(offered("warpwright help ''").contains("train"));
}

TEST_F(ShellTest, BashOffersFilesForPaths) {
  put("in put.txt", "");
  put("input2.txt", "");
  put("models/x", "");
  EXPECT_EQ(offered("warpwright embed --input in"), (WordSet{"in put.txt", "input2.txt"}));
  EXPECT_EQ(offered("warpwright train --data mod"), WordSet{"models"});
  EXPECT_EQ(offered("warpwright train --data = models/"), WordSet{"models/x"});
  EXPECT_EQ(offered("warpwright data build --input input2.txt in"), (WordSet{"in put.txt", "input2.txt"}));
  EXPECT_EQ(offered("warpwright data build --input input2.txt --val"), WordSet{"--val-fraction"});
}

// Relocatable bundles start programs in this way.
TEST_F(ShellTest, StartsThroughTheDynamicLoader) {
  shell_fails(0, "/lib64/ld-linux-x86-64.so.2 \"$W\" help > out", {});
  EXPECT_NE(read_file(folder / "out", 1 << 20).find("warpwright"), std::string::npos);
}

std::ptrdiff_t matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {});
}

TEST(Shell, EveryOptionOfEveryCommandIsInEveryScriptAndInItsManPage) {
  const auto program = cli::make_program();
  const std::string bash = cli::bash_completion(*program), zsh = cli::zsh_completion(*program),
                    fish = cli::fish_completion(*program);
  std::map<std::string, std::ptrdiff_t> commands_with;
  visit_commands(*program, [&](const CLI::App& command) {
    const std::string page = cli::manual_of(command);
    for (const CLI::Option* option : cli::shown_options(command)) {
      if (!option->nonpositional() || option->get_lnames().empty()) continue;
      const std::string name = option->get_lnames().front();
      ++commands_with[name];
      std::string dashes = "--" + name;
      for (std::size_t at = 0; (at = dashes.find('-', at)) != std::string::npos; at += 2)
        dashes.insert(at, 1, '\\');
      EXPECT_NE(page.find("\\fB" + dashes + "\\fR"), std::string::npos) << name << " in " << page;
    }
  });
  for (const auto& [name, commands] : commands_with) {
    const std::string words = "\n    '[a-z ]*'\\) words='([^\n']* )?--";  // the options of a command
    EXPECT_EQ(matches(bash, words + name + "[ ']"), commands) << name;
    EXPECT_EQ(matches(zsh, "'\\*--" + name + "[=\\[]"), commands) << name;
    EXPECT_EQ(matches(fish, " -l " + name + "[ \n]"), commands) << name;
  }
}

// Every line is text or one of the requests we use, and the sections are in the usual order.
TEST(Shell, ManPagesAreWellFormed) {
  const auto program = cli::make_program();
  const std::set<std::string> requests = {".TH", ".SH", ".TP", ".B", ".I", ".nf", ".fi", ".sp"};
  visit_commands(*program, [&](const CLI::App& command) {
    std::istringstream page(cli::manual_of(command));
    std::vector<std::string> sections;
    std::size_t number = 0;
    for (std::string line; std::getline(page, line); ++number) {
      EXPECT_FALSE(line.empty()) << cli::full_name(command);
      EXPECT_FALSE(line.starts_with('\'')) << line;
      if (line.starts_with(".SH ")) sections.push_back(line.substr(4));
      const bool known = !line.starts_with('.') || requests.contains(line.substr(0, line.find(' ')));
      EXPECT_TRUE(known) << line;
      EXPECT_EQ(line.starts_with(".TH WARPWRIGHT"), number == 0) << line;
    }
    ASSERT_GE(sections.size(), 5u);
    EXPECT_EQ(sections[0], "NAME");
    EXPECT_EQ(sections[1], "SYNOPSIS");
    EXPECT_EQ(sections.back(), "SEE ALSO");
  });
}

TEST_F(ShellTest, TheProgramPrintsScriptsAndPages) {
  succeeds({"completion", "bash"});
  EXPECT_EQ(output_, cli::bash_completion(*cli::make_program()));
  succeeds({"man", "data", "build"});
  EXPECT_EQ(output_.rfind(".TH WARPWRIGHT\\-DATA\\-BUILD 1", 0), 0u) << output_;
  put("pages/x", "");
  succeeds({"man", "--out", path("pages")});
  EXPECT_TRUE(std::filesystem::exists(folder / "pages/warpwright.1"));
  EXPECT_TRUE(std::filesystem::exists(folder / "pages/warpwright-tokenizer-train.1"));
}

}  // namespace
}  // namespace warpwright
