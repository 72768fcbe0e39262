// Tests the command line as a user meets it: the whole way from text to a sample, and every kind of bad
// input.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "data/shard_bytes.hpp"
#include "runtime/device.hpp"
#include "tests/cli_fixture.hpp"
#include "tests/tiny_bert.hpp"
#include "tests/tiny_tensors.hpp"
#include "text/split_expression.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

TEST_F(CliTest, AnEncodersLayersAreTimedAlone) {
  const std::vector<std::string> bench = {"bench",    "encoder",  "--model", "minilm",    "--dtype",
                                          "fp32",     "--device", "cpu",     "--lengths", "3,5",
                                          "--rounds", "1",        "--json"};
  const auto operations = [&](const std::vector<std::string>& arguments) {
    succeeds(arguments);
    std::set<std::string> names;
    const auto report = nlohmann::json::parse(output_);
    for (const auto& row : report["ops"]) names.insert(row["op"]);
    return names;
  };
  std::set<std::string> whole = operations(bench);
  std::vector<std::string> alone = bench;
  alone.push_back("--layers-alone");
  EXPECT_EQ(whole.erase("embedding_layernorm.forward") + whole.erase("pooling.forward"), 2u);
  EXPECT_EQ(operations(alone), whole);
}

TEST_F(CliTest, LengthsThatCannotBeBenchedAreNamed) {
  make_tiny_bert(folder / "bert");
  const auto refused = [&](const std::string& lengths, const std::vector<std::string>& words,
                           const std::string& batch = "16384") {
    fails(2, {"bench", "encoder", "--model", path("bert"), "--lengths", lengths, "--batch-tokens", batch},
          words);
  };
  refused("0", {"--lengths: has no tokens"});
  refused("5;0x3", {"--lengths: has no tokens"});
  refused("3,600", {"--lengths: has 600 tokens, but the model has positions for 48"});
  refused("40", {"--lengths: has 40 tokens, but a batch holds 30", "--batch-tokens"}, "30");
  refused("3,y", {"--lengths: \"y\" is not a length"});
  refused("3", {"--batch-tokens: is 999999999999"}, "999999999999");
}

// A batch is full if it has its most tokens or its most sequences.
TEST_F(CliTest, BenchedTextsAreCutIntoBatchesThatFit) {
  succeeds({"bench", "encoder", "--model", "minilm", "--lengths", "0x70,3", "--batch-tokens", "64",
            "--rounds", "1", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output_)["batches"], 2);
}

TEST_F(CliTest, PaddedTextsGiveTheStatesOfPackedOnes) {
  succeeds({"bench", "encoder", "--model", "minilm", "--device", "cpu", "--lengths", "9,3,5;7",
            "--batch-tokens", "20", "--rounds", "1", "--padded", "--json"});
  for (const auto& report : nlohmann::json::parse(output_)) {
    EXPECT_TRUE(report["padded"]);
    EXPECT_LE(report.at("difference_from_packed"), 1e-5);
  }
}

TEST_F(CliTest, FromTextToASample) {
  make_data();
  succeeds(train_arguments("run", {"--checkpoint-every", "2", "--val-every", "4", "--sample-every", "4"}));
  EXPECT_NE(output_.find("validation loss"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000004/trainer.json"));
  std::ifstream metrics(folder / "run/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    EXPECT_EQ(nlohmann::json::parse(line)["step"], lines + 1);
  }
  EXPECT_EQ(lines, 4);
  const std::vector<std::string> generate = {"generate", "--model", path("run/model"), "--prompt", "the cat",
                                             "--seed",   "5",       "--max-tokens",    "60"};
  succeeds(generate);
  const std::string first = output_;
  EXPECT_EQ(first.rfind("the cat", 0), 0u);
  succeeds(generate);
  EXPECT_EQ(output_, first);  // a pure function of model, prompt and seed
  succeeds({"eval", "--model", path("run/model"), "--data", path("data"), "--baselines", "--json"});
  const auto report = nlohmann::json::parse(output_);
  EXPECT_GT(report["unigram_loss"], report["bigram_loss"]);
  EXPECT_NEAR(report["perplexity"], std::exp(report["loss"].get<double>()), 1e-6);
}

TEST_F(CliTest, ConvertsBothWaysBitForBit) {
  make_data();
  succeeds(train_arguments("run"));
  succeeds({"convert", "--from", path("run/model"), "--to", path("model.bin"), "--format", "llmc"});
  succeeds({"convert", "--from", path("model.bin"), "--to", path("back"), "--format", "hf"});
  EXPECT_EQ(read_file(folder / "run/model/model.safetensors", 1 << 26),
            read_file(folder / "back/model.safetensors", 1 << 26));
  succeeds(
      {"convert", "--from", path("run/model"), "--to", path("b.bin"), "--format", "llmc", "--dtype", "bf16"});
  succeeds({"convert", "--from", path("b.bin"), "--to", path("b"), "--format", "hf"});
  succeeds({"convert", "--from", path("b"), "--to", path("c.bin"), "--format", "llmc"});
  EXPECT_EQ(read_file(folder / "b.bin", 1 << 26), read_file(folder / "c.bin", 1 << 26));
}

TEST_F(CliTest, TokenizerLinesGoBothWays) {
  make_data();
  put("lines", "the cat sat\n\n  two  spaces \xff and bytes\n");
  succeeds({"tokenizer", "encode", "--tokenizer", path("tok"), "--input", path("lines")});
  put("ids", output_);
  succeeds({"tokenizer", "decode", "--tokenizer", path("tok"), "--input", path("ids")});
  EXPECT_EQ(output_, read_file(folder / "lines", 1 << 20));
  put("bad", "12 x 3\n");
  fails(1, {"tokenizer", "decode", "--tokenizer", path("tok"), "--input", path("bad")}, {"line 1", "'x'"});
  put("big", "99999\n");
  fails(1, {"tokenizer", "decode", "--tokenizer", path("tok"), "--input", path("big")}, {"line 1", "99999"});
}

TEST_F(CliTest, TokenizersOfOtherFamiliesAreTrainedReadAndCopied) {
  make_data();
  const std::vector<std::string> train = {"tokenizer", "train",        "--input", path("text.txt"), "--out",
                                          path("cut"), "--vocab-size", "300",     "--pattern"};
  const auto with = [&](const char* pattern) {
    std::vector<std::string> arguments = train;
    arguments.emplace_back(pattern);
    return arguments;
  };
  fails(2, with("gpt5"), {"--pattern", "cl100k"});
  succeeds(with("cl100k"));
  EXPECT_FALSE(std::filesystem::exists(folder / "cut/vocab.json"));  // which could not name the pattern
  auto document = nlohmann::json::parse(read_file(folder / "cut/tokenizer.json", 1 << 20));
  EXPECT_EQ(document["pre_tokenizer"]["pretokenizers"][0]["type"], "Split");
  const nlohmann::json begin = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                       text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                       token = {{"id", "<|endoftext|>"}, {"ids", {0}}, {"tokens", {"<|endoftext|>"}}};
  document["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {begin, text}},
                                {"pair", {begin, text}},
                                {"special_tokens", {{"<|endoftext|>", token}}}};
  put("cut/tokenizer.json", document.dump());
  put("lines", "the cat\n");
  succeeds({"tokenizer", "encode", "--tokenizer", path("cut"), "--input", path("lines")});
  const std::string plain = output_;
  succeeds({"tokenizer", "encode", "--tokenizer", path("cut"), "--input", path("lines"), "--template"});
  EXPECT_EQ(output_, "0 " + plain);
  succeeds(
      {"data", "build", "--tokenizer", path("cut"), "--input", path("text.txt"), "--out", path("cut_data")});
  const auto copy = nlohmann::json::parse(read_file(folder / "cut_data/tokenizer.json", 1 << 20));
  EXPECT_EQ(copy["pre_tokenizer"], document["pre_tokenizer"]);
  EXPECT_EQ(copy["post_processor"]["processors"][1]["single"], document["post_processor"]["single"]);
  document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+\\R";
  put("cut/tokenizer.json", document.dump());
  fails(1, {"tokenizer", "encode", "--tokenizer", path("cut")},
        {"cut/tokenizer.json", "pattern.Regex", "R\" at byte 3", "not supported"});
}

TEST_F(CliTest, MultipleChoiceInHellaSwagsForm) {
  make_data();
  succeeds(train_arguments("run"));
  put("q.jsonl", R"({"ctx": "the cat", "endings": ["sat on", "run run run", "a", "dog"], "label": 0})"
                 "\n"
                 R"({"ctx": "a dog", "endings": ["saw", "mat"], "label": "1"})"
                 "\n");
  succeeds({"eval", "--model", path("run/model"), "--choices", path("q.jsonl"), "--json"});
  EXPECT_EQ(nlohmann::json::parse(output_)["questions"], 2);
  put("bad.jsonl", R"({"ctx": "the cat", "endings": ["sat on"], "label": 3})"
                   "\n");
  const std::vector<std::string> eval = {"eval", "--model", path("run/model"), "--choices",
                                         path("bad.jsonl")};
  fails(1, eval, {"bad.jsonl:1", "\"label\" is 3, but there are 1 endings"});
  for (const char* label :
       {R"("zero")", R"("1x")", R"("")", "0.0", "true", "[0]", "18446744073709551616", R"(" 0")"}) {
    put("bad.jsonl", fmt::format(R"({{"ctx": "the cat", "endings": ["sat on", "a"], "label": {}}})", label));
    fails(1, eval, {"bad.jsonl:1", "\"label\" is", "not a whole number"});
  }
  put("bad.jsonl", R"({"ctx": "the cat", "endings": ["sat on"], "label": -1})");
  fails(1, eval, {"bad.jsonl:1", "\"label\" is -1"});
  put("bad.jsonl", "{\"ctx\": \"the\", \"other\": " + std::string(4 << 20, '[') + "\n");
  fails(1, eval, {"bad.jsonl:1", "nests deeper"});
}

// Checks data without data.json, and data with one.
TEST_F(CliTest, EvalRefusesIdsBeyondTheVocabularyBeforeItRuns) {
  make_data();
  succeeds(train_arguments("run", {"--steps", "1"}));
  std::vector<std::uint16_t> ids(2000, 7);
  ids[1000] = 60000;
  put("other/val_000000.bin", shard_bytes(20240520, 1, 2000, ids));
  fs::copy(folder / "data/tokenizer.json", folder / "other/tokenizer.json");
  const std::vector<std::string> eval = {"eval",  "--model", path("run/model"), "--data", path("other"),
                                         "--seq", "8"};
  fails(1, eval, {"val_000000.bin", "token 1000 is 60000", "the vocabulary has"});
  std::vector<std::string> fewer = eval;
  fewer.insert(fewer.end(), {"--max-batches", "1"});
  succeeds(fewer);  // does not read as far as the bad id
  fs::copy(folder / "data", folder / "larger");
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(folder / "data/data.json"));
  manifest["vocabulary_size"] = 70000;
  put("larger/data.json", manifest.dump());
  std::vector<std::string> larger = eval;
  larger[4] = path("larger");
  fails(1, larger, {"larger", "ids of a vocabulary of 70000, but the model's has"});
}

TEST_F(CliTest, CompressedTextIsReadAndOtherFilesAreReported) {
  make_data();
  put("in/image.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\r", 12));
  ASSERT_EQ(std::system(fmt::format("gzip -c '{}' > '{}'", path("text.txt"), path("in/text.txt.gz")).c_str()),
            0);
  const std::string report = "skipped 1 file: PNG image (1, first " + path("in/image.png") + ")";
  succeeds({"tokenizer", "train", "--input", path("in"), "--vocab-size", "300", "--out", path("tok2")});
  EXPECT_NE(output_.find(report), std::string::npos) << output_;
  EXPECT_EQ(read_file(folder / "tok2/tokenizer.json", 1 << 26),
            read_file(folder / "tok/tokenizer.json", 1 << 26));
  std::vector<std::string> build = {"data",     "build", "--tokenizer", path("tok"),      "--input",
                                    path("in"), "--out", path("data2"), "--val-fraction", "0.1"};
  succeeds(build);
  EXPECT_NE(output_.find(report), std::string::npos) << output_;
  for (const char* shard : {"train_000000.bin", "val_000000.bin"}) {
    EXPECT_EQ(read_file(folder / "data2" / shard, 1 << 26), read_file(folder / "data" / shard, 1 << 26));
  }
  std::vector<std::string> binary = build;
  binary[7] = path("data3");
  binary.push_back("--binary");
  succeeds(binary);
  EXPECT_EQ(output_.find("skipped"), std::string::npos) << output_;
  fs::resize_file(folder / "in/text.txt.gz", 100);
  build.push_back("--force");
  fails(1, build, {"text.txt.gz: ends in the middle of its gzip data"});
}

