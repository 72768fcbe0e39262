#include "text/tokenizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "core/error.hpp"
#include "text/golden.hpp"
#include "text/stream_decoder.hpp"

namespace warpwright::text {
namespace {

// Ids 0 to 255 are the 256 bytes; then come "ab", "abc", "bc" and an end-of-text token.
TokenizerSpec small_spec() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"ab", "abc", "bc", "<|endoftext|>"}) spec.tokens.emplace_back(token);
  spec.merges = {{'b', 'c'}, {'a', 'b'}, {'a', 258}, {256, 'c'}};
  AddedToken eos;
  eos.content = spec.end_of_text = "<|endoftext|>";
  eos.id = 259;
  eos.special = true;
  spec.added = {eos};
  return spec;
}

AddedToken& add(TokenizerSpec& spec, const std::string& content) {
  AddedToken token;
  token.content = content;
  token.id = static_cast<TokenId>(spec.tokens.size());
  spec.tokens.push_back(content);
  return spec.added.emplace_back(token);
}

using Ids = std::vector<TokenId>;

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer(small_spec());
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{256}));
  EXPECT_EQ(tokenizer.encode("abab"), (Ids{256, 256}));
  EXPECT_EQ(tokenizer.encode("cab"), (Ids{'c', 256}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.vocab_size(), 260u);
  EXPECT_EQ(tokenizer.eos_id(), 259u);
  EXPECT_EQ(tokenizer.id_of("abc"), 257u);
  EXPECT_EQ(tokenizer.id_of("abcd"), std::nullopt);
}

TEST(Tokenizer, GoldenStringsHaveHuggingFacesIds) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  for (const GoldenCase& c : golden_cases()) {
    EXPECT_EQ(tokenizer.encode(c.text), c.ids) << c.text;
    EXPECT_EQ(tokenizer.decode(c.ids), c.text);
  }
}

TEST(Tokenizer, GoldenStringsHaveHuggingFacesIdsWithGpt2sVocabulary) {
  const auto folder = gpt2_folder();
  if (!folder) GTEST_SKIP() << "GPT-2's vocabulary is not here: set WARPWRIGHT_GPT2_TOKENIZER to its folder";
  const Tokenizer tokenizer = Tokenizer::load(*folder);
  EXPECT_EQ(tokenizer.vocab_size(), 50257u);
  EXPECT_EQ(tokenizer.eos_id(), 50256u);
  for (const GoldenCase& c : golden_cases()) EXPECT_EQ(tokenizer.encode(c.text), c.gpt2_ids) << c.text;
}

TEST(Tokenizer, AnyBytesSurviveTheRoundTrip) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
  }
}

TEST(Tokenizer, SpecialTokensInTextAreTextUnlessAskedFor) {
  const Tokenizer tokenizer(small_spec());
  const std::string text = "ab<|endoftext|>c";
  const Ids plain = tokenizer.encode(text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 259u), 0);
  EXPECT_EQ(tokenizer.decode(plain), text);
  EXPECT_EQ(tokenizer.encode(text, SpecialTokens::recognize), (Ids{256, 259, 'c'}));
}

TEST(Tokenizer, AddedTokensTakeSpaceAndStandAloneAsTheirFlagsSay) {
  TokenizerSpec spec = small_spec();
  add(spec, "L!").lstrip = true;         // 260
  add(spec, "R!").rstrip = true;         // 261
  add(spec, "word").single_word = true;  // 262
  add(spec, "N!").normalized = true;     // 263: found in the second round, in the remaining text
  add(spec, "N!R!");                     // 264: longer, and found in the first round
  const Tokenizer tokenizer(std::move(spec));
  EXPECT_EQ(tokenizer.encode("a \xc2\xa0L! b"), (Ids{'a', 260, ' ', 'b'}));
  EXPECT_EQ(tokenizer.encode("R! \n\xe3\x80\x80"
                             "b R!"),
            (Ids{261, 'b', ' ', 261}));
  EXPECT_EQ(tokenizer.encode("word.word"), (Ids{262, '.', 262}));
  EXPECT_EQ(tokenizer.encode("words"), (Ids{'w', 'o', 'r', 'd', 's'}));
  EXPECT_EQ(tokenizer.encode("\xc3\xa9word"), (Ids{0xc3, 0xa9, 'w', 'o', 'r', 'd'}));
  EXPECT_EQ(tokenizer.encode("N!R!"), (Ids{264}));
  EXPECT_EQ(tokenizer.encode("N!L!"), (Ids{263, 260}));
}

