#include "text/fingerprint.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright::text {
namespace {

class TokenizerFingerprintTest : public TestFolder {
 protected:
  // The 256 bytes, "ab", "abc" and an end-of-text token.
  static TokenizerSpec spec() {
    TokenizerSpec spec;
    for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
    spec.tokens.emplace_back("ab");
    spec.tokens.emplace_back("abc");
    spec.tokens.emplace_back("<|endoftext|>");
    spec.merges = {{'a', 'b'}, {256, 'c'}};
    spec.added = {{"<|endoftext|>", 258, true}};
    spec.end_of_text = "<|endoftext|>";
    return spec;
  }

  template <class Change>
  static std::string changed(Change change) {
    TokenizerSpec other = spec();
    change(other);
    return difference(fingerprint_of(Tokenizer(spec())), fingerprint_of(Tokenizer(std::move(other))));
  }
};

TEST_F(TokenizerFingerprintTest, SavedAndReadAgainItIsEqual) {
  const Tokenizer tokenizer(spec());
  const TokenizerFingerprint before = fingerprint_of(tokenizer);
  tokenizer.save(folder / "a");
  EXPECT_EQ(fingerprint_in(folder / "a"), before);
  // The same document with different white space.
  const auto path = folder / "a" / "tokenizer.json";
  write_file_atomically(path, nlohmann::json::parse(read_file(path, 1 << 20)).dump(7));
  EXPECT_EQ(fingerprint_in(folder / "a"), before);
  EXPECT_FALSE(fingerprint_in(folder));
  EXPECT_EQ(difference(before, before), "");
  EXPECT_EQ(tokenizer_fingerprint(nlohmann::json::parse(to_json(before).dump())), before);
}

TEST_F(TokenizerFingerprintTest, DifferencesAreNamed) {
  EXPECT_EQ(changed([](TokenizerSpec& s) { std::swap(s.tokens[0], s.tokens[1]); }), "the vocabulary");
  EXPECT_EQ(changed([](TokenizerSpec& s) { s.merges.pop_back(); }), "the merges");
  EXPECT_EQ(changed([](TokenizerSpec& s) { s.added[0].lstrip = true; }), "the added tokens");
  EXPECT_EQ(changed([](TokenizerSpec& s) { s.ignore_merges = true; }), "the rules for cutting text");
  EXPECT_EQ(changed([](TokenizerSpec& s) {
              s.tokens.emplace_back("bc");
              s.merges.push_back({'b', 'c'});
            }),
            "the vocabulary (259 tokens, now 260) and the merges");
}

}  // namespace
}  // namespace warpwright::text