// The way of a user who trains a Llama: free and named sizes, resumption, export and fine-tuning.
TEST_F(CliTest, ALlamaFromTrainingToASample) {
  make_data();
  const std::vector<std::string> small = {"--layers", "2",          "--heads", "4", "--channels", "32",
                                          "--data",   path("data"), "--batch", "2", "--seq",      "16"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::string> llama = {"train", "--family", "llama", "--key-heads", "2", "--hidden", "40"};
  succeeds(with(llama, {"--out", path("run"), "--steps", "4", "--val-every", "2", "--sample-every", "4"}));
  const nlohmann::json config = nlohmann::json::parse(read_file(folder / "run/model/config.json", 1 << 20));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["intermediate_size"], 40);
  EXPECT_EQ(config["rms_norm_eps"].dump(), "1e-05");
  const std::string model = path("run/model");
  succeeds({"eval", "--model", model, "--data", path("data"), "--json"});
  const double loss = nlohmann::json::parse(output_)["loss"];
  EXPECT_GT(loss, 1);
  succeeds({"generate", "--model", model, "--prompt", "the cat", "--max-tokens", "5", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output_)["tokens"], 5);
  // A folder, written again, is the same.
  succeeds({"convert", "--from", model, "--to", path("again"), "--format", "hf"});
  for (const char* file : {"config.json", "model.safetensors"})
    EXPECT_EQ(read_file(folder / "again" / file, 1 << 26), read_file(folder / "run/model" / file, 1 << 26));
  fails(2, {"convert", "--from", model, "--to", path("x.bin"), "--format", "llmc"}, {"GPT-2 only"});
  // It goes on after four steps as if there had been six from the start, and is the start of another run.
  succeeds(with(llama, {"--out", path("six"), "--steps", "6", "--schedule", "constant"}));
  succeeds(with(llama, {"--out", path("four"), "--steps", "4", "--schedule", "constant"}));
  succeeds({"train", "--resume", "--out", path("four"), "--steps", "6"});
  EXPECT_EQ(read_file(folder / "four/model/model.safetensors", 1 << 26),
            read_file(folder / "six/model/model.safetensors", 1 << 26));
  // The same sizes once more are no other model; others are.
  succeeds(with({"train", "--resume", "--family", "llama", "--key-heads", "2"},
                {"--out", path("four"), "--steps", "7"}));
  fails(1, {"train", "--resume", "--out", path("four"), "--layers", "3", "--steps", "8"},
        {"warpwright: --layers: ", "num_hidden_layers 3"});
  fails(1, {"train", "--resume", "--out", path("four"), "--key-heads", "4", "--hidden", "40", "--steps", "8"},
        {"warpwright: --key-heads, --hidden: ", "num_key_value_heads 2", "num_key_value_heads 4"});
  fails(2, {"train", "--resume", "--out", path("four"), "--family", "gpt2"},
        {"--family", "is gpt2", "is llama"});
  succeeds({"train", "--model", model, "--data", path("data"), "--out", path("tuned"), "--steps", "1",
            "--batch", "2", "--seq", "16"});
  // Options that do not fit together.
  fails(2, with({"train", "--key-heads", "2"}, {"--out", path("x"), "--steps", "1"}),
        {"--key-heads", "gpt2"});
  fails(2, with({"train", "--family", "llama", "--key-heads", "3"}, {"--out", path("x"), "--steps", "1"}),
        {"3 key heads do not divide 4 heads"});
  fails(2, {"train", "--family", "llama", "--data", path("data"), "--out", path("x")},
        {"--model", "--layers"});
  fails(2, {"plan", "--model", "smollm2:135M", "--key-heads", "3", "--batch", "1"},
        {"--key-heads", "leave it out"});
  fails(2, {"plan", "--model", "smollm2:1B", "--batch", "1"}, {"smollm2:1B", "smollm2:135M"});
  const auto refuses_name = [&](const char* name, const std::vector<std::string>& words) {
    fails(2, {"train", "--model", name, "--data", path("data"), "--out", path("x")}, words);
    fails(2, {"bench", "step", "--model", name}, words);
  };
  refuses_name("qwen2:0.5B", {"--model", "'qwen2:0.5B'", "the nearest is qwen2.5:0.5B", "pythia:70M"});
  refuses_name("qwen2.5:0.6B", {"--model", "'qwen2.5:0.6B'", "the nearest is qwen2.5:0.5B"});
  refuses_name("gpt2:125M", {"--model", "'125M'", "the nearest is gpt2:124M"});
  refuses_name("mamba:unlike", {"--model", "'mamba:unlike'", "use gpt2:124M"});
  fails(2, {"plan", "--model", model, "--vocab", "7", "--batch", "1"}, {"--vocab", "folder"});
}

