// Wrong command lines give one line on stderr and exit code 2, before anything is read or written.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/arguments.hpp"
#include "cli/checks.hpp"
#include "cli/nearest.hpp"
#include "cli/program.hpp"
#include "cli/train_flags.hpp"
#include "core/error.hpp"
#include "model/gpt2_decoder.hpp"
#include "tests/cli_fixture.hpp"
#include "tests/visit_commands.hpp"

namespace warpwright {
namespace {

using Words = std::vector<std::string>;

// A command line and the words that its message must contain.
struct Wrong {
  Words line, words;
};

class UsageTest : public CliTest {
 protected:
  void refuses(const std::vector<Wrong>& table) {
    for (const Wrong& wrong : table) {
      const ProcessResult r = run(wrong.line);
      const std::string line = fmt::format("{}", fmt::join(wrong.line, " ")).substr(0, 200);
      EXPECT_EQ(r.code, 2) << line << ": " << r.err;
      EXPECT_EQ(r.out, "") << line;
      EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << line << ": " << r.err;
      EXPECT_TRUE(r.err.starts_with("warpwright: ")) << line << ": " << r.err;
      EXPECT_LT(r.err.size(), 3000u) << line;
      for (const std::string& word : wrong.words)
        EXPECT_NE(r.err.find(word), std::string::npos) << word << " in " << r.err << " of " << line;
    }
  }
};

TEST_F(UsageTest, CommandsThatAreNone) {
  refuses({
      {{}, {"needs a command", "train", "`warpwright --help`"}},
      {{"trian"}, {"trian", "unknown command", "nearest is train"}},
      {{"trainn"}, {"nearest is train"}},
      {{"TRAIN"}, {"nearest is train"}},
      {{"evaluate"}, {"nearest is eval"}},
      {{"gen"}, {"nearest is generate"}},
      {{"embedd"}, {"nearest is embed"}},
      {{"embeddings"}, {"nearest is embed"}},
      {{"converter"}, {"nearest is convert"}},
      {{"benchmark"}, {"nearest is bench"}},
      {{"rerank"}, {"unknown command", "nearest is rank"}},
      {{"tokenise"}, {"unknown command"}},
      {{"serve"}, {"unknown command", "none is similar"}},
      {{"fly", "--json"}, {"fly", "none is similar"}},
      {{""}, {"\"\"", "unknown command"}},
      {{" train"}, {"unknown command"}},
      {{"two\nlines"}, {"two\\nlines"}},
      {{"\x1b[31m"}, {"unknown command"}},
      {{"\xff\xfe"}, {"unknown command"}},
      {{std::string(100000, 'x')}, {"unknown command", "and so on"}},
      {{"-"}, {"unknown command"}},
      {{"--", "train"}, {"train", "unknown command"}},
      {{"-5"}, {"unknown command"}},
      {{"tokenizer"}, {"warpwright tokenizer: needs a command", "encode", "`warpwright tokenizer --help`"}},
      {{"tokenizer", "trian"}, {"nearest is train", "`warpwright tokenizer --help`"}},
      {{"tokenizer", "encoed", "--input", "x"}, {"nearest is encode"}},
      {{"data"}, {"needs a command", "build"}},
      {{"bench"}, {"warpwright bench: needs a command", "ops, step, encoder, decode, products"}},
      {{"bench", "gelu"}, {"gelu", "unknown command", "`warpwright bench ops gelu`"}},
      {{"bench", "matmul"},
       {"unknown command",
        "`warpwright bench ops matmul` or `warpwright bench products` or `warpwright bench schedules`"}},
      {{"data", "biuld"}, {"nearest is build", "`warpwright data --help`"}},
      {{"data", "train"}, {"unknown command"}},
      {{"help", "trian"}, {"nearest is train"}},
      {{"help", "tokenizer", "deocde"}, {"nearest is decode"}},
      {{"help", "train", "more"}, {"more", "unknown command"}},
      {{"completion"}, {"shell", "`warpwright completion --help`"}},
      {{"completion", "tcsh"}, {"tcsh", "bash, zsh, fish"}},
      {{"man", "trian"}, {"nearest is train"}},
  });
}

TEST_F(UsageTest, OptionsThatAreNoneComeBeforeAnythingElse) {
  refuses({
      {{"train", "--batch-size", "4"},
       {"--batch-size", "unknown option", "nearest is --batch;", "`warpwright train --help`"}},
      {{"train", "--batchsize", "4"}, {"nearest is --batch;"}},
      {{"train", "--batch_size=4"}, {"nearest is --batch;"}},
      {{"train", "--lora"}, {"--lora", "unknown option", "none is similar"}},
      {{"train", "--lora", "8", "--steps", "x"}, {"--lora", "none is similar"}},
      {{"train", "--steps", "x", "--lora", "8"}, {"--lora", "none is similar"}},
      {{"train", "--learning-rate", "1e-3"}, {"nearest is --lr;"}},
      {{"train", "--stesp", "5"}, {"nearest is --steps"}},
      {{"train", "--max-steps", "5"}, {"nearest is --steps"}},
      {{"train", "--Steps", "5"}, {"nearest is --steps"}},
      {{"train", "--total_batch", "5"}, {"nearest is --total-batch"}},
      {{"train", "--outdir", "x"}, {"nearest is --out;"}},
      {{"train", "--output", "x"}, {"nearest is --out;"}},
      {{"train", "--warm-up", "5"}, {"nearest is --warmup"}},
      {{"train", "--num-threads", "5"}, {"nearest is --threads"}},
      {{"train", "--seq-len", "5"}, {"nearest is --seq;"}},
      {{"train", "--prompt", "x"}, {"--prompt", "unknown option", "generate"}},
      {{"train", "--data", "d", "--top-k", "5"}, {"--top-k", "unknown option; generate has it"}},
      {{"train", "-x"}, {"-x", "unknown option"}},
      {{"train", "-V"}, {"-V", "unknown option"}},
      {{"train", "--no-such-flag"}, {"--no-such-flag"}},
      {{"train", "--" + std::string(100000, 'x')}, {"unknown option", "and so on"}},
      {{"generate", "--max-new-tokens", "5"}, {"nearest is --max-tokens"}},
      {{"generate", "--temprature", "1"}, {"nearest is --temperature"}},
      {{"generate", "--n", "1"}, {"unknown option"}},
      {{"generate", "--samples", "1"}, {"nearest is --num-samples"}},
      {{"generate", "--stop-text", "1"}, {"nearest is --stop"}},
      {{"generate", "--steps", "1"}, {"--steps", "unknown option"}},
      {{"embed", "--lr", "1"}, {"unknown option; train has it"}},
      {{"embed", "--batch-size", "1"}, {"unknown option"}},
      {{"embed", "--normalise"}, {"nearest is --normalize"}},
      {{"embed", "--query", "x"}, {"unknown option; rank has it"}},
      {{"rank", "--stream"}, {"unknown option; embed has it"}},
      {{"rank", "--top-n", "3"}, {"nearest is --top"}},
      {{"convert", "--fromat", "hf"}, {"nearest is --format"}},
      {{"convert", "--output", "x"}, {"unknown option"}},
      {{"eval", "--out", "x"}, {"--out: unknown option; none is similar"}},
      {{"eval", "--baseline"}, {"nearest is --baselines"}},
      {{"eval", "--steps", "5"}, {"unknown option; train, bench step, bench decode have it"}},
      {{"info", "--jsno"}, {"nearest is --json"}},
      {{"info", "--device", "cpu"}, {"unknown option"}},
      {{"bench", "ops", "--working-sets", "5"}, {"nearest is --working-set"}},
      {{"roofline", "--gpus", "x"}, {"nearest is --gpu"}},
      {{"tokenizer", "train", "--vocab", "5"}, {"nearest is --vocab-size"}},
      {{"tokenizer", "train", "--vocabulary-size", "5"}, {"nearest is --vocab-size"}},
      {{"data", "build", "--val-frac", "5"}, {"nearest is --val-fraction", "`warpwright data build --help`"}},
      {{"--model", "x", "train"}, {"--model", "before the command"}},
      {{"--verbose"}, {"--verbose", "unknown option", "`warpwright --help`"}},
      {{"-v"}, {"-v", "unknown option"}},
      {{"--versoin"}, {"nearest is --version"}},
  });
}

TEST_F(UsageTest, WordsThatBelongToNoOption) {
  refuses({
      {{"train", "gpt2:124M"},
       {"gpt2:124M", "belongs to no option; perhaps --model is missing before it",
        "`warpwright train --help`"}},
      {{"train", "resume"}, {"resume", "--resume is an option"}},
      {{"train", "--data", "d", "e"}, {"e: belongs to no option"}},
      {{"train", "--resume", "run"}, {"run", "perhaps --out is missing before it"}},
      {{"train", "--out=run", "more"}, {"more: belongs to no option; see"}},
      {{"train", "eval"}, {"eval", "belongs to no option"}},
      {{"train", "--", "--data"}, {"--data", "belongs to no option"}},
      {{"train", ""}, {"\"\"", "belongs to no option"}},
      {{"train", "-1"}, {"-1", "belongs to no option"}},
      {{"generate", "--prompt", "two", "words"}, {"words: belongs to no option"}},
      {{"generate", "the", "cat"}, {"the: belongs to no option; perhaps --prompt is missing before it"}},
      {{"embed", "file.txt"}, {"file.txt", "belongs to no option; perhaps --input is missing before it"}},
      {{"rank", "file.txt"}, {"belongs to no option"}},
      {{"convert", "a", "b"}, {"a: belongs to no option; perhaps --from is missing before it"}},
      {{"convert", "--from", "a", "b"}, {"b: belongs to no option; perhaps --to is missing before it"}},
      {{"info", "cpu"}, {"cpu", "belongs to no option"}},
      {{"eval", "model"}, {"model", "--model is an option"}},
      {{"roofline", "h200"}, {"h200", "belongs to no option"}},
      {{"data", "build", "x"}, {"x: belongs to no option"}},
      {{"bench", "step", "adamw"}, {"adamw: belongs to no option"}},
      {{"tokenizer", "encode", "x"}, {"x: belongs to no option"}},
      {{"info", "\xc3\x28"}, {"belongs to no option"}},
  });
}

TEST_F(UsageTest, ValuesThatAreMissing) {
  refuses({
      {{"train", "--data"}, {"--data: needs a value", "`warpwright train --help`"}},
      {{"train", "--data", "--out", "x"}, {"--data: needs a value", "--data=--out"}},
      {{"train", "--data", "--ouut", "x"}, {"--ouut", "nearest is --out"}},
      {{"train", "--data", "--"}, {"--data: needs a value"}},
      {{"train", "--lr", "-h"}, {"--lr: needs a value"}},
      {{"train", "--data="}, {"--data", "is empty"}},
      {{"train", "--steps="}, {"--steps"}},
      {{"train", "--dtype="}, {"--dtype", "fp32, tf32, bf16"}},
      {{"train", "--resume="}, {"--resume", "takes no value"}},
      {{"train", "--resume=yes"}, {"--resume", "takes no value"}},
      {{"generate", "--model", ""}, {"--model", "is empty"}},
      {{"generate", "--stop"}, {"--stop: needs a value"}},
      {{"generate", "--model", "m", "--stop", ""}, {"--stop", "is empty"}},
      {{"generate", "--json=1"}, {"--json", "takes no value"}},
      {{"embed", "--input", ""}, {"--input", "is empty"}},
      {{"embed", "--out", ""}, {"--out", "is empty"}},
      {{"embed", "--weights-cache", ""}, {"--weights-cache", "is empty"}},
      {{"embed", "--attention-temperature", "1e-300"},
       {"--attention-temperature", "is 1e-300, give a number"}},
      {{"embed", "--attention-temperature", "1e-38"},
       {"--attention-temperature", "is 1e-38, give a number of 1e-30 or more"}},
      {{"embed", "--attention-temperature", "-1"}, {"--attention-temperature", "is -1, give a number"}},
      {{"embed", "--stream=on"}, {"--stream", "takes no value"}},
      {{"tokenizer", "train", "--input"}, {"--input: needs a value"}},
      {{"tokenizer", "train", "--input", "a", "--out"}, {"--out: needs a value"}},
      {{"tokenizer", "train", "--input="}, {"--input", "is empty"}},
      {{"data", "build", "--input", ""}, {"--input", "is empty"}},
      {{"train"}, {"is required"}},
      {{"train", "--data", "d"}, {"--out is required"}},
      {{"generate"}, {"--model is required"}},
      {{"embed"}, {"--model is required"}},
      {{"rank", "--model", "m"}, {"--query is required"}},
      {{"bench", "products"}, {"shape is required"}},
      {{"bench", "schedules"}, {"shape is required"}},
      {{"convert", "--from", "a", "--to", "b"}, {"--format is required"}},
      {{"tokenizer", "train", "--input", "a", "--out", "b"}, {"--vocab-size is required"}},
      {{"data", "build", "--input", "a", "--out", "b"}, {"--tokenizer is required"}},
  });
}

TEST_F(UsageTest, NumbersThatAreNone) {
  refuses({
      {{"train", "--steps", "ten"}, {"--steps", "ten"}},
      {{"train", "--steps", ""}, {"--steps"}},
      {{"train", "--steps", "1.5"}, {"--steps", "1.5"}},
      {{"train", "--steps", "1e3"}, {"--steps", "1e3"}},
      {{"train", "--steps", "0x10"}, {"--steps", "0x10"}},
      {{"train", "--steps", "+5"}, {"--steps", "+5"}},
      {{"train", "--steps", " 5"}, {"--steps"}},
      {{"train", "--steps", "5 "}, {"--steps"}},
      {{"train", "--steps", "٣"}, {"--steps"}},
      {{"train", "--steps", "9223372036854775808"}, {"--steps", "9223372036854775808"}},
      {{"train", "--steps", std::string(100000, '9')}, {"--steps", "999"}},
      {{"train", "--steps", "5", "--steps", "x"}, {"--steps", "x"}},
      {{"train", "--steps", "x", "--steps", "5"}, {"--steps", "x"}},
      {{"train", "--seed", "-1"}, {"--seed", "-1"}},
      {{"train", "--batch", "0"}, {"--batch", "1 or more"}},
      {{"train", "--batch", "-4"}, {"--batch", "1 or more"}},
      {{"train", "--lr", "nan"}, {"--lr", "nan"}},
      {{"train", "--lr", "inf"}, {"--lr", "inf"}},
      {{"train", "--lr", "1e999"}, {"--lr", "1e999"}},
      {{"train", "--lr", "fast"}, {"--lr", "fast"}},
      {{"train", "--lr", "1,5"}, {"--lr", "1,5"}},
      {{"train", "--threads", "-1"}, {"--threads", "is -1, give 0 to"}},
      {{"train", "--threads", "100000"}, {"--threads", "is 100000, give 0 to"}},
      {{"train", "--threads", "0x4"}, {"--threads", "0x4"}},
      {{"generate", "--max-tokens", "-1"}, {"--max-tokens", "0 or more"}},
      {{"generate", "--num-samples", "0"}, {"--num-samples", "1 or more"}},
      {{"generate", "--num-samples", "-3"}, {"--num-samples", "1 or more"}},
      {{"generate", "--num-samples", "1000000001"}, {"--num-samples", "1000000000"}},
      {{"generate", "--batch", "0"}, {"--batch", "65536"}},
      {{"generate", "--temperature", "hot"}, {"--temperature", "hot"}},
      {{"generate", "--top-p", "nan"}, {"--top-p", "nan"}},
      {{"generate", "--model", "m", "--min-p", "2"}, {"--min-p", "[0, 1]"}},
      {{"generate", "--model", "m", "--temperature", "0", "--top-k", "5"}, {"--top-k", "temperature 0"}},
      {{"generate", "--model", "m", "--repetition-penalty", "0"}, {"--repetition-penalty", "positive"}},
      {{"embed", "--max-length", "-1"}, {"--max-length", "0 or more"}},
      {{"embed", "--batch-tokens", "0"}, {"--batch-tokens", "1 or more"}},
      {{"rank", "--top", "-1"}, {"--top", "0 or more"}},
      {{"eval", "--batch", "1048577"}, {"--batch", "1048576"}},
      {{"bench", "ops", "--working-set", "-1"}, {"--working-set"}},
      {{"bench", "products", "gpt2", "--rounds", "1001"}, {"--rounds", "1000"}},
      {{"bench", "schedules", "gpt2", "--instruction", "imma"}, {"--instruction", "imma"}},
      {{"plan", "--link-gbps", "-1"}, {"--link-gbps", "is -1, give a number from 0.001 to 1000000000"}},
      {{"plan", "--network-gbps", "1e-300"}, {"--network-gbps", "is 1e-300, give a number from 0.001 to"}},
      {{"plan", "--memory-gb", "0"}, {"--memory-gb", "is 0, give a number from 0.001 to 1000000000"}},
      {{"plan", "--memory-gb", "1e30"}, {"--memory-gb", "is 1e30, give a number from 0.001 to"}},
      {{"plan", "--memory-gb", "nan"}, {"--memory-gb", "nan"}},
      {{"plan", "--overlap", "1.5"}, {"--overlap", "is 1.5, give a number from 0 to 1"}},
      {{"roofline", "--matrix-tflops", "0"}, {"--matrix-tflops"}},
      {{"tokenizer", "train", "--vocab-size", "-300"}, {"--vocab-size", "-300"}},
      {{"data", "build", "--val-fraction", "half"}, {"--val-fraction", "half"}},
  });
}

TEST_F(UsageTest, WordsThatAreNoChoice) {
  refuses({
      {{"train", "--dtype", "fp8"}, {"--dtype", "fp8", "fp32, tf32, bf16"}},
      {{"train", "--dtype", "bf-16"}, {"--dtype", "nearest is bf16"}},
      {{"train", "--dtype", "BF16"}, {"--dtype", "nearest is bf16"}},
      {{"train", "--dtype", "float32"}, {"--dtype", "float32"}},
      {{"train", "--schedule", "cosin"}, {"--schedule", "nearest is cosine"}},
      {{"train", "--schedule", "linera"}, {"--schedule", "nearest is linear"}},
      {{"train", "--recompute", "all"}, {"--recompute", "none, gelu, norm, block"}},
      {{"train", "--family", "lama"}, {"--family", "gpt2, llama; the nearest is llama"}},
      {{"train", "--family", "mistral"}, {"--family", "--family llama", "--model mistral:7B"}},
      {{"train", "--family", "qwen2"}, {"--family", "--family llama", "--model qwen2.5:0.5B"}},
      {{"plan", "--family", "qwen3"}, {"--family", "--family llama", "--model qwen3:0.6B"}},
      {{"train", "--family", "gpt_neox"}, {"--family", "--model pythia:70M"}},
      {{"train", "--device", "cdua"}, {"--device", "nearest is cuda"}},
      {{"train", "--device", "gpu"}, {"--device", "cpu, cuda, cuda:N; the nearest is cuda"}},
      {{"train", "--device", "cuda:x"}, {"--device", "cuda:x"}},
      {{"train", "--device", "cuda:"}, {"--device", "cuda:"}},
      {{"train", "--device", "cuda:-1"}, {"--device", "cuda:-1"}},
      {{"train", "--device", "cuda:99999999999"}, {"--device"}},
      {{"train", "--master-weights", "fp16"}, {"--master-weights", "fp32, none"}},
      {{"train", "--on-nonfinite", "skp"}, {"--on-nonfinite", "nearest is skip"}},
      {{"generate", "--dtype", "atuo"}, {"--dtype", "nearest is auto"}},
      {{"embed", "--dtype", "int4"}, {"--dtype", "int8"}},
      {{"embed", "--pooling", "maen"}, {"--pooling", "nearest is mean"}},
      {{"embed", "--over-limit", "trunc"}, {"--over-limit", "nearest is truncate"}},
      {{"embed", "--format", "csv"}, {"--format", "auto, jsonl, npy"}},
      {{"embed", "--model", "m", "--out", "v.csv"}, {"--out", ".csv", ".npy, .jsonl or .ndjson"}},
      {{"embed", "--model", "m", "--out", "v.npz"}, {"--out", ".npz", ".npy, .jsonl or .ndjson"}},
      {{"embed", "--model", "m", "--out", "v.json"}, {"--out", ".json", ".jsonl"}},
      {{"embed", "--model", "m", "--out", "v.npy", "--format", "jsonl"}, {"--format", ".npy"}},
      {{"embed", "--model", "m", "--out", "v.jsonl", "--format", "npy"}, {"--format", ".jsonl"}},
      {{"embed", "--model", "m", "--format", "npy"}, {"--format", "--out"}},
      {{"embed", "--model", "m", "--stream", "--out", "v.npy"}, {"--stream"}},
      {{"embed", "--model", "m", "--normalize", "--no-normalize"}, {"normalize", "excludes"}},
      {{"rank", "--activation", "sigmod"}, {"--activation", "nearest is sigmoid"}},
      {{"rank", "--truncation", "longest"}, {"--truncation", "nearest is longest_first"}},
      {{"convert", "--format", "gguf"}, {"--format", "hf, llmc"}},
      {{"convert", "--format", "llm.c"}, {"--format", "nearest is llmc"}},
      {{"convert", "--dtype", "fp16"}, {"--dtype", "auto, fp32, bf16"}},
      {{"eval", "--split", "test"}, {"--split", "val, train"}},
      {{"bench", "ops", "matmull"}, {"nearest is matmul"}},
      {{"roofline", "--op", "backward"}, {"--op", "forward, dx, dw"}},
      {{"roofline", "--schedule", "streamk"}, {"--schedule", "nearest is stream_k"}},
      {{"roofline", "--device", "tpu"}, {"--device", "cuda:N"}},
  });
}

// The words that select a command.
Words path_of(const CLI::App& command) {
  if (!command.get_parent()) return {};
  Words words = path_of(*command.get_parent());
  words.push_back(command.get_name());
  return words;
}

// The message that refuses a command line, or nullopt if it is accepted.
std::optional<std::string> refusal(const Words& line) {
  const auto program = cli::make_program();
  try {
    cli::Arguments arguments = cli::read_arguments(*program, line);
    std::reverse(arguments.words.begin(), arguments.words.end());
    program->parse(arguments.words);
  } catch (const CLI::ParseError& error) {
    return error.what();
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

void is_refused(Words line, const Words& more, const std::string& name) {
  line.insert(line.end(), more.begin(), more.end());
  const auto message = refusal(line);
  ASSERT_TRUE(message) << fmt::format("{}", fmt::join(line, " "));
  EXPECT_NE(message->find(name), std::string::npos) << *message << ": " << name;
}

TEST(Usage, EveryOptionRefusesWhatItsKindOfValueCannotBe) {
  const auto program = cli::make_program();
  visit_commands(*program, [](const CLI::App& command) {
    const Words path = path_of(command);
    for (const CLI::Option* option : cli::shown_options(command)) {
      if (!option->nonpositional()) continue;
      const std::string name = cli::name_of(*option), type = option->get_type_name();
      if (!cli::takes_value(*option)) {
        is_refused(path, {name + "=1"}, name);
        continue;
      }
      is_refused(path, {name}, "needs a value");
      const bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
      for (const char* value : {"", "x", "0x10", "nan", "1e999", "99999999999999999999999", "1 "}) {
        if (number && !(type.starts_with("FLOAT") && value[0] == '9')) is_refused(path, {name, value}, name);
      }
      if (!cli::choices_of(*option).empty()) is_refused(path, {name, "no-such-word"}, "is not one of");
      if (cli::takes_path(*option)) is_refused(path, {name, ""}, "is empty");
    }
  });
}

TEST(Usage, EveryOptionSaysItsDefault) {
  const auto program = cli::make_program();
  visit_commands(*program, [](const CLI::App& command) {
    for (const CLI::Option* option : cli::shown_options(command)) {
      if (!cli::takes_value(*option) || option->get_required()) continue;
      const std::string description = option->get_description();
      EXPECT_TRUE(!option->get_default_str().empty() || description.find("default") != std::string::npos)
          << cli::full_name(command) << " " << cli::name_of(*option) << ": " << description;
    }
  });
}

TEST(Usage, NearestFindsWhatWasMeant) {
  const Words names = {"--batch",         "--batch-tokens", "--lr",       "--out",
                       "--output-format", "--seq",          "--val-every"};
  const auto near = [&](const char* word) { return cli::nearest(word, names).value_or("nothing"); };
  EXPECT_EQ(near("--bacth"), "--batch");
  EXPECT_EQ(near("--batch-size"), "--batch");
  EXPECT_EQ(near("--batch-token"), "--batch-tokens");
  EXPECT_EQ(near("--output"), "--out");
  EXPECT_EQ(near("--learning-rate"), "--lr");
  EXPECT_EQ(near("--lora"), "nothing");
  EXPECT_EQ(near("--r"), "nothing");
  EXPECT_EQ(near("--val"), "--val-every");
  EXPECT_EQ(near(""), "nothing");
  EXPECT_EQ(near(std::string(1 << 20, 'x').c_str()), "nothing");
}

TEST_F(UsageTest, HelpIsGivenHoweverItIsAskedFor) {
  succeeds({"help"});
  const std::string top = output_;
  EXPECT_NE(top.find("WARPWRIGHT_FORCE"), std::string::npos);
  for (const char* command : {"completion", "man"}) EXPECT_NE(top.find(command), std::string::npos);
  for (const Words& line : {Words{"--help"}, {"-h"}, {"--help", "train"}}) {
    succeeds(line);
    EXPECT_EQ(output_, top);
  }
  succeeds({"help", "tune"});
  for (const char* words :
       {"other operations are not tuned", "warpwright/tuned/GPU.json", "$XDG_CACHE_HOME, or ~/.cache"}) {
    EXPECT_NE(output_.find(words), std::string::npos) << output_;
  }
  succeeds({"help", "data", "build"});
  const std::string build = output_;
  EXPECT_NE(build.find("Usage: warpwright data build"), std::string::npos) << build;
  for (const Words& line :
       {Words{"data", "build", "--help"}, {"data", "build", "--seed", "x", "-h", "--what"}}) {
    succeeds(line);
    EXPECT_EQ(output_, build);
  }
  const auto program = cli::make_program();
  visit_commands(*program, [&](const CLI::App& command) {
    EXPECT_EQ(cli::help_of(command).find("WARPWRIGHT_FORCE") != std::string::npos, !command.get_parent());
  });
  succeeds({"-V"});
  const std::string version = output_;
  succeeds({"--version"});
  EXPECT_EQ(output_, version);
}

// A new option missing from identity_of() and settings_of() would silently fall back to its default.
TEST_F(UsageTest, EveryOptionOfTrainIsSavedWithTheRun) {
  // --dtype saves tf32.
  const std::set<std::string> elsewhere = {"tf32",      "model",    "family", "layers", "heads",
                                           "key-heads", "channels", "hidden", "vocab",  "context"};
  const std::set<std::string> of_one_start = {"help",
                                              "out",
                                              "resume",
                                              "plan",
                                              "allow-data-change",
                                              "allow-tokenizer-change",
                                              "tuned-table",
                                              "gpus",
                                              "collective-timeout"};
  make_data();
  succeeds(train_arguments("run"));
  const auto state =
      nlohmann::json::parse(read_file(folder / "run/checkpoints/step_00000004/trainer.json", 1 << 20));
  std::set<std::string> saved;
  for (const char* part : {"options", "settings"}) {
    for (const auto& [key, value] : state[part].items()) {
      std::string name = key == "T" ? "seq" : key;
      std::ranges::replace(name, '_', '-');
      if (!elsewhere.contains(name)) saved.insert(name);
    }
  }
  const auto program = cli::make_program();
  std::set<std::string> options;
  for (const CLI::Option* option : program->get_subcommand("train")->get_options()) {
    const std::string name = option->get_lnames().front();
    if (!elsewhere.contains(name) && !of_one_start.contains(name)) options.insert(name);
  }
  EXPECT_EQ(saved, options);
}

// An option that restore() takes is refused if the checkpoint has it in a type that it never has.
TEST(TrainFlags, RestoreEveryOptionOfACheckpoint) {
  TrainOptions options;
  options.data = "data";
  options.step.model =
      std::make_shared<GPT2Decoder>(GPT2Config{.layers = 1, .heads = 1, .channels = 8, .vocab = 64});
  const Context context{ContextOptions{}};
  const nlohmann::json identity = identity_of(options), settings = settings_of(options, context);
  const auto restore = [](const nlohmann::json& of_step, const nlohmann::json& others) {
    CLI::App app;
    cli::TrainFlags flags;
    flags.add_to(app);
    SavedRun saved;
    saved.state.options = of_step;
    saved.state.settings = others;
    flags.restore(app, saved);
  };
  restore(identity, settings);
  for (const nlohmann::json& all : {identity, settings}) {
    for (const auto& [key, value] : all.items()) {
      if (key == "model" || key == "tf32") continue;  // read apart from the others
      nlohmann::json wrong = all;
      wrong[key] = nlohmann::json::object();
      const bool of_step = identity.contains(key);
      EXPECT_THROW(restore(of_step ? wrong : identity, of_step ? settings : wrong), Error) << key;
    }
  }
}

}  // namespace
}  // namespace warpwright
