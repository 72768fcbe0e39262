#include "text/split_expression.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "text/character_set.hpp"
#include "text/pieces.hpp"
#include "text/symbol_table.hpp"

namespace warpwright::text {
namespace {

using Pieces = std::vector<std::string>;

SplitExpression expression_of(const std::string& expression, Uncovered uncovered = Uncovered::piece) {
  return SplitExpression(expression, uncovered, "FIELD", "FILE");
}

Pieces cut_by(const std::vector<Cut>& cuts, std::string_view text) {
  CutRules rules;
  rules.patterns = cuts;
  PieceCursor cursor(rules, text);
  Pieces pieces;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = cursor.end_of_piece(begin);
    pieces.emplace_back(text.substr(begin, end - begin));
  }
  return pieces;
}

Pieces cut_by(const std::string& expression, std::string_view text) {
  return cut_by({expression_of(expression)}, text);
}

// The one line of an error, or "" if there is none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "FILE");
    const std::string line = error.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_LT(line.size(), 500u) << line;
    return line;
  }
}

TEST(CharacterSet, IsKnownByItsName) {
  using Ranges = std::vector<CharacterSet::Range>;
  EXPECT_EQ(CharacterSet::named("Zl")->ranges(), (Ranges{{0x2028, 0x2028}}));
  EXPECT_EQ(CharacterSet::named("Z")->ranges()[0], (CharacterSet::Range{' ', ' '}));
  EXPECT_EQ(CharacterSet::named("Cs"), std::nullopt);
  for (const char* unknown : {"", "X", "lu", "Letter", "LuLl"}) {
    EXPECT_EQ(CharacterSet::named(unknown), std::nullopt) << unknown;
  }
  CharacterSet all;
  for (const char* group : {"L", "M", "N", "P", "S", "Z", "C"}) all.add(*CharacterSet::named(group));
  EXPECT_EQ(all.complement().ranges(), (Ranges{{0xd800, 0xdfff}}));
}

TEST(CharacterSet, Algebra) {
  using Ranges = std::vector<CharacterSet::Range>;
  CharacterSet set({{'d', 'f'}, {'a', 'b'}, {'c', 'c'}, {'x', 'z'}});
  EXPECT_EQ(set.ranges(), (Ranges{{'a', 'f'}, {'x', 'z'}}));
  EXPECT_EQ(set.complement().complement(), set);
  EXPECT_EQ(set.intersection(CharacterSet({{'e', 'y'}})).ranges(), (Ranges{{'e', 'f'}, {'x', 'y'}}));
  EXPECT_EQ(CharacterSet().complement().ranges(), (Ranges{{0, 0x10ffff}}));
  EXPECT_EQ(CharacterSet().complement().complement(), CharacterSet());
}

TEST(SymbolTable, TellsApartWhatTheSetsDo) {
  const CharacterSet letters({{'a', 'z'}}), vowels({{'a', 'a'}, {'e', 'e'}});
  const SymbolTable table({letters, vowels, CharacterSet()});
  EXPECT_EQ(table.count(), 3u);
  EXPECT_EQ(table.members(0).size(), 2u);
  EXPECT_EQ(table.members(1).size(), 1u);
  EXPECT_TRUE(table.members(2).empty());
  std::vector<std::uint8_t> symbols;
  table.translate("ab\u4f60\xff", symbols);
  ASSERT_EQ(symbols.size(), 4u);
  EXPECT_EQ(symbols[0], table.members(1)[0]);
  EXPECT_NE(symbols[1], symbols[0]);
  EXPECT_EQ(symbols[2], symbols[3]);
}