TEST(Tokenizer, WhiteSpaceThatATokenTookIsNotTakenAgain) {
  TokenizerSpec spec = small_spec();
  add(spec, "R!").rstrip = true;  // 260
  add(spec, "  ").lstrip = true;  // 261
  add(spec, " a").lstrip = true;  // 262
  const Tokenizer tokenizer(std::move(spec));
  EXPECT_EQ(tokenizer.encode("R!   b"), (Ids{260, 'b'}));
  EXPECT_EQ(tokenizer.encode("R!     b"), (Ids{260, 'b'}));
  EXPECT_EQ(tokenizer.encode("R!  a"), (Ids{260, 'a'}));
  EXPECT_EQ(tokenizer.encode("R! a"), (Ids{260, 262}));  // as in the reference: the "a" is left
  EXPECT_EQ(tokenizer.encode("b   a"), (Ids{'b', 261, 262}));
}

TEST(Tokenizer, OptionsOfTheByteLevelStep) {
  TokenizerSpec spec = small_spec();
  spec.add_prefix_space = true;
  EXPECT_EQ(Tokenizer(spec).encode("c"), (Ids{' ', 'c'}));
  EXPECT_EQ(Tokenizer(spec).encode(" c"), (Ids{' ', 'c'}));
  EXPECT_EQ(Tokenizer(spec).encode("c<|endoftext|>c", SpecialTokens::recognize),
            (Ids{' ', 'c', 259, ' ', 'c'}));
  EXPECT_EQ(Tokenizer(spec).encode(""), Ids{});
  spec = small_spec();
  spec.tokens.push_back("c a");
  spec.tokens.push_back("c ");
  spec.merges.push_back({'c', ' '});
  spec.use_regex = false;
  EXPECT_EQ(Tokenizer(spec).encode("c a"), (Ids{261, 'a'}));
  spec.ignore_merges = true;
  EXPECT_EQ(Tokenizer(spec).encode("c a"), (Ids{260}));
  EXPECT_EQ(Tokenizer(spec).encode("<|endoftext|>").size(), 13u);  // plain text never gives a special token
}

TEST(Tokenizer, LongWordsMergeAsShortOnesDo) {
  // x, y and z do not merge. So a long word (merged by the heap) has the ids of its parts (merged by the
  // scan).
  const Tokenizer tokenizer(small_spec());
  std::string word;
  Ids expected;
  for (int i = 0; i < 200; ++i) {
    const char* part = i % 3 == 0 ? "abcx" : i % 3 == 1 ? "bcaby" : "aabbccz";
    word += part;
    const Ids ids = tokenizer.encode(part);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer.encode(word), expected);
}

TEST(Tokenizer, HeapAndScanAgreeOnRandomWords) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  MergeTable table(tokenizer.spec().merges.size());
  std::uint32_t rank = 0;
  for (const MergePair& pair : tokenizer.spec().merges) {
    const std::string_view left = tokenizer.bytes_of(pair.left), right = tokenizer.bytes_of(pair.right);
    table.insert(pair, {rank++, *tokenizer.id_of(std::string(left) + std::string(right))});
  }
  std::mt19937 random(5);
  WordMerger merger;
  for (int round = 0; round < 300; ++round) {
    // The oracle searches all pairs for the best one after every merge.
    Ids ids(1 + random() % 150);
    for (TokenId& id : ids) id = *tokenizer.id_of(std::string(1, "aabenth "[random() % 8]));
    Ids expected = ids;
    for (;;) {
      std::size_t best = 0;
      MergeTable::Merge merge;
      for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
        const MergeTable::Merge candidate = table.find(expected[i], expected[i + 1]);
        if (candidate.rank < merge.rank) best = i, merge = candidate;
      }
      if (merge.rank == MergeTable::kNoRank) break;
      expected[best] = merge.result;
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    ids.resize(merger.merge(table, ids));
    ASSERT_EQ(ids, expected);
  }
}

