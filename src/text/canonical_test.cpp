#include "text/canonical.hpp"

#include <gtest/gtest.h>

#include <random>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

std::string nfc(std::string_view text) {
  std::string buffer;
  return std::string(to_nfc(text, buffer));
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("A\u030a\u212b"), "\u00c5\u00c5");       // the Angstrom sign is a singleton
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");        // Hangul from three parts
  EXPECT_EQ(nfc("\uac00\u11a8"), "\uac01");              // and from a syllable and a part
  EXPECT_EQ(nfc("\u1100\u1161\u11a7"), "\uac00\u11a7");  // U+11A7 is not a trailing consonant
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");      // class 220 comes before 230
  EXPECT_EQ(nfc("\u1e0b\u0323"), "\u1e0d\u0307");        // decomposes, is ordered, composes otherwise
  EXPECT_EQ(nfc("a\u0315\u0300\u05ae\u0062"), "\u00e0\u05ae\u0315b");
  EXPECT_EQ(nfc("e\u0300\u0301"), "\u00e8\u0301");  // the second of a class is blocked
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");         // excluded from composition
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(nfc("\u0f71\u0f72\u0f73"), "\u0f71\u0f71\u0f72\u0f72");
}

TEST(Nfc, ReturnsATextThatIsNfcItself) {
  const std::string text = "plain, \u00e9t\u00e9, \uac01, \u4f60\u597d, \U0001f600\xff";
  std::string buffer;
  EXPECT_EQ(to_nfc(text, buffer).data(), text.data());
  EXPECT_EQ(nfc(""), "");
}

TEST(Nfc, NothingComposesAcrossInvalidBytes) {
  EXPECT_EQ(nfc("e\xff\u0301"), "e\xff\u0301");
  EXPECT_EQ(nfc("\x80\u0301\x80"), "\x80\u0301\x80");
  EXPECT_EQ(nfc("e\u0301\xc3"), "\u00e9\xc3");
  std::mt19937 random(3);
  const std::string_view parts[] = {"e",    "\u0301", "\u0323", "\xff",  "\x80",
                                    "\xcc", "\u1100", "\u1161", "\u11a8"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (int i = 0; i < 10; ++i) text += parts[random() % std::size(parts)];
    const std::string once = nfc(text);
    EXPECT_EQ(nfc(once), once) << testing::PrintToString(text);
    EXPECT_LE(once.size(), text.size());
  }
}

}  // namespace
}  // namespace warpwright::text
