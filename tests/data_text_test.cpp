// Tests the data builder with a real tokenizer. Cutting long documents for parallel encoding must not change
// their ids.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/build.hpp"
#include "data/documents.hpp"
#include "data/loader.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// Text that consists mostly of borders: runs of white space of several kinds, contractions, digits,
// punctuation, broken UTF-8.
std::string border_text(std::size_t bytes, std::uint64_t seed) {
  static constexpr std::array<std::string_view, 24> kParts = {
      "the",    "a",      "don't",  "'s",     "12",           "3",   ".",  "...", " ",
      "  ",     "\n",     "\n\n",   "\t",     "\r\n",         "é",   "日", "😀",   "\u00a0",
      "\u2003", "\u3000", "\u0085", "\u1680", "\xe3\x80\xff", "\x80"};
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) text += kParts[random() % kParts.size()];
  return text;
}

text::Tokenizer border_tokenizer() {
  const std::string corpus = border_text(300000, 1);
  const std::string_view document = corpus;
  text::TokenizerTraining options;
  options.vocab_size = 2000;
  return text::train_tokenizer(std::span(&document, 1), options);
}

TEST(DataAndText, EveryCutKeepsTheIds) {
  const text::Tokenizer tokenizer = border_tokenizer();
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const std::string text = border_text(400, seed);
    const std::size_t cut = cut_before(text, 300);
    ASSERT_GT(cut, 0u);
    ASSERT_LE(cut, 300u);
    auto parts = tokenizer.encode(std::string_view(text).substr(0, cut));
    tokenizer.encode(std::string_view(text).substr(cut), parts);
    ASSERT_EQ(parts, tokenizer.encode(text)) << testing::PrintToString(text) << " cut at " << cut;
  }
}

TEST(DataAndText, ALongDocumentGetsTheIdsOfTheWhole) {
  const fs::path folder = fs::temp_directory_path() / ("warpwright_data_text" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string text = border_text(3 << 20, 7);
  std::ofstream(folder / "in.txt", std::ios::binary) << text;
  const text::Tokenizer tokenizer = border_tokenizer();
  BuildOptions options;
  options.inputs = {folder / "in.txt"};
  options.out = folder / "out";
  options.val_fraction = 0;
  options.vocabulary_size = static_cast<std::int64_t>(tokenizer.vocab_size());
  options.end_of_text = static_cast<std::int32_t>(*tokenizer.eos_id());
  const auto encode = [&](std::string_view piece, bool, std::vector<std::int32_t>& ids) {
    for (const text::TokenId id : tokenizer.encode(piece)) ids.push_back(static_cast<std::int32_t>(id));
  };
  build_shards(options, encode, {});

  const TokenStream stream(options.out, Split::train, options.vocabulary_size);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.tokens()));
  stream.read(0, ids);
  std::vector<std::int32_t> expected;
  encode(text, false, expected);
  expected.push_back(options.end_of_text);
  EXPECT_TRUE(ids == expected) << ids.size() << " and " << expected.size() << " ids";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace warpwright
