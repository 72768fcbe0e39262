// Tests generate (prompts, stop texts, samples) and the content that convert keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ops/int8_linear/int8_linear.hpp"
#include "tests/cli_fixture.hpp"

namespace warpwright {
namespace {

using nlohmann::json;

class GenerateTest : public CliTest {
 protected:
  void SetUp() override {
    make_data();
    succeeds(train_arguments("run"));
  }

  std::vector<std::string> generate(const std::vector<std::string>& more) {
    std::vector<std::string> a = {"generate",     "--model", path("run/model"), "--threads", "1",
                                  "--max-tokens", "40"};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }

  std::vector<json> samples(std::vector<std::string> more) {
    more.push_back("--json");
    succeeds(generate(more));
    std::vector<json> all;
    std::istringstream lines(output_);
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    for (json& sample : all) {
      EXPECT_GE(sample["seconds"], sample["first_token_seconds"]);
      EXPECT_GE(sample["tokens_per_second"], 0);
      for (const char* time : {"seconds", "first_token_seconds", "tokens_per_second"}) sample.erase(time);
    }
    return all;
  }

  json json_file(const std::string& name) { return json::parse(read_file(folder / name, 1 << 20)); }
};

// In int8 a model loses little, and a device without int8 is refused in one line.
TEST_F(GenerateTest, Int8) {
  const std::vector<std::string> eval = {"eval",   "--model",    path("run/model"),
                                         "--data", path("data"), "--json"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  if (const std::string reason = ops::refuse_int8(cpu_device_info()); !reason.empty()) {
    for (const auto& words : {with(eval, {"--dtype", "int8"}), generate({"--dtype", "int8"})})
      fails(2, words, {"--dtype: int8 " + reason + "; use fp32 or bf16"});
    return;
  }
  succeeds(eval);
  const double loss = json::parse(output_)["loss"];
  succeeds(with(eval, {"--dtype", "int8"}));
  const double rounded = json::parse(output_)["loss"];
  EXPECT_NE(rounded, loss);
  EXPECT_NEAR(rounded, loss, 0.01);
  const std::vector<std::string> greedy = {"--prompt", "the cat", "--temperature", "0", "--dtype", "int8"};
  const auto once = samples(greedy);
  EXPECT_EQ(once[0]["tokens"], 40);
  EXPECT_EQ(samples(greedy), once);
}

TEST_F(GenerateTest, EachSampleCanBeHadAloneAgain) {
  const auto three = samples({"--prompt", "the cat", "--seed", "7", "--num-samples", "3"});
  ASSERT_EQ(three.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string seed = std::to_string(7 + i);
    EXPECT_EQ(three[i]["seed"], 7 + i);
    EXPECT_EQ(samples({"--prompt", "the cat", "--seed", seed}), std::vector<json>{three[i]});
  }
  EXPECT_NE(three[0]["text"], three[1]["text"]);
  const auto printed = [&](const char* seed, const char* count) {
    succeeds(generate({"--prompt", "the cat", "--seed", seed, "--num-samples", count}));
    return output_;
  };
  EXPECT_EQ(printed("7", "2"), "--- seed 7\n" + printed("7", "1") + "\n--- seed 8\n" + printed("8", "1"));
}

// An untrained model emits arbitrary bytes, so stop texts begin and end inside tokens and characters.
TEST_F(GenerateTest, StopTextsEndASampleBeforeThem) {
  const auto text_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> line = {"--prompt", "", "--seed", "7"};
    line.insert(line.end(), more.begin(), more.end());
    succeeds(generate(line));
    return output_.substr(0, output_.size() - 1);
  };
  const std::string text = text_with({});
  ASSERT_GT(text.size(), 30u);
  int tried = 0;
  for (std::size_t at = 0; at + 6 < text.size(); at += 5) {
    const std::string stop = text.substr(at, 6);
    if (stop.find('\0') != std::string::npos) continue;  // an argument cannot contain NUL
    EXPECT_EQ(text_with({"--stop", "never here", "--stop=" + stop}), text.substr(0, text.find(stop)));
    const json sample = samples({"--prompt", "", "--seed", "7", "--stop=" + stop})[0];
    EXPECT_EQ(sample["end"], "stop");
    EXPECT_GT(sample["tokens"], 0);
    ++tried;
  }
  EXPECT_GT(tried, 2);
  const json whole = samples({"--prompt", "", "--seed", "7", "--stop", "never here"})[0];
  EXPECT_TRUE(whole["end"] == "length" || whole["end"] == "end_of_text") << whole;
}

TEST_F(GenerateTest, PromptsComeFromStandardInputToo) {
  const auto shell = [&](const std::string& command) {
    shell_fails(0, command + " > out", {});
    return read_file(folder / "out", 1 << 20);
  };
  const std::string program = "$W generate --model run/model --threads 1 --max-tokens 5 --seed 3";
  const std::string wanted = shell(program + " --prompt 'the cat'");
  EXPECT_EQ(wanted.rfind("the cat", 0), 0u);
  EXPECT_EQ(shell("echo 'the cat' | " + program), wanted);
  EXPECT_EQ(shell("printf 'the cat' | " + program + " --prompt -"), wanted);
  EXPECT_EQ(shell("printf 'the cat\\r\\n' | " + program), wanted);
  put("prompt", "the cat\n");
  EXPECT_EQ(shell(program + " < prompt"), wanted);
  EXPECT_EQ(shell("echo a dog | " + program + " --prompt 'the cat'"), wanted);
  EXPECT_EQ(shell(program + " < /dev/null"), shell(program + " --prompt ''"));
  shell_fails(2, "printf 'zq%.0s' $(seq 100) | " + program + " --prompt -",
              {"standard input", "32", "shorten"});
}

TEST_F(GenerateTest, LinesOfAFileArePrompts) {
  put("prompts", "the cat\n\na dog\n");
  auto all = samples({"--input", path("prompts"), "--num-samples", "2", "--seed", "7"});
  ASSERT_EQ(all.size(), 6u);
  std::vector<json> alone;
  for (const char* prompt : {"the cat", "", "a dog"}) {
    for (const json& sample : samples({"--prompt", prompt, "--num-samples", "2", "--seed", "7"})) {
      alone.push_back(sample);
    }
  }
  put("crlf", "the cat\r\n\r\na dog\r\n");
  EXPECT_EQ(samples({"--input", path("crlf"), "--num-samples", "2", "--seed", "7"}), all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["line"], i / 2 + 1);
    all[i].erase("line");
  }
  EXPECT_EQ(all, alone);
  const std::string program = "$W generate --model run/model --threads 1 --max-tokens 5 --input ";
  shell_fails(0, program + "- < prompts > out", {});
  EXPECT_EQ(std::ranges::count(read_file(folder / "out", 1 << 20), '\n'), 3);
  shell_fails(0, program + "/dev/null > out", {});
  EXPECT_EQ(read_file(folder / "out", 1 << 20), "");
  // A prompt that does not fit is an error before anything is printed.
  shell_fails(2, "(echo the; printf 'zq%.0s' $(seq 100)) | " + program + "- > out",
              {"standard input, line 2", "32", "shorten"});
  EXPECT_EQ(read_file(folder / "out", 1 << 20), "");
  fails(2, generate({"--input", path("prompts"), "--prompt", "the"}), {"--input", "--prompt"});
  fails(1, generate({"--input", path("nowhere")}), {"nowhere"});
}

TEST_F(GenerateTest, LinesOfJsonlArePromptsUnderAKey) {
  put("prompts.jsonl", R"({"text": "the cat", "id": "x"})"
                       "\n\n"
                       R"({"text": ""})"
                       "\n");
  auto all = samples({"--input", path("prompts.jsonl"), "--seed", "7"});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["id"], "x");
  EXPECT_FALSE(all[1].contains("id"));
  EXPECT_EQ(all[0]["line"], 1);
  EXPECT_EQ(all[1]["line"], 3);
  const std::vector<json> wanted = all;
  for (json& sample : all) {
    for (const char* of_line : {"line", "id"}) sample.erase(of_line);
  }
  EXPECT_EQ(all[0], samples({"--prompt", "the cat", "--seed", "7"})[0]);
  EXPECT_EQ(all[1], samples({"--prompt", "", "--seed", "7"})[0]);
  put("prompts", R"({"question": "the cat", "id": "x"})"
                 "\n\n"
                 R"({"question": ""})");
  EXPECT_EQ(samples({"--input", path("prompts"), "--jsonl", "--field", "question", "--seed", "7"}), wanted);
  fails(1, generate({"--input", path("prompts"), "--jsonl"}), {"prompts, line 1", "\"text\"", "--field"});
  put("text.jsonl", "the cat\n");
  fails(1, generate({"--input", path("text.jsonl")}), {"text.jsonl, line 1", "JSON"});
  fails(2, generate({"--jsonl"}), {"--jsonl", "--input"});
}