TEST_F(CliTest, AModelOfAnotherArchitectureIsReportedAsSuch) {
  put("mamba/config.json", R"({"model_type": "mamba", "hidden_size": 64})");
  put("mamba/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  put("texts", "a line\n");
  const std::string mamba = path("mamba");
  const std::vector<std::string> words = {
      "config.json: model_type mamba; this version runs gpt2, llama, mistral, qwen2, qwen3, gpt_neox, "
      "bert, roberta"};
  fails(1, {"generate", "--model", mamba}, words);
  fails(1, {"eval", "--model", mamba, "--data", folder}, words);
  fails(1, {"convert", "--from", mamba, "--to", path("x"), "--format", "hf"}, words);
  fails(1, {"train", "--model", mamba, "--data", folder, "--out", path("run"), "--steps", "1"}, words);
  fails(1, {"embed", "--model", mamba, "--input", path("texts")}, words);
  fails(1, {"rank", "--model", mamba, "--query", "x", "--input", path("texts")}, words);
  fails(1, {"bench", "encoder", "--model", mamba}, words);
}

TEST_F(CliTest, HelpEverywhere) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"info"},
                                                {"tokenizer"},
                                                {"tokenizer", "train"},
                                                {"tokenizer", "encode"},
                                                {"tokenizer", "decode"},
                                                {"data"},
                                                {"data", "build"},
                                                {"train"},
                                                {"eval"},
                                                {"generate"},
                                                {"convert"},
                                                {"bench"},
                                                {"bench", "ops"},
                                                {"bench", "step"},
                                                {"bench", "encoder"},
                                                {"bench", "products"},
                                                {"bench", "schedules"},
                                                {"roofline"}}) {
    auto arguments = words;
    arguments.push_back("--help");
    succeeds(arguments);
    EXPECT_NE(output_.find("--help"), std::string::npos);
  }
  succeeds({"--help"});
  EXPECT_NE(output_.find("WARPWRIGHT_FORCE"), std::string::npos);
  succeeds({"info", "--json"});
  EXPECT_TRUE(nlohmann::json::parse(output_)["ops"].contains("matmul.forward"));
  EXPECT_EQ(nlohmann::json::parse(output_)["regular_expressions"], text::SplitExpression::engine());
}

TEST_F(CliTest, InfoSaysWhereTheNumberOfThreadsComesFrom) {
  const auto info = [&](const std::string& environment) {
    const std::string command =
        fmt::format("{} '{}' info --json > '{}'", environment, WARPWRIGHT_BINARY, path("info"));
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return nlohmann::json::parse(read_file(folder / "info", 1 << 20));
  };
  EXPECT_EQ(info("OMP_NUM_THREADS=3")["threads"], 3);
  EXPECT_EQ(info("OMP_NUM_THREADS=3")["threads_from"], "OMP_NUM_THREADS");
  const auto pinned = info("unset OMP_NUM_THREADS; taskset -c \"$(taskset -cp $$ | sed 's/.*[ ,-]//')\"");
  EXPECT_EQ(pinned["affinity_processors"], 1);
  EXPECT_EQ(pinned["threads"], 1);
  EXPECT_EQ(pinned["threads_from"], "the affinity mask");
  put("text.txt", "some text");
  for (const char* command : {"info", "tokenizer train --input text.txt --vocab-size 300 --out tok"}) {
    shell_fails(2, fmt::format("OMP_NUM_THREADS=100000 $W {}", command),
                {"OMP_NUM_THREADS: '100000' is not a number of threads", "4096"});
  }
}

TEST_F(CliTest, MoreThreadsThanFourForAProcessorAreRefused) {
  const char* of_one = "taskset -c \"$(taskset -cp $$ | sed 's/.*[ ,-]//')\" $W train --data no --out run";
  shell_fails(2, fmt::format("{} --threads 5", of_one),
              {"--threads", "is 5, give 0 to 4: this process may use 1 processor"});
  shell_fails(1, fmt::format("{} --threads 4", of_one), {"no: is not a folder"});
}

// libgomp prints its wait policy when it starts.
TEST_F(CliTest, ThreadsSpinForAShortTimeUnlessTheEnvironmentChooses) {
  const auto turns = [&](const std::string& environment) {
    const std::string command = fmt::format(
        "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose {} '{}' --version 2> '{}' > "
        "/dev/null",
        environment, WARPWRIGHT_BINARY, path("display"));
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    const std::string text = read_file(folder / "display", 1 << 20);
    const std::size_t at = text.rfind("GOMP_SPINCOUNT = '");
    return at == std::string::npos ? "" : text.substr(at + 18, text.find('\'', at + 18) - at - 18);
  };
  if (turns("").empty()) GTEST_SKIP() << "needs libgomp";
  EXPECT_EQ(turns(""), "20000");
  EXPECT_EQ(turns("GOMP_SPINCOUNT=77"), "77");
  EXPECT_EQ(turns("OMP_WAIT_POLICY=passive"), "0");
}

TEST_F(CliTest, WrongUsageIsExitCode2) {
  make_data();
  const auto train = [&](const std::vector<std::string>& more, const std::vector<std::string>& words) {
    fails(2, train_arguments("never", more), words);
    EXPECT_FALSE(fs::exists(folder / "never"));
  };
  fails(2, {"fly"}, {"--help"});
  fails(2, {}, {"--help"});
  fails(2, {"train", "--no-such-flag"}, {"`warpwright train --help`"});
  fails(2, {"data", "build", "--no-such-flag"}, {"`warpwright data build --help`"});
  fails(2, {"bench", "ops", "reduction"}, {"reduction", "adamw"});
  const auto step = [&](std::vector<std::string> flags, const std::vector<std::string>& words) {
    flags.insert(flags.begin(), {"bench", "step", "--model", "gpt2:d1", "--seq", "16"});
    fails(2, flags, words);
  };
  step({"--batch", "18014398509481985"}, {"--batch", "1048576"});
  step({"--logits-mib", "0"}, {"--logits-mib", "0"});
  step({"--logits-mib", "1048577"}, {"--logits-mib", "1048576"});
  step({"--memory-efficient-norm", "--recompute", "block"}, {"--memory-efficient-norm", "--recompute"});
  for (const char* shapes : {"8x8", "8x8x0", "fp16:8x8x8", "12:8x8x8", ":8x8x8", "residual:", "random:3:1:1",
                             "random:3:0", "random:3:9223372036854775808"}) {
    fails(2, {"bench", "products", shapes}, {shapes, "is no", "residual:MxNxK"});
    fails(2, {"bench", "schedules", shapes}, {shapes, "is no", "residual:MxNxK"});
  }
  train({"--heads", "3"}, {"--heads", "3 heads", "32"});
  train({"--keep", "-1"}, {"--keep: is -1"});
  train({"--val-batches", "-2"}, {"--val-batches: is -2"});
  train({"--batch", "0"}, {"--batch"});
  train({"--context", "16"}, {"--seq", "32", "16"});
  train({"--total-batch", "100"}, {"--total-batch", "100"});
  train({"--steps", "0"}, {"--steps"});
  train({"--lr", "-1"}, {"--lr"});
  train({"--dtype", "fp8"}, {"--dtype", "fp8"});
  train({"--schedule", "cosin"}, {"--schedule", "cosin"});
  train({"--device", "tpu"}, {"--device"});
  train({"--device", "cuda:x"}, {"--device"});
  fails(1, train_arguments("never", {"--device", "cuda:77"}), {"cuda:77"});
  train({"--tuned"}, {"--tuned", "--device cuda"});
  train({"--tuned-table", "table.json"}, {"--tuned-table", "--device cuda"});
  fails(2, {"tune", "--device", "cpu"}, {"tune", "--device cuda"});
  fails(1, {"tune", "--device", "cuda:77"}, {"cuda:77"});
  train({"--dtype", "tf32"}, {"--dtype"});
  train({"--master-weights", "none"}, {"--master-weights", "--dtype bf16"});
  train({"--dtype", "bf16", "--master-weights", "bf16"}, {"--master-weights", "bf16"});
  train({"--model", "gpt2:124M"}, {"--model"});
  fails(2, {"train", "--model", "gpt2:123M", "--data", path("data"), "--out", path("never")}, {"123M"});
  fails(1, {"train", "--model", path("nowhere"), "--data", path("data"), "--out", path("never")},
        {"nowhere: is neither FAMILY:SIZE nor a folder"});
  setenv("WARPWRIGHT_FORCE", "matmull=cpu.avx2", 1);
  fails(2, train_arguments("never"), {"WARPWRIGHT_FORCE", "matmull"});
  setenv("WARPWRIGHT_FORCE", "matmul=cpu.avx1", 1);
  fails(2, train_arguments("never"), {"WARPWRIGHT_FORCE", "cpu.avx1"});
  setenv("WARPWRIGHT_FORCE", "matmul=\xff\x1b", 1);
  fails(2, train_arguments("never"), {"WARPWRIGHT_FORCE", "no variant '\ufffd\\x1b'"});
  setenv("WARPWRIGHT_FORCE", "\xff\x1b=reference", 1);
  fails(2, train_arguments("never"), {"WARPWRIGHT_FORCE", "no operation '\ufffd\\x1b'"});
  unsetenv("WARPWRIGHT_FORCE");
}

TEST_F(CliTest, LinksToThemselvesAreExitCode1) {
  fs::create_directories(folder / "run/checkpoints");
  fs::create_symlink("step_00000004", folder / "run/checkpoints/step_00000004");
  fs::create_symlink("loop", folder / "loop");
  const std::vector<std::string> words = {"step_00000004: ", "symbolic links", "check the path"};
  fails(1, {"train", "--resume", "--out", path("run")}, words);
  fails(1, {"generate", "--model", path("run"), "--prompt", "x"}, words);
  fails(1, {"generate", "--model", path("loop"), "--prompt", "x"}, {"loop: ", "symbolic links"});
}

