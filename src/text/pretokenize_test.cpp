#include "text/pretokenize.hpp"

#include <gtest/gtest.h>

#include <random>

#include "text/byte_alphabet.hpp"
#include "text/golden.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr Pattern kPatterns[] = {Pattern::gpt2, Pattern::cl100k, Pattern::qwen, Pattern::digits,
                                 Pattern::each_digit};

std::vector<std::string> pieces_of(std::string_view text, Pattern pattern = Pattern::gpt2) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = piece_end(pattern, text, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
  }
  return pieces;
}

TEST(Unicode, ClassesOfKnownCodePoints) {
  const UnicodeTable& table = UnicodeTable::instance();
  EXPECT_EQ(table.classes('a'), kLetter | kWord);
  EXPECT_EQ(table.classes('7'), kNumber | kWord);
  EXPECT_EQ(table.classes('_'), kWord);
  EXPECT_EQ(table.classes('-'), 0);
  EXPECT_EQ(table.classes(0xa0), kSpace);
  EXPECT_EQ(table.classes(0x180e), 0);                // not white space since Unicode 6.3
  EXPECT_EQ(table.classes(0x1c89), kLetter | kWord);  // new in Unicode 16.0
  EXPECT_EQ(table.classes(0x323af), kLetter | kWord);
  EXPECT_EQ(table.classes(0x323b0), 0);  // assigned in Unicode 17.0
  EXPECT_EQ(table.classes(0x0301), kWord);
  EXPECT_EQ(table.classes(0x10ffff), 0);
  EXPECT_EQ(table.classes(0x110000), 0);
  EXPECT_EQ(table.classes(kInvalidByte), 0);
}

TEST(Unicode, DecodesExactlyTheWellFormedSequences) {
  const auto decode = [](std::string_view s) {
    const auto* p = reinterpret_cast<const unsigned char*>(s.data());
    return decode_utf8(p, p + s.size());
  };
  EXPECT_EQ(decode("é").code, 0xe9u);
  EXPECT_EQ(decode("€").length, 3u);
  EXPECT_EQ(decode("\xf4\x8f\xbf\xbf").code, 0x10ffffu);
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xe2\x82", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(decode(bad).code, kInvalidByte) << bad;
    EXPECT_EQ(decode(bad).length, 1u);
  }
}

TEST(ByteAlphabet, SpellsEveryByteOnceAndBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(unspell_bytes(spell_bytes(all)), all);
  EXPECT_EQ(spell_bytes(" a\n"), "ĠaĊ");
  EXPECT_EQ(unspell_bytes("a b"), std::nullopt);
  EXPECT_EQ(unspell_bytes("\xc4"), std::nullopt);
  EXPECT_EQ(alphabet_rank('!'), 0u);
  EXPECT_EQ(alphabet_rank(0xad), 255u);
}

TEST(Pretokenize, CutsGoldenStringsAsHuggingFaceDoes) {
  for (const GoldenCase& c : golden_cases()) EXPECT_EQ(pieces_of(c.text), c.pieces) << c.text;
}

TEST(Pretokenize, CutsByTheLaterPatterns) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of("a'LLb '\u017f", Pattern::cl100k), (Pieces{"a", "'LL", "b", " '", "\u017f"}));
  EXPECT_EQ(pieces_of("'\u017fx", Pattern::cl100k), (Pieces{"'\u017f", "x"}));
  EXPECT_EQ(pieces_of("!\n\n  b", Pattern::cl100k), (Pieces{"!\n\n", " ", " b"}));
  EXPECT_EQ(pieces_of(" \n \n  b\n ", Pattern::cl100k), (Pieces{" \n \n", " ", " b", "\n", " "}));
  EXPECT_EQ(pieces_of("-a \ta \n", Pattern::qwen), (Pieces{"-a", " ", "\ta", " \n"}));
  EXPECT_EQ(pieces_of(" 12345", Pattern::cl100k), (Pieces{" ", "123", "45"}));
  EXPECT_EQ(pieces_of(" 123", Pattern::qwen), (Pieces{" ", "1", "2", "3"}));
  EXPECT_EQ(pieces_of("a12 3", Pattern::digits), (Pieces{"a", "12", " ", "3"}));
  EXPECT_EQ(pieces_of("a12\u00bd", Pattern::each_digit), (Pieces{"a", "1", "2", "\u00bd"}));
}

TEST(Pretokenize, KnowsThePatternsByTheirExpressions) {
  for (const Pattern pattern : {Pattern::gpt2, Pattern::cl100k, Pattern::qwen}) {
    EXPECT_EQ(pattern_of(expression_of(pattern)), pattern);
  }
  EXPECT_EQ(pattern_of(std::string(expression_of(Pattern::qwen)) + "|x"), std::nullopt);
  EXPECT_EQ(expression_of(Pattern::digits), "");
}

// The bytes with U+FFFD for each one outside well-formed UTF-8.
std::string with_replacements(const std::string& bytes) {
  std::string replaced;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(p + i, p + bytes.size());
    replaced += c.code == kInvalidByte ? "\xef\xbf\xbd" : bytes.substr(i, c.length);
    i += c.length;
  }
  return replaced;
}

TEST(Pretokenize, InvalidBytesAreCutAsReplacementCharactersWouldBe) {
  std::mt19937 random(7);
  const std::string_view parts[] = {"a",  "7", " ",    "  ",   "\n",   "!",
                                    "'s", "é", "\xff", "\xc3", "\x80", "\xed\xa0\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += parts[random() % std::size(parts)];
    for (const Pattern pattern : kPatterns) {
      std::vector<std::string> pieces = pieces_of(bytes, pattern);
      for (std::string& piece : pieces) piece = with_replacements(piece);
      EXPECT_EQ(pieces, pieces_of(with_replacements(bytes), pattern));
    }
  }
}

TEST(Pretokenize, WorkerPartsNeverCutThroughAPiece) {
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  for (const Pattern pattern : {Pattern::gpt2, Pattern::cl100k, Pattern::qwen}) {
    const std::vector<std::string> whole = pieces_of(text, pattern);
    for (std::size_t count : {1, 2, 3, 7, 50, 100000}) {
      std::vector<std::string> joined;
      for (const std::string_view part : split_for_workers(text, count)) {
        ASSERT_FALSE(part.empty());
        const std::vector<std::string> pieces = pieces_of(part, pattern);
        joined.insert(joined.end(), pieces.begin(), pieces.end());
      }
      EXPECT_EQ(joined, whole) << count;
    }
  }
  EXPECT_TRUE(split_for_workers("", 3).empty());
  EXPECT_EQ(split_for_workers(std::string(1000, 'a'), 10).size(), 1u);
}

}  // namespace
}  // namespace warpwright::text