TEST_F(GenerateTest, APenaltyMakesRepetitionsRare) {
  const auto distinct = [&](const char* penalty) {
    const json sample =
        samples({"--prompt", "the", "--temperature", "0", "--repetition-penalty", penalty})[0];
    const std::string text = sample["text"];
    return std::set<char>(text.begin(), text.end()).size();
  };
  EXPECT_GT(distinct("1e6"), distinct("1"));
}

TEST_F(GenerateTest, ConversionsKeepTheTokenizerAndItsIds) {
  const json before = json_file("run/model/config.json");
  const std::string tokenizer = read_file(folder / "run/model/tokenizer.json", 1 << 24);
  const auto convert = [&](const std::string& from, const std::string& to, const std::string& format,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> a = {"convert", "--from", path(from), "--to", path(to), "--format", format};
    a.insert(a.end(), more.begin(), more.end());
    succeeds(a);
  };
  convert("run/model", "copy", "hf");
  EXPECT_EQ(json_file("copy/config.json"), before);
  EXPECT_EQ(json_file("copy/warpwright.json"), json_file("run/model/warpwright.json"));
  EXPECT_EQ(read_file(folder / "copy/tokenizer.json", 1 << 24), tokenizer);
  convert("run/model", "m.bin", "llmc");
  EXPECT_NE(
      output_.find("no place for the tokenizer and for the ids of the tokens that begin and end a text"),
      std::string::npos)
      << output_;
  fails(2, {"generate", "--model", path("m.bin"), "--prompt", "the"}, {"m.bin", "--tokenizer"});
  convert("m.bin", "back", "hf", {"--tokenizer", path("run/model")});
  EXPECT_EQ(json_file("back/config.json"), before);
  EXPECT_EQ(read_file(folder / "back/tokenizer.json", 1 << 24), tokenizer);
  convert("m.bin", "bare", "hf");
  EXPECT_NE(output_.find("--tokenizer"), std::string::npos) << output_;
  EXPECT_TRUE(json_file("bare/config.json")["eos_token_id"].is_null());
  json config = before;  // two different ids, neither the vocabulary's last
  config["bos_token_id"] = 5;
  config["eos_token_id"] = 6;
  put("copy/config.json", config.dump());
  convert("copy", "ids", "hf");
  EXPECT_EQ(json_file("ids/config.json")["bos_token_id"], 5);
  EXPECT_EQ(json_file("ids/config.json")["eos_token_id"], 6);
  config.erase("bos_token_id");
  config.erase("eos_token_id");
  put("copy/config.json", config.dump());
  convert("copy", "from_tokenizer", "hf");
  EXPECT_EQ(json_file("from_tokenizer/config.json")["eos_token_id"], before["eos_token_id"]);
  config["eos_token_id"] = before["vocab_size"];
  put("copy/config.json", config.dump());
  fails(1, {"generate", "--model", path("copy"), "--prompt", "the"}, {"config.json", "eos_token_id"});
  config["eos_token_id"] = "six";
  put("copy/config.json", config.dump());
  fails(1, {"convert", "--from", path("copy"), "--to", path("no"), "--format", "hf"}, {"eos_token_id"});
  put("copy/config.json", before.dump());
  fails(
      2,
      {"convert", "--from", path("copy"), "--to", path("no"), "--format", "llmc", "--tokenizer", path("tok")},
      {"--tokenizer", "--format hf"});
}

