#include "infer/encode.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/error.hpp"
#include "model/safetensors.hpp"
#include "runtime/test_folder.hpp"
#include "tests/tiny_bert.hpp"

namespace warpwright {
namespace {

using Texts = std::vector<std::string_view>;

constexpr std::size_t kSize = kTinyBertSize;

class EncodeTest : public TestFolder {
 protected:
  EncodeTest() { make_tiny_bert(folder); }

  struct Result {
    std::vector<EncodedText> report;
    std::vector<float> vectors;
    std::span<const float> row(std::size_t i) const { return std::span(vectors).subspan(i * kSize, kSize); }
  };
  Result embed(const Texts& texts, const EncoderOptions& options = {}) {
    Encoder encoder(context, folder, options);
    Result result;
    result.vectors.assign(texts.size() * kSize, -1.0f);
    result.report = encoder.embed(texts, result.vectors);
    wasted = encoder.model().wasted_tokens();
    return result;
  }
  void expect_close(std::span<const float> a, std::span<const float> b) {
    for (std::size_t i = 0; i < kSize; ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << i;
  }
  bool is_zero(std::span<const float> row) {
    return std::all_of(row.begin(), row.end(), [](float x) { return x == 0; });
  }

  Context context;
  std::int64_t wasted = -1;
};

TEST_F(EncodeTest, EachTextsVectorIsItsOwnWhateverTheBatch) {
  const Texts texts = {"the cat",  "",   "a dog sat on the mat .", "cats", "\u4f60 caf\u00e9", "the cat",
                       "unknown!", "the"};
  EncoderOptions small;
  small.model.max_batch_tokens = 48;
  small.model.max_batch_sequences = 3;
  const Result all = embed(texts), packed = embed(texts, small);
  EXPECT_EQ(wasted, 0);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(all.report[i].error, "");
    const Result alone = embed({texts[i]});
    expect_close(all.row(i), alone.row(0));
    expect_close(packed.row(i), alone.row(0));
    EXPECT_FALSE(is_zero(all.row(i)));
  }
  EXPECT_EQ(all.report[0].tokens, 4);
  EXPECT_EQ(all.report[1].tokens, 2);
  expect_close(all.row(0), all.row(5));
}

TEST_F(EncodeTest, BatchInvariantBitsDoNotDependOnTheBatch) {
  EncoderOptions options;
  options.model.batch_invariant = true;
  const Texts texts = {"a dog sat on the mat .", "the cat", "cats"};
  const Result all = embed(texts, options);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Result alone = embed({texts[i]}, options);
    EXPECT_TRUE(std::equal(all.row(i).begin(), all.row(i).end(), alone.row(0).begin()));
  }
}

TEST_F(EncodeTest, EncodersShareWeights) {
  const Texts texts = {"a dog sat on the mat .", "the cat", "cats"};
  Encoder first(context, folder);
  Context own{ContextOptions{}};
  Encoder second(own, folder, {}, first.model().weights());
  EXPECT_EQ(second.model().weights(), first.model().weights());
  std::vector<float> wanted(texts.size() * kSize), vectors(texts.size() * kSize);
  first.embed(texts, wanted);
  second.embed(texts, vectors);
  EXPECT_EQ(vectors, wanted);
}

class PromptTest : public EncodeTest {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
  void prompts(const std::string& json) { put("config_sentence_transformers.json", json); }
  std::vector<float> vector_of(const std::string& text, const PromptChoice& choice = {}) {
    Encoder encoder(context, folder);
    std::vector<float> vector(kSize);
    EXPECT_EQ(encoder.embed(Texts{text}, vector, choice)[0].error, "");
    return vector;
  }
  template <class F>
  void refuses(F&& f, const std::vector<std::string>& words) {
    try {
      f();
      ADD_FAILURE() << "nothing was refused; it should name " << words.front();
    } catch (const Error& error) {
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
};

TEST_F(PromptTest, IsPutBeforeEachText) {
  const auto plain = vector_of("the cat"), asked = vector_of("a mat: the cat"),
             told = vector_of("dogs.the cat");
  prompts(
      R"({"prompts": {"query": "a mat: ", "document": null, "told": "dogs."}, "default_prompt_name": null})");
  EXPECT_EQ(vector_of("the cat"), plain);
  EXPECT_EQ(vector_of("the cat", {{}, "query"}), asked);
  EXPECT_EQ(vector_of("the cat", {{}, "document"}), plain);
  EXPECT_EQ(vector_of("the cat", {"dogs.", {}}), told);
  EXPECT_EQ(vector_of("the cat", {"dogs.", "query"}), told);
  EXPECT_EQ(vector_of("the cat", {"dogs.", "no such name"}), told);
  prompts(R"({"prompts": {"query": "a mat: ", "told": "dogs."}, "default_prompt_name": "query"})");
  EXPECT_EQ(vector_of("the cat"), asked);
  EXPECT_EQ(vector_of("the cat", {"", {}}), plain);
  EXPECT_EQ(vector_of("the cat", {{}, "told"}), told);
  refuses([&] { vector_of("the cat", {{}, "quarry"}); }, {"\"quarry\"", "\"query\", \"told\""});
  std::filesystem::remove(folder / "config_sentence_transformers.json");
  refuses([&] { vector_of("the cat", {{}, "query"}); }, {"\"query\"", "the model has no prompts"});
}

TEST_F(PromptTest, FilesThatCannotBeAreRefused) {
  const std::string name = "config_sentence_transformers.json";
  for (const auto& [json, word] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "not a JSON object"},
           {"{", "not JSON"},
           {R"({"prompts": ["query: "]})", "\"prompts\" is not a JSON object"},
           {R"({"prompts": {"query": 3}})", "the prompt \"query\" is not a string"},
           {R"({"prompts": {"query": "a\u0000b"}})", "contains a NUL"},
           {R"({"prompts": {"a\u0000b": "x"}})", "contains a NUL"},
           {R"({"prompts": {"query": "q"}, "default_prompt_name": 4})", "default_prompt_name"},
           {R"({"prompts": {"query": "q"}, "default_prompt_name": "other"})", "\"other\""},
           {R"({"default_prompt_name": "query"})", "\"query\""}}) {
    prompts(json);
    refuses([&] { Encoder(context, folder); }, {name, word});
  }
  prompts(R"({"prompts": null, "default_prompt_name": null, "similarity_fn_name": "cosine"})");
  vector_of("the cat");
}

TEST_F(PromptTest, LeftOutOfThePoolingIsRefusedByName) {
  prompts(R"({"prompts": {"query": "a mat: "}})");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true, "include_prompt": false})");
  vector_of("the cat");
  vector_of("the cat", {"", {}});
  refuses([&] { vector_of("the cat", {{}, "query"}); }, {"include_prompt"});
  put("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "include_prompt": false})");
  EXPECT_NE(vector_of("the cat", {{}, "query"}), vector_of("the cat"));
}

