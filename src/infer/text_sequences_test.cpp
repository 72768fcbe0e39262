// Tests the texts of sequences, and the memory that an engine asks for before it takes any.
#include "infer/text_sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "infer/decoder_texts.hpp"
#include "infer/decoding_memory.hpp"
#include "infer/initial_weights.hpp"
#include "runtime/out_of_memory.hpp"
#include "text/unicode.hpp"

namespace warpwright {
namespace {

constexpr GPT2Config kSizes{.layers = 2, .heads = 2, .channels = 32, .vocab = 260, .context = 100};

// A token for each byte, and the one that ends a text. The model has three more.
text::Tokenizer byte_tokenizer() {
  text::TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  spec.tokens.emplace_back("<|endoftext|>");
  text::AddedToken end;
  end.id = 256;
  end.content = "<|endoftext|>";
  end.special = true;
  spec.added = {end};
  spec.end_of_text = "<|endoftext|>";
  return text::Tokenizer(spec);
}

class TextSequencesTest : public ::testing::Test {
 protected:
  struct Whole {
    std::string text;
    std::vector<std::int32_t> ids;
    std::vector<std::string> pieces;
    TextEnd end = TextEnd::none;
    std::string error;
  };

  using All = std::map<TextSequences::Id, Whole>;

  void step(TextSequences& sequences, All& all) {
    for (const TextSequences::Event& event : sequences.step()) {
      Whole& whole = all[event.sequence];
      EXPECT_EQ(whole.end, TextEnd::none);  // no event after the end
      whole.text += event.text;
      whole.pieces.push_back(event.text);
      if (event.token) whole.ids.push_back(*event.token);
      whole.end = event.end;
      if (event.error) whole.error = event.error->what();
    }
  }
  All run(TextSequences& sequences) {
    All all;
    while (!engine_.idle()) step(sequences, all);
    return all;
  }
  Whole run_one(std::string_view prompt, const GenerationOptions& options,
                const std::vector<std::string>& stops = {}) {
    TextSequences sequences(engine_, &tokenizer_);
    const TextSequences::Id id = sequences.add(prompt_ids(tokenizer_, prompt), options, stops);
    return run(sequences)[id];
  }

  const text::Tokenizer tokenizer_ = byte_tokenizer();
  const DecoderWeights weights_ = initial_weights(DType::f32, kSizes);
  Context context_{ContextOptions{}};
  DecodingEngine engine_{context_, weights_, {.sequences = 4, .batch_invariant = true}};
};

// The model draws arbitrary bytes, so its characters are often incomplete, and repairing the pieces must not
// differ from repairing the whole.
TEST_F(TextSequencesTest, PiecesJoinToTheTextOfTheIds) {
  TextSequences sequences(engine_, &tokenizer_);
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    sequences.add(prompt_ids(tokenizer_, "the"), {.max_tokens = 50, .sampling = {.seed = seed}});
  std::size_t repaired = 0;
  for (const auto& entry : run(sequences)) {
    const Whole& whole = entry.second;
    EXPECT_EQ(whole.end, TextEnd::length);
    ASSERT_EQ(whole.ids.size(), 50u);
    std::vector<text::TokenId> known;
    for (const std::int32_t id : whole.ids) {
      if (id <= 256) known.push_back(static_cast<text::TokenId>(id));
    }
    EXPECT_EQ(whole.text, tokenizer_.decode(known));
    std::string pieces;
    for (const std::string& piece : whole.pieces) pieces += text::repair_utf8(piece);
    EXPECT_EQ(pieces, text::repair_utf8(whole.text));
    repaired += pieces != whole.text;
  }
  EXPECT_GT(repaired, 10u);
}

TEST_F(TextSequencesTest, AStopTextEndsASequenceBeforeIt) {
  const GenerationOptions options{.max_tokens = 60, .sampling = {.seed = 3}};
  const Whole whole = run_one("the", options);
  for (std::size_t at = 0; at + 3 < whole.text.size(); at += 7) {
    const std::string stop = whole.text.substr(at, 3);
    const Whole stopped = run_one("the", options, {"never in it", stop});
    EXPECT_EQ(stopped.end, TextEnd::stop);
    EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_LE(stopped.ids.size(), whole.ids.size());
  }
  const Whole other = run_one("the", options, {"never in it"});
  EXPECT_EQ(other.text, whole.text);
  EXPECT_EQ(other.end, TextEnd::length);
}

TEST_F(TextSequencesTest, AnEndOfTextIsNoTokenOfTheText) {
  GenerationOptions options{.max_tokens = 60, .sampling = {.seed = 3}};
  const Whole whole = run_one("the", options);
  options.end_of_text = {whole.ids[5]};
  const Whole ended = run_one("the", options);
  EXPECT_EQ(ended.end, TextEnd::end_of_text);
  EXPECT_LE(ended.ids.size(), 5u);
  EXPECT_EQ(whole.text.find(ended.text), 0u);
}

TEST_F(TextSequencesTest, BadOnesDoNotDisturbOthers) {
  const GenerationOptions options{.max_tokens = 30, .sampling = {.seed = 3}};
  const Whole alone = run_one("the", options);
  TextSequences sequences(engine_, &tokenizer_);
  const TextSequences::Id good = sequences.add(prompt_ids(tokenizer_, "the"), options);
  const std::vector<std::int32_t> ids = {1, 2};
  All all;
  const auto refused = [&](const std::vector<std::int32_t>& prompt, const GenerationOptions& bad,
                           const std::vector<std::string>& stops, const std::string& message) {
    step(sequences, all);
    try {
      sequences.add(prompt, bad, stops);
      ADD_FAILURE() << "no error with " << message;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).rfind(message, 0), 0u) << error.what();
    }
  };
  refused({}, options, {}, "prompt: has no tokens");
  refused(std::vector<std::int32_t>(101, 1), options, {}, "prompt: has 101 tokens, the context is 100");
  refused({1, 260}, options, {}, "prompt: has the token 260, the vocabulary has ids below 260");
  refused({-1}, options, {}, "prompt: has the token -1");
  refused(ids, {.max_tokens = 0}, {}, "number of tokens: is 0, must be at least 1");
  refused(ids, options, {"a", ""}, "stop: is empty");
  refused(ids, {.sampling = {.temperature = -1}}, {}, "temperature: is -1");
  refused(ids, {.sampling = {.top_k = -2}}, {}, "top_k: is -2");
  refused(ids, {.sampling = {.top_p = 0}}, {}, "top_p: is 0");
  refused(ids, {.sampling = {.min_p = 2}}, {}, "min_p: is 2");
  refused(ids, {.sampling = {.repetition_penalty = 0}}, {}, "repetition_penalty: is 0");
  refused(ids, {.sampling = {.temperature = 0, .top_k = 4}}, {}, "top_k: is 4, but temperature 0");
  refused(ids, {.sampling = {.temperature = 0, .top_p = 0.5}}, {}, "top_p: is 0.5, but temperature 0");
  refused(ids, {.sampling = {.temperature = 0, .min_p = 0.5}}, {}, "min_p: is 0.5, but temperature 0");
  while (!engine_.idle()) step(sequences, all);
  EXPECT_EQ(all.size(), 1u);
  EXPECT_EQ(all[good].end, TextEnd::length);
  EXPECT_EQ(all[good].text, alone.text);
}