TEST_F(CliTest, MissingFoldersAreExitCode1) {
  fails(1, {"train", "--model", "gpt2:d2", "--data", path("nodata"), "--out", path("never")}, {"nodata"});
  put("texts/a.txt", "the cat");
  fails(1, {"train", "--model", "gpt2:d2", "--data", path("texts"), "--out", path("never")},
        {"texts", "`warpwright data build --tokenizer"});
}

// Refused by the data, by a file in the way, by the memory plan and while the weights are read.
TEST_F(CliTest, ARefusedStartLeavesNothing) {
  make_data();
  fs::create_directories(folder / "empty");
  put("used/metrics.jsonl", "not a run's");
  put("short/val_000000.bin", "not a shard");
  fs::copy_file(folder / "data/train_000000.bin", folder / "short/train_000000.bin");
  fs::copy_file(folder / "data/data.json", folder / "short/data.json");
  succeeds(train_arguments("start", {"--steps", "1"}));
  const std::string checkpoint = "start/checkpoints/step_00000001";
  std::string weights = read_file(folder / checkpoint / "model.safetensors", 1 << 26);
  weights.back() ^= 1;
  put(checkpoint + "/model.safetensors", weights);
  const auto refused = [&](const std::string& name, const std::vector<std::string>& more,
                           const std::string& word) { fails(1, train_arguments(name, more), {word}); };
  for (const std::string name : {"never", "deep/never", "empty"}) {
    refused(name, {"--data", path("short"), "--val-every", "1"}, "val_000000.bin");
    refused(name, {"--heads", "256", "--channels", "65536"}, "memory plan");
    fails(1,
          {"train", "--model", path(checkpoint), "--data", path("data"), "--out", path(name), "--seq", "32"},
          {"model.safetensors"});
  }
  EXPECT_FALSE(fs::exists(folder / "never"));
  EXPECT_FALSE(fs::exists(folder / "deep"));
  EXPECT_TRUE(fs::is_empty(folder / "empty"));
  refused("used", {}, "is not the metrics of a run");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "used"), {}), 1);
}

TEST_F(CliTest, TuneNeedsAGpu) {
  fails(2, {"tune", "--device", "cpu"}, {"tune: needs an NVIDIA GPU", "--device cuda"});
  if (cuda_device_count() > 0) return;
  fails(1, {"tune", "--device", "cuda"}, {"cuda:0", "tune needs an NVIDIA GPU"});
}

TEST_F(CliTest, BenchesWhoseFilterMatchesNothingFail) {
  fails(2, {"bench", "ops", "residual", "--filter", "zzz"}, {"--filter", "no row contains \"zzz\""});
}

#ifdef WARPWRIGHT_FAKE_DRIVER
TEST_F(CliTest, DriversThatAreTooOldOrFindNoGpuAreNamed) {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string others = before ? before : "";
  setenv("LD_LIBRARY_PATH", (WARPWRIGHT_FAKE_DRIVER ":" + others).c_str(), 1);
  setenv("FAKE_DRIVER_CUDA", "11020", 1);
  fails(1, {"roofline", "--device", "cuda"}, {"cuda:0", "driver offers CUDA 11.2", "needs"});
  succeeds({"info"});
  setenv("FAKE_DRIVER_CUDA", "99000", 1);
  fails(1, {"roofline", "--device", "cuda:1"}, {"cuda:1", "no NVIDIA GPU"});
  unsetenv("FAKE_DRIVER_CUDA");
  before ? setenv("LD_LIBRARY_PATH", others.c_str(), 1) : unsetenv("LD_LIBRARY_PATH");
}
#endif

TEST_F(CliTest, WhatDoesNotFitInMemorySaysWhatWould) {
  constexpr std::int32_t kBatch = 65536, kSeq = 64, kTokens = (kBatch + 1) * kSeq + 1;
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = kTokens;
  std::string shard(reinterpret_cast<const char*>(header.data()), header.size() * sizeof(header[0]));
  shard.resize(shard.size() + 2 * static_cast<std::size_t>(kTokens));
  for (const char* name : {"many/tokens_train_000000.bin", "many/tokens_val_000000.bin"}) put(name, shard);
  const auto refused = [&](std::vector<std::string> sizes, const std::vector<std::string>& words) {
    sizes.insert(sizes.begin(), {"train", "--seq", "64", "--data", path("many"), "--out", path("never")});
    fails(1, sizes, words);
  };
  refused({"--model", "gpt2:124M", "--batch", std::to_string(kBatch)},
          {"memory plan", "; --batch", "--recompute block would need"});
  refused({"--layers", "4", "--heads", "256", "--channels", "65536", "--vocab", "300", "--batch", "4"},
          {"memory plan", "smaller model", "--batch 1 --recompute block would need"});
  refused({"--layers", "4", "--heads", "256", "--channels", "65536", "--vocab", "300", "--batch", "4",
           "--memory-efficient-norm"},
          {"memory plan", "smaller model", "--batch 1 --recompute gelu would need"});
  // A smaller --batch would add sums of slices, which take more than the activations.
  refused({"--layers", "4", "--heads", "256", "--channels", "65536", "--vocab", "300", "--batch", "4",
           "--total-batch", "512"},
          {"memory plan", "smaller model or --seq: --recompute block would need"});
  // The logits of this slice take 1 TiB and all else little: fewer logits at a time are enough.
  if (available_memory() >> 40 > 0) return;  // a machine on which they fit
  const ProcessResult logits =
      run({"train", "--seq", "64", "--data", path("many"), "--out", path("never"), "--layers", "1", "--heads",
           "1", "--channels", "8", "--vocab", "4194304", "--batch", "1024", "--logits-mib", "1048576"});
  EXPECT_EQ(logits.code, 1) << logits.err;
  EXPECT_TRUE(std::regex_search(logits.err, std::regex("memory plan.*; --logits-mib [0-9]+ would need")))
      << logits.err;
}

TEST_F(CliTest, ATextWithFewPairsGivesFewTokens) {
  put("short.txt", "ab ab");
  succeeds(
      {"tokenizer", "train", "--input", path("short.txt"), "--vocab-size", "1000", "--out", path("short")});
  EXPECT_NE(output_.find("fewer than the 1000 asked for"), std::string::npos) << output_;
}

TEST_F(CliTest, NumbersAreTakenAsWrittenOrNotAtAll) {
  make_data();
  const auto train = [&](const std::vector<std::string>& more, const std::vector<std::string>& words) {
    fails(2, train_arguments("never", more), words);
    EXPECT_FALSE(fs::exists(folder / "never"));
  };
  train({"--seed", "-1"}, {"--seed", "-1"});
  train({"--seed", "18446744073709551616"}, {"--seed", "18446744073709551616"});
  train({"--steps", "9223372036854775808"}, {"--steps", "9223372036854775808"});
  train({"--steps", "010"}, {"--steps", "010"});  // not read as octal 8
  train({"--steps", "0x10"}, {"--steps", "0x10"});
  train({"--batch", "4611686018427387904"}, {"--batch", "too many"});
  train({"--vocab", "-5"}, {"--vocab", "-5"});
  train({"--context", "-5"}, {"--context", "-5"});
  train({"--total-batch", "-64"}, {"--total-batch", "-64"});
  train({"--lr", "nan"}, {"--lr", "nan"});
  train({"--lr", "1e999"}, {"--lr", "1e999"});
  train({"--eps", "1e308"}, {"--eps"});
  train({"--clip", "inf"}, {"--clip", "inf"});
  train({"--skip-loss-z", "-1"}, {"--skip-loss-z", "-1"});
  train({"--data", ""}, {"--data", "empty"});
  train({"--out", ""}, {"--out", "empty"});
  fails(2, {"tokenizer", "train", "--input", path("text.txt"), "--vocab-size", "300", "--out", ""},
        {"--out"});
  fails(
      2,
      {"tokenizer", "train", "--input", path("text.txt"), "--vocab-size", "2000000000", "--out", path("no")},
      {"2000000000", "to 1073741824"});
  const auto evaluate = [&](const char* flag, const char* value) {
    fails(2, {"eval", "--model", path("run/model"), "--data", path("data"), flag, value}, {flag, value});
  };
  evaluate("--batch", "9223372036854775807");
  evaluate("--seq", "-1");
  evaluate("--max-batches", "-1");
  fails(2, {"generate", "--model", path("run/model"), "--max-tokens", "-1"},
        {"--max-tokens", "-1", "0 or more"});
}

TEST_F(CliTest, OutputThatNobodyTakesIsAnError) {
  make_data();
  for (const char* command : {"info", "info --json", "--version", "train --help", "roofline --gpu h200",
                              "tokenizer encode --tokenizer tok --input text.txt"}) {
    for (const char* output : {"> /dev/full", ">&-"}) {
      shell_fails(1, fmt::format("$W {} {}", command, output), {"standard output", "free space"});
    }
  }
  shell_fails(1, "$W info > /dev/full 2>&-", {});
  shell_fails(1, "$W generate --model nowhere 2> /dev/full", {});
}