// As in transformers, whose generate takes them from there.
TEST_F(GenerateTest, GenerationConfigNamesTheTokensThatEndAText) {
  const auto sample_of = [&](const std::string& model) {
    succeeds({"generate", "--model", path(model), "--prompt", "the", "--temperature", "0", "--max-tokens",
              "12", "--threads", "1", "--json"});
    return json::parse(output_);
  };
  const auto is_ended = [&](const std::string& model) { return sample_of(model)["end"] == "end_of_text"; };
  const auto convert = [&](const std::string& to, const std::vector<std::string>& more = {}) {
    std::vector<std::string> a = {"convert", "--from", path("chat"), "--to", path(to), "--format", "hf"};
    a.insert(a.end(), more.begin(), more.end());
    succeeds(a);
  };
  std::filesystem::copy(folder / "run/model", folder / "chat");
  put("text", sample_of("chat")["text"].get<std::string>());
  succeeds({"tokenizer", "encode", "--tokenizer", path("data"), "--input", path("text")});
  const int said = std::stoi(output_);
  ASSERT_FALSE(is_ended("chat"));
  json config = json_file("chat/config.json");
  config["eos_token_id"] = said;
  put("chat/config.json", config.dump());
  EXPECT_TRUE(is_ended("chat"));
  const int other = said == 1 ? 2 : 1;
  put("chat/generation_config.json", json{{"eos_token_id", other}, {"temperature", 2.0}}.dump());
  EXPECT_FALSE(is_ended("chat"));
  put("chat/generation_config.json", R"({"do_sample": true})");
  EXPECT_TRUE(is_ended("chat"));
  config["eos_token_id"] = other;
  put("chat/config.json", config.dump());
  const std::string ours = json{{"eos_token_id", {other, said}}, {"top_p", 0.9}}.dump();
  put("chat/generation_config.json", ours);
  EXPECT_TRUE(is_ended("chat"));
  convert("copy");
  EXPECT_EQ(read_file(folder / "copy/generation_config.json", 1 << 20), ours);
  EXPECT_TRUE(is_ended("copy"));
  convert("copy", {"--force"});
  convert("retold", {"--tokenizer", path("data")});  // may be another tokenizer
  EXPECT_FALSE(std::filesystem::exists(folder / "retold/generation_config.json"));
  std::filesystem::remove(folder / "chat/tokenizer.json");
  convert("bare");
  EXPECT_EQ(read_file(folder / "bare/generation_config.json", 1 << 20), ours);
  for (const char* wrong : {R"({"eos_token_id": "x"})", R"({"eos_token_id": 99999})", "[]", "{"}) {
    put("copy/generation_config.json", wrong);
    fails(1, {"generate", "--model", path("copy"), "--prompt", "the"}, {"copy/generation_config.json"});
  }
}