TEST_F(EncodeTest, OneBadTextLeavesTheOthers) {
  const Texts texts = {"the cat", "a boom", "dogs"};
  const Result result = embed(texts);
  EXPECT_EQ(result.report[0].error, "");
  EXPECT_NE(result.report[1].error.find("not finite"), std::string::npos) << result.report[1].error;
  EXPECT_TRUE(is_zero(result.row(1)));
  expect_close(result.row(0), embed({"the cat"}).row(0));
  expect_close(result.row(2), embed({"dogs"}).row(0));
}

TEST_F(EncodeTest, ProgressReachesTheEndIfTextsFail) {
  Encoder encoder(context, folder);
  std::vector<EncodeProgress> seen;
  encoder.set_progress([&](const EncodeProgress& progress) { seen.push_back(progress); });
  const auto embed_all = [&](const Texts& texts) {
    std::vector<float> vectors(texts.size() * kSize);
    seen.clear();
    return encoder.embed(texts, vectors);
  };
  const std::int64_t good = embed_all({"the cat"})[0].tokens;
  EXPECT_EQ(seen.back().share, 1);
  embed_all({"boom", "the cat"});
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen.back().share, 1);
  EXPECT_EQ(seen.back().tokens, 2 * good);  // texts that fail do not count
}

TEST_F(EncodeTest, ProgressOfTextsWithoutTokens) {
  put("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
      "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                     "strip_accents": null, "lowercase": true},
      "pre_tokenizer": {"type": "BertPreTokenizer"},
      "post_processor": {"type": "TemplateProcessing", "special_tokens": {},
                         "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                         "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                                  {"Sequence": {"id": "B", "type_id": 1}}]},
      "decoder": null,
      "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "cat": 1}}})");
  Encoder encoder(context, folder);
  double share = -1;
  encoder.set_progress([&](const EncodeProgress& progress) { share = progress.share; });
  std::vector<float> vectors(2 * kSize);
  EXPECT_EQ(encoder.embed(Texts{"", ""}, vectors)[0].tokens, 0);
  EXPECT_EQ(share, 1);
}

TEST_F(EncodeTest, ATextOverTheLimitIsTruncatedOrRefused) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "cat ";
  const Texts texts = {text, "cat cat"};
  EncoderOptions options;
  const Result whole = embed(texts, options);
  EXPECT_EQ(whole.report[0].tokens, 48);  // the model's positions
  EXPECT_TRUE(whole.report[0].truncated);
  options.max_length = 4;
  const Result cut = embed(texts, options);
  EXPECT_FALSE(cut.report[1].truncated);
  expect_close(cut.row(0), cut.row(1));
  options.over_limit = OverLimit::refuse;
  const Result refused = embed(texts, options);
  EXPECT_NE(refused.report[0].error.find("more than 4 tokens"), std::string::npos) << refused.report[0].error;
  EXPECT_TRUE(is_zero(refused.row(0)));
  expect_close(refused.row(1), cut.row(1));
}