TEST_F(TextSequencesTest, AnErrorEndsOneSequence) {
  const Tensor& positions = weights_.parameters.at("wpe.weight");
  positions.as<float>()[20 * kSizes.channels] = std::numeric_limits<float>::quiet_NaN();
  TextSequences sequences(engine_, &tokenizer_);
  const TextSequences::Id ends = sequences.add(prompt_ids(tokenizer_, "the"), {.max_tokens = 10});
  const TextSequences::Id fails = sequences.add(prompt_ids(tokenizer_, "a cat"), {.max_tokens = 30});
  All all = run(sequences);
  EXPECT_EQ(all[ends].end, TextEnd::length);
  EXPECT_EQ(all[fails].end, TextEnd::error);
  EXPECT_EQ(all[fails].ids.size(), 16u);  // positions 5 to 20 were drawn before
  EXPECT_NE(all[fails].error.find("a logit is not finite"), std::string::npos) << all[fails].error;
}

TEST_F(TextSequencesTest, WithoutATokenizerThereAreOnlyIds) {
  TextSequences sequences(engine_, nullptr);
  const std::vector<std::int32_t> ids = {1, 2, 3};
  EXPECT_THROW(sequences.add(ids, {}, {"stop"}), UsageError);
  const TextSequences::Id id = sequences.add(ids, {.max_tokens = 10});
  const All all = run(sequences);
  EXPECT_EQ(all.at(id).ids.size(), 10u);
  EXPECT_EQ(all.at(id).text, "");
}

TEST(DecodingMemory, SaysWhatWouldFit) {
  GPT2Config sizes = kSizes;
  sizes.context = 100'000;
  const DecoderWeights weights = initial_weights(DType::f32, sizes);
  Context context{ContextOptions{}};
  const auto refusal = [&](const DecodingOptions& options) -> std::string {
    try {
      require_room(context, weights, options);
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.sequences = 2}), "");
  const DecodingOptions too_many{.sequences = 20'000};
  const std::string sequences = refusal(too_many);  // 1 TB
  EXPECT_NE(sequences.find(" needed for 20000 sequences with a context of 100000 tokens, "),
            std::string::npos)
      << sequences;
  EXPECT_NE(sequences.find(" would fit"), std::string::npos) << sequences;
  const DecodingOptions fitting = with_sequences_that_fit(context, weights, too_many);
  EXPECT_LT(fitting.sequences, too_many.sequences);
  EXPECT_GE(fitting.sequences, 1);
  // Other programs take and free memory meanwhile.
  DecodingOptions fewer = fitting, more = fitting;
  fewer.sequences = std::max<std::int64_t>(1, fitting.sequences / 2);
  more.sequences = 2 * fitting.sequences + 2;
  EXPECT_EQ(refusal(fewer), "");
  EXPECT_NE(refusal(more), "");
  const std::string cache = refusal({.sequences = 2, .cache_tokens = 2'000'000'000});
  EXPECT_NE(cache.find("and a cache of 2000000000 tokens, "), std::string::npos) << cache;
  EXPECT_NE(cache.find("; a cache of "), std::string::npos) << cache;
  EXPECT_THROW(refusal({.sequences = 30'000}), UsageError);  // no cache holds these
  EXPECT_THROW(refusal({.context = 100'001}), UsageError);
}

}  // namespace
}  // namespace warpwright