TEST_F(CliTest, ClosedStreamsAreNotTheRunsFiles) {
  make_data();
  const std::string train =
      "$W train --layers 1 --heads 1 --channels 8 --seq 16 --batch 1 --steps 3 --data data";
  shell_fails(1, train + " --out run >&-", {"standard output"});
  shell_fails(0, train + " --out run > out <&- 2>&-", {});
  const std::string lock = read_file(folder / "run/lock", 1 << 20);
  EXPECT_EQ(lock.rfind("warpwright process ", 0), 0u) << lock;
  EXPECT_EQ(lock.find('\n'), lock.size() - 1) << lock;
  std::ifstream metrics(folder / "run/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST_F(CliTest, TrainingWhoseReaderLeavesWritesACheckpoint) {
  make_data();
  shell_fails(
      0,
      "($W train --layers 1 --heads 1 --channels 8 --seq 16 --batch 1 --steps 1000000 --data data --out run; "
      "echo $? > code) 2> message | head -n 1 > out",
      {});
  EXPECT_EQ(read_file(folder / "code", 16), "1\n");
  EXPECT_NE(read_file(folder / "message", 1 << 20).find("--resume"), std::string::npos);
  EXPECT_FALSE(fs::is_empty(folder / "run/checkpoints"));
}

TEST_F(CliTest, HostileNamesAreOneLine) {
  make_data();
  fs::create_symlink("loop", folder / "loop");
  for (const std::string& name :
       {path("loop"), path(std::string(300, 'x')), path("two\nlines"), path("\x1b[31m")}) {
    const auto refused = [&](const std::vector<std::string>& arguments) {
      const ProcessResult r = run(arguments);
      EXPECT_TRUE(r.code == 1 || r.code == 2) << r.err;
      EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
      EXPECT_EQ(r.err.find("filesystem error"), std::string::npos) << r.err;
      EXPECT_EQ(r.err.find('\x1b'), std::string::npos) << r.err;
      EXPECT_NE(r.err.find("; "), std::string::npos) << r.err;
    };
    refused({"train", "--model", name, "--data", path("data"), "--out", path("never")});
    refused({"train", "--model", "gpt2:d1", "--data", name, "--out", path("never")});
    refused({"generate", "--model", name});
    refused({"eval", "--model", name, "--data", path("data")});
    refused({"convert", "--from", name, "--to", path("never"), "--format", "hf"});
    refused({"embed", "--model", name, "--input", path("text.txt")});
    refused({"tokenizer", "encode", "--tokenizer", name});
    refused({name});
  }
}

TEST_F(CliTest, AFileBeyondTheLimitIsAnErrorAndLeavesNothing) {
  make_data();
  succeeds(train_arguments("run"));
  shell_fails(1, "ulimit -f 8 && $W convert --from run/model --to limited.bin --format llmc",
              {"limited.bin", "large"});
  shell_fails(1, "ulimit -f 8 && $W convert --from run/model --to limited --format hf", {"limited", "large"});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename().string().rfind("limited", 0), std::string::npos) << entry.path();
  }
}

TEST_F(CliTest, LinesThatDoNotEndAreRefused) {
  make_data();
  const std::string limit = "line 1 is longer than 256 MiB";
  fails(1, {"tokenizer", "encode", "--tokenizer", path("tok"), "--input", "/dev/zero"}, {"/dev/zero", limit});
  fails(1, {"tokenizer", "encode", "--tokenizer", path("tok"), "--input", path("tok")}, {"tok: is a folder"});
  shell_fails(1, "$W tokenizer encode --tokenizer tok < tok > out", {"standard input: is a folder"});
}

TEST_F(CliTest, DeepJsonIsRefusedBeforeItEndsTheStack) {
  make_data();
  succeeds(train_arguments("run", {"--checkpoint-every", "2"}));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const auto with = [](std::string json, const std::string& key, const std::string& value) {
    return json.insert(json.find('{') + 1, fmt::format("\"{}\": {},", key, value));
  };
  const std::string config = path("run/model/config.json");
  put("run/model/config.json", with(read_file(config, 1 << 20), "scale_attn_weights", deep));
  fails(1, {"generate", "--model", path("run/model")}, {"config.json", "nests deeper"});
  fs::remove_all(folder / "run/model");
  const std::string state = "run/checkpoints/step_00000004/trainer.json";
  put(state, with(read_file(folder / state, 1 << 20), "deep", deep));
  fs::remove_all(folder / "run/checkpoints/step_00000002");
  fails(1, train_arguments("run", {"--resume"}), {"trainer.json", "nests deeper"});
  put("data/data.json", with(read_file(folder / "data/data.json", 1 << 20), "deep", deep));
  fails(1, train_arguments("other"), {"data.json", "nests deeper"});
}

TEST_F(CliTest, AModelWithoutFiniteWeightsHasNoLoss) {
  make_data();
  succeeds(train_arguments("run"));
  std::string weights = read_file(folder / "run/model/model.safetensors", 1 << 26);
  std::memset(weights.data() + weights.size() - 8, 0xff, 8);
  put("run/model/model.safetensors", weights);
  fails(1, {"eval", "--model", path("run/model"), "--data", path("data")}, {"not finite"});
  put("q.jsonl", R"({"ctx": "the cat", "endings": ["sat on", "a"], "label": 0})");
  fails(1, {"eval", "--model", path("run/model"), "--choices", path("q.jsonl")}, {"not finite"});
}

TEST_F(CliTest, RooflinePrintsItsTables) {
  succeeds({"roofline", "--gpu", "rtx3090", "--dtype", "fp16", "--json"});
  const auto report = nlohmann::json::parse(output_);
  EXPECT_NEAR(report["tables"]["instruction"][1]["bytes_per_clock"], 144, 1e-9);
  EXPECT_NEAR(report["tables"]["warp"][9]["intensity"], 32, 1e-9);
  succeeds({"roofline", "--gpu", "h200", "--explain"});
  EXPECT_NE(output_.find("4096 FLOP/clk"), std::string::npos);
  succeeds({"roofline", "--gpu", "a100", "--instruction", "16x8x16", "--warp", "64x64x32", "32x64x32",
            "--tile", "128x128x32", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output_)["tables"]["warp"].size(), 2u);
}

TEST_F(CliTest, RooflineOfAProduct) {
  const std::vector<std::string> dw = {"roofline", "--gpu", "h200", "--op", "dw",  "--m",
                                       "65536",    "--n",   "768",  "--k",  "768", "--json"};
  succeeds(dw);
  const auto product = nlohmann::json::parse(output_)["product"];
  EXPECT_EQ(product["op"], "matmul.dw");
  EXPECT_EQ(product["levels"].size(), 5u);
  ASSERT_EQ(product["schedules"].size(), 3u);
  EXPECT_EQ(product["fastest"], "stream_k");
  for (const auto& s : product["schedules"]) {
    EXPECT_GT(s["seconds"], 0);
    EXPECT_LE(s["utilization"], 1);
  }
  put("bench.json", R"({"rows": [
    {"op": "matmul.dw", "variant": "cuda.x", "problem": "M=65536 N=768 K=768 bf16 =", "dtype": "bf16",
     "median_seconds": 1e-4, "flops": 77309411328, "bytes": 2.1e8},
    {"op": "matmul.forward", "variant": "cuda.x", "problem": "M=65536 N=768 K=768 bf16", "dtype": "bf16",
     "median_seconds": 2e-4, "flops": 77309411328, "bytes": 2.1e8}]})");
  auto measured = dw;
  measured.insert(measured.end(), {"--measured", path("bench.json")});
  succeeds(measured);
  ASSERT_EQ(nlohmann::json::parse(output_)["product"]["measured"].size(), 1u);
  succeeds({"roofline", "--gpu", "h200", "--measured", path("bench.json"), "--json"});
  ASSERT_EQ(nlohmann::json::parse(output_)["measured"].size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(output_)["measured"][1]["op"], "matmul.forward");
  succeeds({"roofline", "--gpu", "h200", "--op", "dw", "--k", "65536", "--map", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output_)["map"].size(), 120u);
  for (const char* schedule : {"block", "persistent", "stream_k"}) {
    succeeds({"roofline", "--gpu", "a100", "--m", "1", "--n", "1", "--k", "1", "--tile", "128x128x32",
              "--schedule", schedule, "--json"});
    EXPECT_EQ(nlohmann::json::parse(output_)["product"]["schedules"].size(), 1u);
  }
}