TEST(SplitExpression, MatchesAndWhatLiesBetweenArePieces) {
  EXPECT_EQ(cut_by("\\d+", "ab12c3"), (Pieces{"ab", "12", "c", "3"}));
  EXPECT_EQ(cut_by("\\d+", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(cut_by("[a-z&&[^b]]|\u4f60+", "ab\u4f60\u4f60!"), (Pieces{"a", "b", "\u4f60\u4f60", "!"}));
  EXPECT_EQ(cut_by("\\p{Lu}", "a\u1c89b"), (Pieces{"a", "\u1c89", "b"}));  // new in Unicode 16.0
  EXPECT_EQ(cut_by("\\d{1,2}+", "x12345"), (Pieces{"x", "12345"}));        // repeats the repeat
  EXPECT_EQ(cut_by("[!-&&b]", "b!-&,ab"), (Pieces{"b!-&,ab"}));            // ! or -, and b: nothing
  EXPECT_EQ(cut_by("[!-&&&\\-]", "!-&"), (Pieces{"!", "-", "&"}));
  EXPECT_EQ(cut_by("(?<=ab|c)\\d(?=x(?<=x))", "ab1xc2x"), (Pieces{"ab", "1", "xc", "2", "x"}));
  EXPECT_EQ(cut_by("(?i:'s)", "a'\u017fb'S"), (Pieces{"a", "'\u017f", "b", "'S"}));
}

TEST(SplitExpression, AnEmptyMatchEndsThePieceBeforeIt) {
  EXPECT_EQ(cut_by("", "abc"), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(cut_by("x*", "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(cut_by("\\b", "ab  c"), (Pieces{"ab", "  ", "c"}));
  EXPECT_EQ(cut_by("$", "ab\ncd\n"), (Pieces{"ab", "\ncd", "\n"}));
  EXPECT_EQ(cut_by("^", "ab\ncd\n"), (Pieces{"ab\n", "cd\n"}));
}

TEST(SplitExpression, SeesOnlyThePieceThatItCuts) {
  const SplitExpression at_start = expression_of("\\A[a-z]|(?<=\\d)x");
  EXPECT_EQ(cut_by({at_start}, "ab 1x"), (Pieces{"a", "b 1", "x"}));
  EXPECT_EQ(cut_by({Pattern::each_digit, at_start}, "ab 1xy"), (Pieces{"a", "b ", "1", "x", "y"}));
  EXPECT_EQ(cut_by({expression_of("\\s"), at_start, Pattern::each_digit}, "ab c1x"),
            (Pieces{"a", "b", " ", "c", "1", "x"}));
}

TEST(SplitExpression, BytesThatAreNotUtf8AreCutAsReplacementCharacters) {
  EXPECT_EQ(cut_by("\\p{So}", "a\xff\xc3(\xed\xa0\x80"),
            (Pieces{"a", "\xff", "\xc3", "(", "\xed", "\xa0", "\x80"}));
  EXPECT_EQ(cut_by("\ufffd+.", "a\xff\xff(b"), (Pieces{"a", "\xff\xff(", "b"}));
  EXPECT_EQ(cut_by("\\w+", "\xe4\xbd"), (Pieces{"\xe4\xbd"}));
}

TEST(SplitExpression, UncoveredTextIsAnErrorIfItWouldBeRemoved) {
  const SplitExpression expression = expression_of("\\w+|\\s", Uncovered::error);
  EXPECT_EQ(cut_by({expression}, "ab c"), (Pieces{"ab", " ", "c"}));
  const std::string line = error_of([&] { cut_by({expression}, "\u4f60 !b"); });
  EXPECT_NE(line.find("leaves text at byte 4"), std::string::npos) << line;
}

TEST(SplitExpression, WhatEnginesReadDifferentlyIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\\R", "\"\\\\R\" at byte 1, which is not supported"},
      {"\\X", "\"\\\\X\""},
      {"\\Ka", "\"\\\\K\""},
      {"\\Ga", "\"\\\\G\""},
      {"(a)\\1", "\"\\\\1\" at byte 3"},
      {"\\k<a>", "\"\\\\k\""},
      {"\\Q.\\E", "\"\\\\Q\""},
      {"\\07", "\"\\\\0\""},
      {"\\cA", "\"\\\\c\""},
      {"\\", "\"\\\\\" at byte 0"},
      {"[\\b]", "\"\\\\b\""},
      {"\\xe9", "a byte and no character"},
      {"\\x{110000}", "not a character"},
      {"\\ud800", "not a character"},
      {"\\x{41", "\"}\""},
      {"\\pL", "without a name"},
      {"\\p{L", "without a name"},
      {"\\p{Greek_Extended}", "not known"},
      {"[[:alpha:]]", "\"[:\" at byte 1"},
      {"[]a]", "no characters"},
      {"[a", "which has no matching \"]\""},
      {"[b-a]", "ends before it begins"},
      {"[a-\\d]", "\"\\\\d\""},
      {"[\\d-a]", "not a range"},
      {"[a-c-e]", "not a range"},
      {"[a-[b]]", "without an end"},
      {"[a&&]", "no characters"},
      {"[&&a]", "\"&&\""},
      {"(?s).", "\"(?s\""},
      {"(?x)a", "\"(?x\""},
      {"a(?i)b|c", "\"(?i\" at byte 1"},
      {"(?<n>a)", "\"(?<\""},
      {"(?#a)", "\"(?#\""},
      {"(?~a)", "\"(?~\""},
      {"(?(1)a)", "\"(?(\""},
      {"(?R)", "\"(?R\""},
      {"(?C1)a", "\"(?C\""},
      {"(*ACCEPT)", "\"*\" at byte 1, which repeats nothing"},
      {"(a", "which has no matching \")\""},
      {"a)", "which has no matching \"(\""},
      {"*a", "repeats nothing"},
      {"^*", "repeats an assertion"},
      {"(?=a){2}", "repeats an assertion"},
      {"(a*)+", "may match nothing"},
      {"(?:a|\\b){2}", "may match nothing"},
      {"a{0,2}+", "may match nothing"},
      {"a**", "a repeat of a repeat"},
      {"a{2}?", "read differently"},
      {"a{2,1}", "not a repeat"},
      {"a{,}", "not a repeat"},
      {"a{", "not a repeat"},
      {"{", "not a repeat"},
      {"a{1001}", "over 1000 times"},
      {"a{99999999999999999999}", "over 1000 times"},
      {"(?i:\u00e9)", "whose case"},
      {"(?i:\\w)", "whose case"},
      {"(?i:\\p{Lu})", "whose case"},
      {"(?i:[a-\u00e9])", "whose case"},
      {"(?i:[c\\S])", "whose case"},
      {"(?i:ff)", "ligature"},
      {"(?i:S(?:T))", "ligature"},
      {"(?i:s{2})", "ligature"},
      {"(?<=a+)b", "\"a+\" at byte 4, a look-behind of variable length"},
      {"(?<!a|b{1,3})c", "\"b{1,3}\" at byte 6, a look-behind of variable length"},
      {"(?<=x(?:a|bc))d", "a look-behind of variable length"},
      {"(?<!(?<!))'", "\"(?<\" at byte 4, which is not supported in a look-behind"},
      {"(?<=a(?=b))", "\"(?=\" at byte 5, which is not supported in a look-behind"},
      {"(?:(?:(?:a{999}){999}){999}){999}", "PCRE2 does not compile"},
      {"\xff", "not UTF-8"},
  };
  for (const auto& [expression, named] : cases) {
    const std::string line = error_of([&, text = expression] { expression_of(text); });
    EXPECT_NE(line.find(named), std::string::npos) << expression << ": " << line;
    EXPECT_NE(line.find("FILE: FIELD is "), std::string::npos) << line;
  }
}

TEST(SplitExpression, LargeExpressionsAreRefused) {
  std::string nested, classes, characters;
  for (int i = 0; i < 60; ++i) nested += '(', classes += '[';
  for (char32_t c = 0x4e00; c < 0x4e00 + 300; ++c) characters += fmt::format("\\x{{{:x}}}", std::uint32_t{c});
  for (const auto& [expression, named] : {std::pair(std::string(20000, 'a'), "20000 bytes"),
                                          {nested, "nested deeper than 50"},
                                          {classes + "a", "nested deeper than 50"},
                                          {characters, "more than 255 classes of characters"}}) {
    const std::string line = error_of([&, text = expression] { expression_of(text); });
    EXPECT_NE(line.find(named), std::string::npos) << line;
  }
  EXPECT_EQ(cut_by(std::string(15000, 'a') + "|b", "ab").size(), 2u);
}

TEST(SplitExpression, AnExplosionIsStopped) {
  std::string run(40, 'a'), alternating;
  for (int i = 0; i < 100000; ++i) alternating += "ab";
  const std::string run_and_b = run + "b", many(8000, 'a');
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"(a+)+$", run_and_b, "at byte 0 of a text: over 1000000 steps"},
      {"(a|aa)+$", "x" + run_and_b, "at byte 0 of a text: over 1000000 steps"},
      {"\\A.|(?:a|a)*c", "x " + run_and_b, "at byte 1 of a text: over 1000000 steps"},
      {"[ab]+[cd]", alternating, "over 0.5 s and 5 microseconds a character"},  // quadratic
      {"[ab]*[ab]*[cd]", alternating, "over 0.5 s and 5 microseconds a character"},
      // Each step of backtracking reads up to a thousand characters.
      {"a{0,650}a{0,650}a{0,1000}x", many, "over 0.5 s and 5 microseconds a character"},
      {".{0,1000}.{0,1000}x", many, "over 0.5 s and 5 microseconds a character"},
  };
  for (const auto& [expression, text, named] : cases) {
    const std::clock_t start = std::clock();
    const std::string line = error_of([&, e = expression, t = std::string_view(text)] { cut_by(e, t); });
    EXPECT_NE(line.find(named), std::string::npos) << line;
    EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC) << expression;  // of processor time
  }
}