// The data's ids are then the model's. The checkpoint that a run goes on from is deleted by --keep 1.
TEST_F(GenerateTest, FineTuningOnBareShardsKeepsTheModelsTokenizer) {
  const std::string tokenizer = read_file(folder / "run/model/tokenizer.json", 1 << 24);
  std::filesystem::create_directory(folder / "bare");
  for (const auto& file : std::filesystem::directory_iterator(folder / "data")) {
    if (file.path().extension() == ".bin")
      std::filesystem::copy(file.path(), folder / "bare" / file.path().filename());
  }
  const auto tune = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> a = {"train",   "--data",     path("bare"), "--out",     path(out),
                                  "--batch", "2",          "--seq",      "16",        "--keep",
                                  "1",       "--schedule", "constant",   "--threads", "1"};
    a.insert(a.end(), more.begin(), more.end());
    succeeds(a);
  };
  tune("tuned", {"--model", path("run/model"), "--steps", "2"});
  EXPECT_EQ(read_file(folder / "tuned/model/tokenizer.json", 1 << 24), tokenizer);
  std::filesystem::remove_all(folder / "run");
  tune("tuned", {"--resume", "--steps", "4"});
  EXPECT_EQ(read_file(folder / "tuned/model/tokenizer.json", 1 << 24), tokenizer);
  succeeds({"generate", "--model", path("tuned"), "--prompt", "the", "--max-tokens", "2"});
  json config = json_file("tuned/model/config.json");
  // A tokenizer with more ids than the model.
  json larger = json::parse(tokenizer);
  for (int i = 0; i < 200; ++i) {
    larger["added_tokens"].push_back({{"id", config["vocab_size"].get<int>() + i},
                                      {"content", fmt::format("<{}>", i)},
                                      {"special", true},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"single_word", false}});
  }
  put("tuned/model/tokenizer.json", larger.dump());
  tune("without", {"--model", path("tuned/model"), "--steps", "1"});
  EXPECT_FALSE(std::filesystem::exists(folder / "without/model/tokenizer.json"));
}

}  // namespace
}  // namespace warpwright
