#include "text/stop_texts.hpp"

#include <gtest/gtest.h>

namespace warpwright::text {
namespace {

struct Result {
  std::string text;
  bool found = false;
};

// Feeds the text in pieces of this size.
Result stopped(const std::vector<std::string>& stops, const std::string& text, std::size_t size) {
  StopTexts stop(stops);
  Result result;
  for (std::size_t at = 0; at < text.size() && !stop.found(); at += size) {
    result.text += stop.push(std::string_view(text).substr(at, size));
  }
  result.found = stop.found();
  result.text += stop.finish();
  return result;
}

TEST(StopTexts, EndTheTextBeforeThemInPiecesOfAnySize) {
  for (const std::size_t size : {1u, 2u, 3u, 5u, 100u}) {
    EXPECT_EQ(stopped({"\n\n"}, "one\ntwo\n\nthree", size).text, "one\ntwo");
    EXPECT_EQ(stopped({"END", "."}, "It ENDS. Not", size).text, "It ");
    EXPECT_EQ(stopped({"aab"}, "aaaab", size).text, "aa");
    EXPECT_EQ(stopped({"abcd", "bc"}, "xabcx", size).text, "xa");
    EXPECT_EQ(stopped({"\xe2\x82\xac"}, "5 \xe2\x82\xac!", size).text, "5 ");
    EXPECT_TRUE(stopped({"x"}, "abcx", size).found);
  }
}

TEST(StopTexts, PassOnWhatOnlyBeginsLikeOne) {
  for (const std::size_t size : {1u, 2u, 100u}) {
    const Result result = stopped({"###", "abab"}, "## ababb aba", size);
    EXPECT_EQ(stopped({"###"}, "## #", size).text, "## #");
    EXPECT_FALSE(stopped({"###"}, "## #", size).found);
    EXPECT_EQ(result.text, "## ");
    EXPECT_EQ(stopped({}, "anything", size).text, "anything");
  }
}

TEST(StopTexts, HoldBackNoMoreThanNecessary) {
  StopTexts stop({"\n\n"});
  EXPECT_EQ(stop.push("a\n"), "a");
  EXPECT_EQ(stop.push("b"), "\nb");
  EXPECT_EQ(stop.push("\n"), "");
  EXPECT_EQ(stop.finish(), "\n");
}

}  // namespace
}  // namespace warpwright::text