TEST_F(CliTest, RooflineRefusesNonsense) {
  const auto refuses = [&](std::vector<std::string> more, const std::vector<std::string>& words) {
    more.insert(more.begin(), "roofline");
    fails(2, more, words);
  };
  refuses({}, {"--gpu", "--device", "RTX 3090", "H200"});
  refuses({"--gpu", "h200", "--device", "cuda"}, {"--gpu", "--device"});
  refuses({"--gpu", "H1000"}, {"H1000", "RTX 3090", "A100 PCIe 80GB", "H100 SXM", "H200"});
  refuses({"--device", "cpu"}, {"--device", "cpu"});
  refuses({"--device", "tpu"}, {"--device", "tpu"});
  fails(1, {"roofline", "--device", "cuda:77"}, {"cuda:77"});
  const auto h200 = [&](std::vector<std::string> more, const std::vector<std::string>& words) {
    more.insert(more.begin(), {"--gpu", "h200"});
    refuses(more, words);
  };
  h200({"--dtype", "fp8"}, {"--dtype", "fp8"});
  h200({"--warp", "64x64"}, {"--warp", "64x64"});
  h200({"--tile", "128x0x64"}, {"--tile", "128x0x64"});
  h200({"--instruction", "16x8x16", "--warp", "24x8x16"}, {"--warp", "24x8x16", "16x8x16"});
  h200({"--warp", "64x64x64", "--tile", "96x64x64"}, {"--tile", "96x64x64", "64x64x64"});
  h200({"--instruction", "64x264x16"}, {"--instruction", "wgmma"});
  refuses({"--gpu", "rtx3090", "--instruction", "64x256x16"}, {"--instruction", "64x256x16", "RTX 3090"});
  h200({"--tile", "7x7x7"}, {"--tile", "7x7x7", "16x8x16"});
  h200({"--warp", "64x64x32", "64x32x32", "--tile", "128x128x32", "128x64x32", "64x64x32"}, {"--tile"});
  h200({"--cluster", "8"}, {"--cluster", "'8'", "MxN"});
  h200({"--cluster", "32x1"}, {"--cluster", "32"});
  h200({"--m", "0", "--n", "8", "--k", "8"}, {"--m", "0"});
  h200({"--m", "8", "--n", "-1", "--k", "8"}, {"--n", "-1"});
  h200({"--m", "8", "--n", "8"}, {"--k", "not given"});
  h200({"--m", "9999999999999999", "--n", "8", "--k", "8"}, {"--m"});
  h200({"--m", "1099511627776", "--n", "1099511627776", "--k", "1099511627776"}, {"--m", "too many"});
  h200({"--m", "8", "--n", "8", "--k", "8", "--schedule", "streamk"}, {"--schedule", "streamk"});
  h200({"--m", "8", "--n", "8", "--k", "8", "--op", "dz"}, {"--op", "dz"});
  h200({"--m", "8", "--n", "8", "--k", "8", "--measure"}, {"--measure", "--device"});
  h200({"--schedule", "block"}, {"--schedule", "--m"});
  h200({"--map"}, {"--k"});
  h200({"--matrix-tflops", "0"}, {"--matrix-tflops"});
  const auto record = [&](const std::string& content) {
    put("r.json", content);
    fails(1, {"roofline", "--gpu", "h200", "--measured", path("r.json")}, {"r.json"});
  };
  record("");
  record("[]");
  record("{}");
  record(R"({"rows": [{"op": 3}]})");
  record(R"({"rows": 7})");
  record(R"({"steps": [{"dtype": "bf16"}]})");
  record(R"({"results": [{"direction": "up", "dtype": "bf16", "M": 1, "N": 1, "K": 1, "seconds": {}}]})");
  fails(1, {"roofline", "--gpu", "h200", "--measured", path("nowhere.json")}, {"nowhere.json"});
}

TEST_F(CliTest, BadFilesAreOneLineAndExitCode1) {
  make_data();
  succeeds(train_arguments("run", {"--checkpoint-every", "4"}));
  const auto generate = [&](const std::string& model, const std::vector<std::string>& words) {
    fails(1, {"generate", "--model", path(model), "--prompt", "the"}, words);
  };
  generate("nowhere", {"nowhere"});
  fs::create_directory(folder / "empty");
  generate("empty", {"empty: is not a model's folder: it has no config.json", "Hugging Face's form"});
  fails(1, {"embed", "--model", path("empty")}, {"empty: is not a model's folder: it has no config.json"});
  generate("run/model/model.safetensors", {"model.safetensors: is a safetensors file", "name its folder"});
  const auto damaged = [&](const std::string& file, const auto& change) {
    fs::remove_all(folder / "bad");
    fs::copy(folder / "run/model", folder / "bad", fs::copy_options::recursive);
    std::string bytes = read_file(folder / "bad" / file, 1 << 26);
    change(bytes);
    put("bad/" + file, bytes);
    generate("bad", {file});
  };
  damaged("model.safetensors", [](std::string& b) { b.resize(b.size() / 2); });
  damaged("model.safetensors", [](std::string& b) { b += "rest"; });
  damaged("model.safetensors", [](std::string& b) { b.clear(); });
  damaged("model.safetensors", [](std::string& b) { std::memset(b.data(), 0xff, 8); });
  damaged("config.json", [](std::string& b) { b = "{"; });
  damaged("config.json", [](std::string& b) { b.replace(b.find("\"n_head\": 2"), 11, "\"n_head\": 5"); });
  damaged("config.json", [](std::string& b) { b.replace(b.find("gpt2"), 4, "bert"); });
  damaged("tokenizer.json", [](std::string& b) { b.resize(b.size() / 2); });
  put("x.bin", "not a model");
  generate("x.bin", {"x.bin"});
  fails(1, {"eval", "--model", path("run/model"), "--data", path("empty")}, {"empty"});
  fails(1, train_arguments("run"), {"run", "--resume"});
  fails(1, train_arguments("run", {"--resume", "--seed", "2"}), {"seed", "2"});
}

TEST_F(CliTest, BadDataIsOneLine) {
  make_data();
  std::string shard = read_file(folder / "data/train_000000.bin", 1 << 26);
  const auto trains = [&](std::string bytes, const std::vector<std::string>& words) {
    put("data/train_000000.bin", bytes);
    fails(1, train_arguments("broken"), words);
    fs::remove_all(folder / "broken");
  };
  trains(shard.substr(0, shard.size() - 2), {"train_000000.bin"});
  trains(shard + "xx", {"train_000000.bin"});
  trains(shard.substr(0, 500), {"train_000000.bin"});
  trains("", {"train_000000.bin"});
  std::string magic = shard, version = shard, ids = shard;
  magic[0] ^= 1;
  version[4] = 9;
  std::memset(ids.data() + 1024, 0xff, 4000);
  trains(magic, {"train_000000.bin"});
  trains(version, {"train_000000.bin"});
  trains(ids, {"train_000000.bin", "data.json", "--allow-data-change"});
  put("data/train_000000.bin", ids);
  fails(1, train_arguments("broken", {"--allow-data-change"}), {"train_000000.bin", "65535"});
  fs::remove_all(folder / "broken");
  put("data/train_000000.bin", shard);
  fails(1, train_arguments("broken", {"--batch", "100000"}), {"train"});
}

TEST_F(CliTest, LongPromptsAreRefusedAndLongSamplesSlide) {
  make_data();
  succeeds(train_arguments("run"));
  std::string prompt;
  for (int i = 0; i < 100; ++i) prompt += "zq";
  fails(2, {"generate", "--model", path("run/model"), "--prompt", prompt}, {"--prompt", "32"});
  succeeds({"generate", "--model", path("run/model"), "--prompt", "the", "--max-tokens", "100", "--json"});
  EXPECT_LE(nlohmann::json::parse(output_)["tokens"], 100);
}

TEST_F(CliTest, SignalsWriteACheckpointAndLeave) {
  make_data();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = fmt::format("signal{}", signal);
    const pid_t child =
        start_process(train_arguments(name, {"--steps", "1000000"}), folder / "o", folder / "e");
    while (!fs::exists(folder / name / "metrics.jsonl") ||
           fs::file_size(folder / name / "metrics.jsonl") == 0) {
      usleep(1000);
    }
    kill(child, signal);
    EXPECT_EQ(wait_for(child), 128 + signal);
    EXPECT_FALSE(fs::is_empty(folder / name / "checkpoints"));
    EXPECT_TRUE(fs::exists(folder / name / "model/model.safetensors"));
  }
}

// Slurm sends two.
TEST_F(CliTest, MoreSignalsOfASchedulerDoNotLoseTheCheckpoint) {
  make_data();
  for (const int signal : {SIGTERM, SIGHUP}) {
    const std::string name = fmt::format("signal{}", signal);
    const pid_t child =
        start_process(train_arguments(name, {"--steps", "1000000"}), folder / "o", folder / "e");
    while (!fs::exists(folder / name / "metrics.jsonl") ||
           fs::file_size(folder / name / "metrics.jsonl") == 0) {
      usleep(1000);
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      kill(child, signal);
      usleep(1000);
    }
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    EXPECT_FALSE(fs::is_empty(folder / name / "checkpoints"));
    EXPECT_TRUE(fs::exists(folder / name / "model/model.safetensors"));
  }
}

