#include "text/pretokenize.hpp"

#include <gtest/gtest.h>

#include <random>

#include "text/byte_alphabet.hpp"
#include "text/golden.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = pretoken_end(text, begin);
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

TEST(Pretokenize, InvalidBytesAreCutAsReplacementCharactersWouldBe) {
  const std::string kReplacement = "\xef\xbf\xbd";
  std::mt19937 random(7);
  const std::string_view parts[] = {"a",  "7", " ",    "  ",   "\n",   "!",
                                    "'s", "é", "\xff", "\xc3", "\x80", "\xed\xa0\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes, replaced;
    for (int i = 0; i < 12; ++i) {
      const std::string_view part = parts[random() % std::size(parts)];
      bytes += part;
    }
    std::vector<std::size_t> lengths;  // for each character of `replaced`, the length of its source
    for (std::size_t i = 0; i < bytes.size();) {
      const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
      const Utf8Char c = decode_utf8(p + i, p + bytes.size());
      replaced += c.code == kInvalidByte ? kReplacement : bytes.substr(i, c.length);
      i += c.length;
    }
    std::string joined;
    for (const std::string& piece : pieces_of(bytes)) {
      for (std::size_t i = 0; i < piece.size();) {
        const auto* p = reinterpret_cast<const unsigned char*>(piece.data());
        const Utf8Char c = decode_utf8(p + i, p + piece.size());
        joined += c.code == kInvalidByte ? kReplacement : piece.substr(i, c.length);
        i += c.length;
      }
      joined += '|';
    }
    std::string expected;
    for (const std::string& piece : pieces_of(replaced)) expected += piece + '|';
    EXPECT_EQ(joined, expected);
  }
}

TEST(Pretokenize, WorkerPartsNeverCutThroughAPiece) {
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  const std::vector<std::string> whole = pieces_of(text);
  for (std::size_t count : {1, 2, 3, 7, 50, 100000}) {
    std::vector<std::string> joined;
    for (const std::string_view part : split_for_workers(text, count)) {
      ASSERT_FALSE(part.empty());
      const std::vector<std::string> pieces = pieces_of(part);
      joined.insert(joined.end(), pieces.begin(), pieces.end());
    }
    EXPECT_EQ(joined, whole) << count;
  }
  EXPECT_TRUE(split_for_workers("", 3).empty());
  EXPECT_EQ(split_for_workers(std::string(1000, 'a'), 10).size(), 1u);
}

}  // namespace
}  // namespace warpwright::text
