#include "text/train.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "text/canonical.hpp"
#include "text/golden.hpp"

namespace warpwright::text {
namespace {

TokenizerTraining options_of(std::size_t vocab_size) {
  TokenizerTraining options;
  options.vocab_size = vocab_size;
  return options;
}

Tokenizer train_on(std::string_view text, const TokenizerTraining& options) {
  return train_tokenizer(std::span<const std::string_view>(&text, 1), options);
}

TEST(Train, GivesTheTokenizerThatHuggingFacesTrainerGives) {
  const Tokenizer golden = Tokenizer::load(golden_folder());
  TokenizerTraining options = options_of(golden.vocab_size());
  options.special_tokens = {"<|endoftext|>", "<|pad|>"};
  const Tokenizer trained = train_on(read_file(golden_folder() / "text.txt", 1 << 26), options);
  EXPECT_EQ(trained.spec().tokens, golden.spec().tokens);
  EXPECT_EQ(trained.spec().merges, golden.spec().merges);
  EXPECT_EQ(trained.spec().added, golden.spec().added);
  EXPECT_EQ(trained.eos_id(), golden.eos_id());
}

TEST(Train, CutsByTheLaterPatternsAsHuggingFaceDoes) {
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  std::string buffer;
  const auto expect_golden = [&](const char* family, std::string_view document,
                                 const TokenizerTraining& options) {
    const Tokenizer golden = Tokenizer::load(golden_folder() / "decoders" / family);
    const Tokenizer trained = train_on(document, options);
    EXPECT_EQ(trained.spec().merges, golden.spec().merges) << family;
    EXPECT_TRUE(
        std::equal(trained.spec().tokens.begin(), trained.spec().tokens.end(), golden.spec().tokens.begin()));
    EXPECT_EQ(trained.spec().patterns, golden.spec().patterns);
    EXPECT_EQ(trained.spec().use_regex, golden.spec().use_regex);
  };
  TokenizerTraining options = options_of(900);
  options.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  options.patterns = {Pattern::each_digit};
  expect_golden("smollm2", text, options);
  options.special_tokens.clear();  // the others were added after training
  options.use_regex = false;
  options.patterns = {Pattern::cl100k};
  expect_golden("llama3", text, options);
  options.patterns = {Pattern::qwen};
  expect_golden("qwen2", to_nfc(text, buffer), options);
  options.patterns = Tokenizer::load(golden_folder() / "decoders/o200k").spec().patterns;
  expect_golden("o200k", text, options);
  options.patterns = Tokenizer::load(golden_folder() / "decoders/deepseek").spec().patterns;
  expect_golden("deepseek", text, options);
}

TEST(Train, DoesNotDependOnThreadsOrOnHowDocumentsAreOrdered) {
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  std::string large;
  for (int i = 0; i < 400; ++i) large += text;  // enough for several parts
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const Tokenizer one = train_on(large, options_of(400));
  ::setenv("OMP_NUM_THREADS", "5", 1);
  const Tokenizer five = train_on(large, options_of(400));
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(one.spec().merges, five.spec().merges);
  EXPECT_EQ(one.spec().tokens, five.spec().tokens);
}

TEST(Train, TiesGoToTheSmallerIds) {
  // "zy" and "ba" occur twice each. 'b' sorts before 'z'.
  const Tokenizer tokenizer = train_on("zy zy ba ba", options_of(258));
  EXPECT_EQ(tokenizer.bytes_of(257), "ba");
}

TEST(Train, StopsWhereNoPairIsLeft) {
  const Tokenizer tokenizer = train_on("ab ab c", options_of(1000));
  EXPECT_EQ(tokenizer.vocab_size(), 257u + 3);  // "ab", " ab" and " c"
  EXPECT_EQ(train_on("a", options_of(1000)).vocab_size(), 257u);
}

TEST(Train, SpecialTokensInTheTextAreText) {
  const Tokenizer tokenizer = train_on("<|endoftext|><|endoftext|>", options_of(300));
  EXPECT_TRUE(tokenizer.id_of("endoftext"));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 3u);
}

TEST(Train, ReportsProgressToTheEnd) {
  std::size_t counted = 0, merged = 0;
  TokenizerTraining options = options_of(600);
  options.progress = [&](const TrainProgress& progress) {
    const bool counting = progress.phase == TrainProgress::Phase::counting;
    if (!counting) {
      EXPECT_LE(progress.done, progress.total);
    }
    (counting ? counted : merged) = progress.done;
  };
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  train_on(text, options);
  EXPECT_EQ(counted, text.size());
  EXPECT_EQ(merged, 600u);
}

TEST(Train, AnErrorInTheProgressCallbackComesOut) {
  TokenizerTraining options = options_of(300);
  options.progress = [](const TrainProgress&) { throw Error("stop", "test", "none"); };
  EXPECT_THROW(train_on("some text", options), Error);
}

TEST(Train, RefusesImpossibleOptions) {
  EXPECT_THROW(train_on("text", options_of(256)), UsageError);
  EXPECT_THROW(train_on("text", options_of(std::size_t{1} << 40)), UsageError);
  EXPECT_THROW(train_on("", options_of(300)), Error);
  EXPECT_THROW(train_tokenizer(std::span<const std::string_view>(), options_of(300)), Error);
  TokenizerTraining options = options_of(300);
  for (const char* bad : {"", "a", "word", " word", "!!", "'s", "\n\n"}) {
    options.special_tokens = {bad};
    EXPECT_THROW(train_on("text", options), UsageError) << bad;
  }
  options.special_tokens = {"<s>", "<s>"};
  EXPECT_THROW(train_on("text", options), UsageError);
}

}  // namespace
}  // namespace warpwright::text