// Parses each line of the output as JSON.
std::vector<nlohmann::json> objects(const std::string& output) {
  std::vector<nlohmann::json> all;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

class EncoderCliTest : public CliTest {
 protected:
  EncoderCliTest() { make_tiny_bert(folder / "bert"); }

  std::vector<std::string> embed(const std::string& input, const std::vector<std::string>& more = {}) {
    std::vector<std::string> a = {"embed",     "--model", path("bert"), "--weights-cache", path("cache"),
                                  "--threads", "1",       "--input",    path(input)};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }
};

TEST_F(EncoderCliTest, AnAttentionBiasThatCannotBeIsNamed) {
  put("texts", "the cat\n");
  const auto refuses = [&](int heads, int L, float value, const std::vector<std::string>& words) {
    const std::size_t count = static_cast<std::size_t>(heads) * L * L;
    const std::vector<float> values(count, value);
    std::string header = nlohmann::json{{"bias",
                                         {{"dtype", "F32"},
                                          {"shape", {heads, L, L}},
                                          {"data_offsets", {std::size_t{0}, count * sizeof(float)}}}}}
                             .dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = header.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof size);
    file += header;
    file.append(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
    put("b.safetensors", file);
    fails(1, embed("texts", {"--attention-bias", path("b.safetensors")}), words);
  };
  const std::string name = "b.safetensors: ";
  refuses(2, 0, 0, {name + "has shape (2, 0, 0); give (2, L, L)"});
  refuses(3, 48, 0, {name + "has shape (3, 48, 48); give (2, L, L)"});
  refuses(2, 4, 0, {name + "has shape (2, 4, 4), but a text may have 48 tokens", "--max-length 4"});
  refuses(2, 48, std::numeric_limits<float>::quiet_NaN(), {name + "has nan at (0, 0, 0); give numbers"});
  refuses(2, 48, std::numeric_limits<float>::infinity(), {name + "has inf at (0, 0, 0); give numbers"});
}

// Only the part of a bias that the model's positions can use is read.
TEST_F(EncoderCliTest, AnAttentionBiasMayBeLargerThanMemory) {
  constexpr std::uint64_t L = 150000;
  put("texts", "the cat sat on the mat.\n");
  std::string header =
      nlohmann::json{
          {"bias",
           {{"dtype", "F32"}, {"shape", {2, L, L}}, {"data_offsets", {0, 2 * L * L * sizeof(float)}}}}}
          .dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = header.size();
  std::string begin(reinterpret_cast<const char*>(&size), sizeof size);
  begin += header;
  const std::size_t data = begin.size();
  begin.resize(data + 3 * sizeof(float));
  const float penalty = -3;  // of the third key for the first query of the first head
  std::memcpy(begin.data() + data + 2 * sizeof(float), &penalty, sizeof penalty);
  put("b.safetensors", begin);
  fs::resize_file(folder / "b.safetensors", data + 2 * L * L * sizeof(float));  // sparse
  succeeds(embed("texts"));
  const std::string plain = output_;
  succeeds(embed("texts", {"--attention-bias", path("b.safetensors")}));
  EXPECT_NE(output_, plain);
}

TEST_F(EncoderCliTest, ANamedWeightsCacheThatStaysEmptyIsRefused) {
  put("texts", "the cat\n");
  fs::create_directory(folder / "cache");
  fs::permissions(folder / "cache", fs::perms(0555));
  fs::permissions(folder, fs::perms(0755));
  // Others may be unable to reach the build's folder.
  const std::string program = path("warpwright");
  fs::copy_file(WARPWRIGHT_BINARY, program);
  const auto as_nobody = [] {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) _exit(125);
  };
  const auto code = [&] {
    return wait_for(
        start_process(embed("texts"), folder / "out", folder / "err", as_nobody, program.c_str()));
  };
  EXPECT_EQ(code(), 1);
  const std::string error = read_file(folder / "err", 1 << 20);
  EXPECT_NE(error.find(path("cache") + ": cannot be written: Permission denied"), std::string::npos) << error;
  EXPECT_NE(error.find("or none\n"), std::string::npos) << error;
  EXPECT_EQ(read_file(folder / "out", 1 << 20), "");
  fs::permissions(folder / "cache", fs::perms(0755));
  succeeds(embed("texts"));  // fills it
  fs::permissions(folder / "cache", fs::perms(0555));
  EXPECT_EQ(code(), 0) << read_file(folder / "err", 1 << 20);
  fs::permissions(folder / "cache", fs::perms(0755));
}

TEST_F(EncoderCliTest, TheWeightsCacheFollowsNoLinks) {
  put("texts", "the cat\n");
  succeeds(embed("texts"));
  const std::string wanted = output_;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() != ".weights") continue;
    fs::remove(entry.path());
    put("victim", "mine");
    fs::create_symlink(folder / "victim", entry.path());
    succeeds(embed("texts"));
    EXPECT_EQ(output_, wanted);
    EXPECT_EQ(read_file(folder / "victim", 10), "mine");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(entry.path())));
    fs::rename(entry.path(), folder / "victim");
    fs::create_symlink(folder / "victim", entry.path());
    succeeds(embed("texts"));
    EXPECT_TRUE(
        fs::is_regular_file(fs::symlink_status(entry.path())));  // whole, but not read through the link
    fs::remove(entry.path());
    ASSERT_EQ(::mkfifo(entry.path().c_str(), 0600), 0);
    succeeds(embed("texts"));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(entry.path())));
  }
}

TEST_F(EncoderCliTest, APipeInAModelsFolderIsRefused) {
  put("texts", "the cat\n");
  fs::remove(folder / "bert/config.json");
  ASSERT_EQ(::mkfifo(path("bert/config.json").c_str(), 0600), 0);
  ::alarm(60);  // ends a test that waits for the pipe
  fails(1, embed("texts"), {"config.json: ", "not a regular file"});
  ::alarm(0);
}

TEST_F(EncoderCliTest, EmbedKeepsTheOrderOfLines) {
  put("texts", "the cat\n\na dog sat on the mat.\nthe cat\r\n");
  succeeds(embed("texts"));
  const auto lines = objects(output_);
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(lines[i]["line"], i + 1);
    EXPECT_EQ(lines[i]["embedding"].size(), static_cast<std::size_t>(kTinyBertSize));
  }
  EXPECT_EQ(lines[0]["tokens"], 4);
  EXPECT_EQ(lines[1]["tokens"], 2);
  EXPECT_EQ(lines[0]["embedding"], lines[3]["embedding"]);
  EXPECT_NE(lines[0]["embedding"], lines[2]["embedding"]);
}

TEST_F(EncoderCliTest, EmbedWritesNpy) {
  put("texts", "the cat\ncats\nthe dog\n");
  succeeds(embed("texts"));
  const auto lines = objects(output_);
  succeeds(embed("texts", {"--out", path("vectors.npy")}));
  EXPECT_EQ(output_, "");
  const std::string npy = read_file(folder / "vectors.npy", 1 << 20);
  ASSERT_EQ(npy.size(), 128 + 3 * kTinyBertSize * sizeof(float));
  EXPECT_EQ(npy.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_NE(npy.find("'descr': '<f4', 'fortran_order': False, 'shape': (3, 32)"), std::string::npos);
  EXPECT_EQ(npy[127], '\n');
  for (std::size_t i = 0; i < 3 * kTinyBertSize; ++i) {
    float value = 0;
    std::memcpy(&value, npy.data() + 128 + i * sizeof value, sizeof value);
    EXPECT_EQ(value, lines[i / kTinyBertSize]["embedding"][i % kTinyBertSize].get<float>());
  }
}

TEST_F(EncoderCliTest, EmbedReadsJsonLines) {
  put("texts.jsonl", "{\"id\": \"x\", \"body\": \"the cat\"}\n \r\n{\"body\": \"cats\"}\n\n");
  succeeds(embed("texts.jsonl", {"--field", "body"}));
  const auto lines = objects(output_);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["id"], "x");
  EXPECT_FALSE(lines[1].contains("id"));
  EXPECT_EQ(lines[1]["line"], 3);  // the second line is blank
}

TEST_F(EncoderCliTest, EmbedPoolsAndNormalizesAsTold) {
  put("texts", "a dog sat on the mat\n");
  const auto vector = [&](const std::vector<std::string>& flags) {
    succeeds(embed("texts", flags));
    return objects(output_)[0]["embedding"].get<std::vector<float>>();
  };
  const auto length = [](const std::vector<float>& v) {
    double sum = 0;
    for (const float x : v) sum += static_cast<double>(x) * x;
    return std::sqrt(sum);
  };
  const auto mean = vector({});
  EXPECT_EQ(vector({"--pooling", "mean"}), mean);
  EXPECT_NE(vector({"--pooling", "cls"}), mean);
  EXPECT_GT(std::abs(length(mean) - 1), 1e-3);
  EXPECT_NEAR(length(vector({"--normalize"})), 1, 1e-5);
  EXPECT_EQ(vector({"--no-normalize"}), mean);
  EXPECT_NE(vector({"--max-length", "4"}), mean);
}

TEST_F(EncoderCliTest, OneBadLineLeavesTheOthers) {
  put("texts.jsonl",
      "{\"text\": \"the cat\"}\nnot JSON\n{\"text\": 3}\n{\"text\": \"boom\"}\n{\"text\": \"the \xff "
      "cat\"}\n");
  const ProcessResult r = run(embed("texts.jsonl"));
  EXPECT_EQ(r.code, 1);
  const auto lines = objects(r.out);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].contains("embedding"));
  for (const std::size_t bad : {1u, 2u, 3u}) {
    EXPECT_TRUE(lines[bad].contains("error")) << bad;
    EXPECT_NE(r.err.find("line " + std::to_string(bad + 1)), std::string::npos) << r.err;
  }
  EXPECT_EQ(lines[4]["tokens"], 4);
  EXPECT_NE(r.err.find("3 of 5 texts"), std::string::npos) << r.err;
  std::string many;  // .npy cannot name failed texts, so stderr names each
  for (int i = 0; i < 12; ++i) many += "not JSON\n";
  put("many.jsonl", many);
  EXPECT_EQ(run(embed("many.jsonl")).err.find("line 12"), std::string::npos);
  EXPECT_NE(run(embed("many.jsonl", {"--out", path("many.npy")})).err.find("line 12"), std::string::npos);
  const ProcessResult npy = run(embed("texts.jsonl", {"--out", path("v.npy")}));
  EXPECT_EQ(npy.code, 1);
  EXPECT_EQ(read_file(folder / "v.npy", 1 << 20).size(), 128 + 5 * kTinyBertSize * sizeof(float));
}