TEST_F(EncodeTest, HostileTexts) {
  std::string huge(std::size_t{20} << 20, 'x');
  huge += " cat";
  const std::string zeros("the\0 c\0at", 9);
  const Texts texts = {huge, zeros, "the cat\xff\xc3", "the \xed\xa0\x80 cat"};
  const Result result = embed(texts);
  for (const EncodedText& text : result.report) EXPECT_EQ(text.error, "");
  EXPECT_EQ(result.report[0].tokens, 4);  // [CLS] [UNK] cat [SEP]
  for (std::size_t i = 1; i < texts.size(); ++i) expect_close(result.row(i), embed({"the cat"}).row(0));
}

TEST_F(EncodeTest, RefusesWhatDoesNotFit) {
  EncoderOptions options;
  options.max_length = 49;
  EXPECT_THROW(Encoder(context, folder, options), UsageError);
  options.max_length = 40;
  options.model.max_batch_tokens = 39;
  EXPECT_THROW(Encoder(context, folder, options), UsageError);
  Encoder encoder(context, folder);
  std::vector<float> out(kSize);
  EXPECT_THROW(encoder.embed(Texts{"a", "b"}, out), Error);
  EXPECT_THROW(encoder.classify(std::vector<TextPair>{{"a", "b"}}, out), Error);
  std::ofstream(folder / "vocab.txt", std::ios::app) << "more\n";
  EXPECT_THROW(Encoder(context, folder), Error);
  EXPECT_THROW(Encoder(context, folder / "missing"), Error);
}

TEST_F(EncodeTest, PairsAreClassified) {
  make_tiny_bert(folder / "head", 2);
  Encoder encoder(context, folder / "head");
  const std::vector<TextPair> pairs = {
      {"the cat", "sat on the mat"}, {"the cat", "a boom"}, {"the cat", "dogs"}};
  std::vector<float> logits(6), alone(2);
  const std::vector<EncodedText> report = encoder.classify(pairs, logits);
  EXPECT_EQ(report[0].tokens, 9);
  EXPECT_NE(report[1].error, "");
  EXPECT_EQ(logits[2], 0);
  encoder.classify(std::span(pairs).subspan(2), alone);
  EXPECT_NEAR(logits[4], alone[0], 1e-5);
  EXPECT_NEAR(logits[5], alone[1], 1e-5);
  EXPECT_NE(logits[0], logits[4]);
}

// The real model compared with transformers in fp64 (src/model/tools/compare_minilm.py --golden).
TEST(MiniLM, VectorsOfTransformers) {
  const char* folder = std::getenv("WARPWRIGHT_MINILM");
  if (!folder) GTEST_SKIP() << "all-MiniLM-L6-v2 is not here: set WARPWRIGHT_MINILM (scripts/fetch-minilm)";
  const SafetensorsFile golden(std::filesystem::path(WARPWRIGHT_TESTDATA) / "minilm.safetensors");
  const auto lines = golden.bytes(*golden.find("texts")), numbers = golden.bytes(*golden.find("vectors"));
  const std::string text(reinterpret_cast<const char*>(lines.data()), lines.size());
  Texts texts;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    texts.push_back(std::string_view(text).substr(at, end - at));
  }
  std::vector<float> wanted(numbers.size() / sizeof(float)), vectors(wanted.size());
  std::memcpy(wanted.data(), numbers.data(), numbers.size());
  const auto check = [&](DeviceKind kind, DType dtype, double bound) {
    SCOPED_TRACE(fmt::format("{} {}", kind == DeviceKind::cpu ? "cpu" : "cuda", name_of(dtype)));
    Context context(ContextOptions{}, {kind, 0});
    EncoderOptions options;
    options.weights.precision.dtype = dtype;
    options.max_length = 512;
    for (const EncodedText& report : Encoder(context, folder, options).embed(texts, vectors)) {
      EXPECT_EQ(report.error, "");
    }
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double w = wanted[i], difference = vectors[i] - w;
      error += difference * difference;
      norm += w * w;
    }
    EXPECT_LE(std::sqrt(error / norm), bound);
  };
  const auto twice_pytorchs = [&](const char* dtype) { return 2 * std::stod(golden.metadata().at(dtype)); };
  check(DeviceKind::cpu, DType::f32, 1e-5);
  check(DeviceKind::cpu, DType::bf16, twice_pytorchs("bfloat16"));
  if (cuda_device_count() == 0) return;
  check(DeviceKind::cuda, DType::f32, 1e-5);
  check(DeviceKind::cuda, DType::bf16, twice_pytorchs("bfloat16"));
  check(DeviceKind::cuda, DType::f16, twice_pytorchs("float16"));
}

}  // namespace
}  // namespace warpwright