// An encoder with quadratic time at these lengths would exceed the test's time limit.
TEST(Tokenizer, HugeRunsStayFarFromQuadratic) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  for (const char c : {'a', ' ', '-', '\n', '\xff'}) {
    const std::string run(std::size_t{1} << 20, c);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(run)), run) << "of byte " << int{c};
  }
}

TEST(Tokenizer, AddedTokensStayFarFromQuadratic) {
  TokenizerSpec spec = small_spec();
  add(spec, "  ").rstrip = true;
  add(spec, "a a").lstrip = true;
  add(spec, std::string(511, 'x') + "y");
  const Tokenizer tokenizer(std::move(spec));
  for (const char* unit : {"  ", " a", "x"}) {
    std::string text;
    while (text.size() < std::size_t{1} << 20) text += unit;
    EXPECT_FALSE(tokenizer.encode(text).empty()) << unit;
  }
}

TEST(Tokenizer, EncodesFromSeveralThreadsAtOnce) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(8);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) result = tokenizer.encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, SurvivesBeingMoved) {
  Tokenizer first(small_spec());
  first.encode("abc");
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("ab<|endoftext|>", SpecialTokens::recognize), (Ids{256, 259}));
}

TEST(Tokenizer, RefusesIdsBeyondTheVocabulary) {
  const Tokenizer tokenizer(small_spec());
  EXPECT_THROW(tokenizer.decode(Ids{1, 260}), Error);
  EXPECT_THROW(tokenizer.bytes_of(0xffffffff), Error);
}

TEST(StreamDecoder, NeverEndsWithinACharacterAndLosesNothing) {
  const Tokenizer tokenizer(small_spec());
  StreamDecoder decoder(tokenizer);
  std::string out;
  for (const char c : std::string("a\xe2\x82\xac\xf0\x9f\x91\x8d")) {
    const std::string ready = decoder.push(static_cast<unsigned char>(c));
    EXPECT_TRUE(ready.empty() || ready == "a" || ready == "\xe2\x82\xac" || ready == "\xf0\x9f\x91\x8d");
    out += ready;
  }
  EXPECT_EQ(out, "a\xe2\x82\xac\xf0\x9f\x91\x8d");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, LetsInvalidBytesThrough) {
  const Tokenizer tokenizer(small_spec());
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    StreamDecoder decoder(tokenizer);
    Ids ids(random() % 20);
    for (TokenId& id : ids) id = random() % 2 ? random() % 256 : 0x80 + random() % 128;
    std::string out;
    for (const TokenId id : ids) out += decoder.push(id);
    out += decoder.finish();
    EXPECT_EQ(out, tokenizer.decode(ids));
  }
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0xff), "\xff");
  EXPECT_EQ(decoder.push(0xe2), "");
  EXPECT_EQ(decoder.push('a'),
            "\xe2"
            "a");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.finish(), "\xf0");
}

TEST(TokenizerSpecCheck, RefusesWhatCannotBe) {
  const auto message = [](auto&& change) {
    TokenizerSpec spec = small_spec();
    change(spec);
    try {
      const Tokenizer tokenizer(std::move(spec), "FILE");
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "FILE");
      return error.problem();
    }
  };
  EXPECT_EQ(message([](TokenizerSpec&) {}), "accepted");
  EXPECT_NE(message([](auto& s) { s.tokens[7] = "\x08"; }).find("same token"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.tokens[7] = "seven"; }).find("byte 0x07"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.merges.push_back({'a', 9999}); }).find("no token"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.merges.push_back({'x', 'y'}); }).find("lacks"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.merges.push_back({'a', 'b'}); }).find("twice"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.added[0].id = 3; }).find("place"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.added[0].id = 3000; }).find("place"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.added.push_back(s.added[0]); }).find("twice"), std::string::npos);
  EXPECT_NE(message([](auto& s) { add(s, std::string(513, 'x')); }).find("513 bytes"), std::string::npos);
  EXPECT_NE(message([](auto& s) { add(s, "\xff"); }).find("UTF-8"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.end_of_text = "</s>"; }).find("</s>"), std::string::npos);
  // Merges would make this special token out of ordinary text.
  EXPECT_NE(message([](auto& s) {
              AddedToken token;
              token.content = "abc";
              token.id = 257;
              token.special = true;
              s.added.push_back(token);
            }).find("special"),
            std::string::npos);
}

}  // namespace
}  // namespace warpwright::text