TEST_F(EncoderCliTest, HostileLines) {
  std::string text("the c\0at\n", 9);
  text += "the cat\xc3\n";
  text += std::string(std::size_t{100} << 20, 'x') + "\n";
  text += "the cat";
  put("texts", text);
  succeeds(embed("texts"));
  const auto lines = objects(output_);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["tokens"], 3);
  EXPECT_EQ(lines[0]["tokens"], 4);
  put("long", "cat cat cat cat\ncat\n");
  const ProcessResult r = run(embed("long", {"--max-length", "4", "--over-limit", "refuse"}));
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("line 1: has more than 4 tokens"), std::string::npos) << r.err;
  EXPECT_EQ(objects(r.out)[1]["tokens"], 3);
  put("nothing", "");
  succeeds(embed("nothing"));
  EXPECT_EQ(output_, "");
}

TEST_F(EncoderCliTest, FilesOfOtherFormatsAreNoLines) {
  put("zip", std::string("PK\x03\x04\x14\0\0\0", 8) + std::string(100, '\0'));
  put("utf16", std::string("\xff\xfet\0h\0e\0\n\0", 10));
  fails(1, embed("zip"), {"zip: ", "is not text (ZIP archive)"});
  fails(1, embed("utf16"), {"utf16: ", "is not text (UTF-16 text)", "iconv"});
  put("bmw", "BMW and MZ and PK\n");
  succeeds(embed("bmw"));
}

TEST_F(EncoderCliTest, ADashIsStandardInputAndNoOutput) {
  put("texts", "the cat\n");
  succeeds(embed("texts"));
  const std::string wanted = output_;
  const std::string from_pipe = fmt::format("$W embed --model {} --input - < texts > out", path("bert"));
  shell_fails(0, from_pipe + " 2> summary", {});
  EXPECT_EQ(objects(read_file(folder / "out", 1 << 20))[0]["embedding"], objects(wanted)[0]["embedding"]);
  fails(2, embed("texts", {"--out", "-"}), {"--out", "/dev/stdout", "./-"});
}

TEST_F(EncoderCliTest, EmbedPutsPromptsBeforeTexts) {
  put("texts", "the cat\n");
  put("asked", "a mat: the cat\n");
  const auto vector = [&](const std::string& input, const std::vector<std::string>& flags = {}) {
    succeeds(embed(input, flags));
    return objects(output_)[0]["embedding"].get<std::vector<float>>();
  };
  const auto plain = vector("texts"), asked = vector("asked");
  EXPECT_EQ(vector("texts", {"--prompt", "a mat: "}), asked);
  put("bert/config_sentence_transformers.json",
      R"({"prompts": {"query": "a mat: ", "none": ""}, "default_prompt_name": "query"})");
  EXPECT_EQ(vector("texts"), asked);
  EXPECT_EQ(vector("texts", {"--prompt", ""}), plain);
  EXPECT_EQ(vector("texts", {"--prompt-name", "none"}), plain);
  fails(2, embed("texts", {"--prompt-name", "quarry"}), {"quarry", "\"none\", \"query\""});
  fails(2, embed("texts", {"--prompt-name", "none", "--prompt", "x"}), {"--prompt"});
}

TEST_F(EncoderCliTest, EmbedRefusesWhatCannotBe) {
  put("texts", "the cat\n");
  fails(2, embed("texts", {"--pooling", "sum"}), {"--pooling", "sum"});
  fails(2, embed("texts", {"--format", "npy"}), {"--format", "--out"});
  fails(2, embed("texts", {"--format", "csv"}), {"--format", "csv"});
  fails(2, embed("texts", {"--out", path("texts")}), {"--out", "--input"});
  EXPECT_EQ(read_file(folder / "texts", 1 << 20), "the cat\n");
  fails(2, embed("texts", {"--dtype", "int4"}), {"--dtype", "int8"});
  fails(2, embed("texts", {"--dtype", "fp16"}), {"--dtype", "a CPU has no fp16"});
  fails(2, embed("texts", {"--over-limit", "ignore"}), {"--over-limit", "ignore"});
  fails(2, embed("texts", {"--max-length", "1000"}),
        {"--max-length: is 1000, but the model has positions for 48"});
  fails(2, embed("texts", {"--max-length", "1"}), {"--max-length: is 1, but a text has 2 special tokens"});
  fails(2, embed("texts", {"--batch-tokens", "10"}), {"--batch-tokens: is 10", "limit texts to 10 tokens"});
  fails(2, embed("texts", {"--batch-tokens", "999999999999"}), {"--batch-tokens: is 999999999999"});
  fails(1, {"embed", "--model", path("nowhere"), "--input", path("texts")}, {"nowhere"});
  fails(1, embed("missing"), {"missing"});
  put("empty/config.json", "{}");
  fails(1, {"embed", "--model", path("empty"), "--input", path("texts")}, {"empty"});
}

TEST_F(EncoderCliTest, RankPutsTheBestFirst) {
  make_tiny_bert(folder / "cross", 1);
  put("texts", "sat on the mat\na dog\nboom\n\ncats\n");
  const std::vector<std::string> rank = {"rank",        "--weights-cache", "none",       "--model",
                                         path("cross"), "--query",         "the cat",    "--threads",
                                         "1",           "--input",         path("texts")};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> a = rank;
    a.insert(a.end(), more.begin(), more.end());
    return a;
  };
  const ProcessResult r = run(rank);
  EXPECT_EQ(r.code, 1);  // one line has no score
  const auto lines = objects(r.out);
  ASSERT_EQ(lines.size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GT(lines[i]["score"], 0);
    EXPECT_LT(lines[i]["score"], 1);
    EXPECT_GE(lines[i == 0 ? 0 : i - 1]["score"], lines[i]["score"]);
  }
  EXPECT_EQ(lines[4]["line"], 3);
  EXPECT_TRUE(lines[4].contains("error"));
  put("texts", "sat on the mat\na dog\n\ncats\n");
  succeeds(with({"--top", "2", "--activation", "none"}));
  const auto best = objects(output_);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0]["text"], lines[0]["text"]);
  const double logit = best[0]["score"];
  EXPECT_NEAR(1 / (1 + std::exp(-logit)), lines[0]["score"].get<double>(), 1e-5);
  fails(2, with({"--label", "1"}), {"--label"});
  fails(2, with({"--truncation", "both"}), {"--truncation", "both"});
  fails(1, {"rank", "--model", path("bert"), "--query", "x", "--input", path("texts")},
        {"classification head"});
}

// Free sizes are those of gpt2 and llama.
TEST_F(CliTest, ARunOfAnotherFamilyGoesOnWithItsOwnSizes) {
  make_data();
  std::filesystem::create_directory(folder / "neox");
  put("neox/config.json",
      R"({"model_type": "gpt_neox", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16,
          "intermediate_size": 33, "vocab_size": 300, "max_position_embeddings": 32, "rotary_pct": 0.5,
          "eos_token_id": null, "bos_token_id": null})");
  TinyTensors tensors;
  tensors.add("gpt_neox.embed_in.weight", {300, 16});
  const std::string block = "gpt_neox.layers.0.";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) tensors.add_norm(block + norm, 16);
  tensors.add_linear(block + "attention.query_key_value", {48, 16}, 48);
  tensors.add_linear(block + "attention.dense", {16, 16}, 16);
  tensors.add_linear(block + "mlp.dense_h_to_4h", {33, 16}, 33);
  tensors.add_linear(block + "mlp.dense_4h_to_h", {16, 33}, 16);
  tensors.add_norm("gpt_neox.final_layer_norm", 16);
  tensors.add("embed_out.weight", {300, 16});
  tensors.write(folder / "neox/model.safetensors");
  // bf16 with an MLP of odd size: files have the fp32 norms first.
  succeeds({"train", "--data", path("data"), "--model", path("neox"), "--out", path("run"), "--batch", "2",
            "--seq", "16", "--steps", "2", "--dtype", "bf16", "--schedule", "constant", "--threads", "1"});
  for (const char* flag : {"--context", "--vocab", "--layers", "--hidden"}) {
    fails(2, {"train", "--resume", "--data", path("data"), "--out", path("run"), "--steps", "3", flag, "32"},
          {flag, "is given for a gpt_neox; leave out the sizes: the checkpoint has them"});
  }
  succeeds({"train", "--resume", "--data", path("data"), "--out", path("run"), "--steps", "3"});
}

}  // namespace
}  // namespace warpwright