TEST(SplitExpression, LongMatchesAreWithinTheLimits) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "ab";
  EXPECT_EQ(cut_by("(?:a|b)+", text + "x").size(), 2u);
  EXPECT_EQ(cut_by("(?:ab|c)+", text + "x").size(), 2u);
  EXPECT_EQ(cut_by("[ab]+(?!x)", text + "x").size(), 2u);
}

TEST(SplitExpression, AnEarlierErrorChangesNothing) {
  const SplitExpression expression = expression_of("(a+)+$|b");
  const std::string text = std::string(40, 'a') + "b";
  EXPECT_NE(error_of([&] { cut_by({expression}, text); }), "");
  EXPECT_EQ(cut_by({expression}, "aab aa"), (Pieces{"aa", "b", " ", "aa"}));
}

TEST(SplitExpression, ManyThreadsCutByOneExpression) {
  const SplitExpression expression = expression_of("\\p{N}{1,3}|\\w+|\\s+(?!\\S)");
  std::vector<std::string> texts;
  std::vector<Pieces> expected;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(std::string(static_cast<std::size_t>(i % 7 + 1), ' ') + std::to_string(i * 7919) +
                    "\u4f60 ab");
    expected.push_back(cut_by({expression}, texts.back()));
  }
  std::vector<int> same(4, 0);
  std::vector<std::thread> threads;
  for (int& count : same) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) count += cut_by({expression}, texts[i]) == expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(4, 200));
}

TEST(SplitExpression, NamesItsEngine) {
  EXPECT_TRUE(SplitExpression::engine().starts_with("PCRE2 10.")) << SplitExpression::engine();
  EXPECT_TRUE(SplitExpression::engine().ends_with(" JIT")) << SplitExpression::engine();
}

TEST(CutRules, OnlyAKnownPatternCutsBeforeSpacesWhateverElseTheTextHolds) {
  const SplitExpression expression = expression_of("\\w+");
  const auto cuts_at_spaces = [](std::vector<Cut> patterns) {
    CutRules rules;
    rules.patterns = std::move(patterns);
    return rules.patterns_cut_at_spaces();
  };
  EXPECT_TRUE(cuts_at_spaces({Pattern::gpt2}));
  EXPECT_TRUE(cuts_at_spaces({Pattern::digits, Pattern::qwen, expression}));
  EXPECT_FALSE(cuts_at_spaces({Pattern::digits, expression, Pattern::gpt2}));
  EXPECT_FALSE(cuts_at_spaces({expression}));
  EXPECT_FALSE(cuts_at_spaces({Pattern::digits}));
  EXPECT_FALSE(cuts_at_spaces({}));
}

}  // namespace
}  // namespace warpwright::text
