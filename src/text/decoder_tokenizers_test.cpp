// The tokenizers of today's decoders, in small: golden/decoders, made by tools/decoder_conformance.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.hpp"
#include "text/canonical.hpp"
#include "text/fingerprint.hpp"
#include "text/golden.hpp"
#include "text/stream_decoder.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_json.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

json golden_file(const std::string& name) {
  return json::parse(read_file(golden_folder() / "decoders" / name, 1 << 20));
}

json document_of(const std::string& family) {
  return golden_file(family + "/tokenizer.json");
}

Tokenizer tokenizer_of(const json& document) {
  return Tokenizer(parse_tokenizer_json(document.dump(), "FILE"), "FILE");
}

class DecoderTokenizer : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::load(golden_folder() / "decoders" / GetParam());
  const std::vector<std::string> texts_ = golden_file("texts.json");
};

TEST_P(DecoderTokenizer, GoldenTextsHaveHuggingFacesIds) {
  const json rows = golden_file(std::string(GetParam()) + "/ids.json");
  ASSERT_EQ(rows.size(), texts_.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(tokenizer_.encode(texts_[i]), rows[i][0].get<Ids>()) << texts_[i];
    const Ids special = tokenizer_.encode(texts_[i], SpecialTokens::recognize);
    EXPECT_EQ(special, rows[i][1].get<Ids>()) << texts_[i];
    Ids whole = tokenizer_.spec().before;
    whole.insert(whole.end(), special.begin(), special.end());
    whole.insert(whole.end(), tokenizer_.spec().after.begin(), tokenizer_.spec().after.end());
    EXPECT_EQ(whole, rows[i][2].get<Ids>()) << texts_[i];
  }
}

// True if the family's rules do not change this text: marks become spaces, Metaspace lets a space at the
// start pass for its own, and an added token gets a mark after it.
bool is_kept(const std::string& family, const std::string& text) {
  const auto holds = [&](const char* part) { return text.find(part) != std::string::npos; };
  for (const char* of_bytes :
       {"smollm2", "llama3", "gpt_neox", "qwen2", "o200k", "deepseek", "expressions"}) {
    if (family == of_bytes) return true;
  }
  if (holds("\u2581")) return false;
  if (family == "llama2") return true;
  if (family == "llama2_across") return !holds("in the") && !holds("  ");
  return !text.starts_with(' ');
}

TEST_P(DecoderTokenizer, DecodesWhatItEncoded) {
  std::size_t kept = 0;
  std::string buffer;
  for (const std::string& text : texts_) {
    if (!is_kept(GetParam(), text)) continue;
    ++kept;
    const bool nfc = !tokenizer_.spec().normalizer.empty() && !tokenizer_.spec().characters;
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text)), nfc ? to_nfc(text, buffer) : text);
  }
  EXPECT_GT(kept, texts_.size() / 2);
}

TEST_P(DecoderTokenizer, StreamedPiecesAreTheWholeAndWholeCharacters) {
  for (const std::string& text : texts_) {
    const Ids ids = tokenizer_.encode(text);
    StreamDecoder whole(tokenizer_);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string piece = whole.push(id);
      EXPECT_TRUE(is_utf8(piece)) << text;
      streamed += piece;
    }
    EXPECT_EQ(streamed + whole.finish(), tokenizer_.decode(ids)) << text;
    for (std::size_t cut = 1; cut < ids.size(); ++cut) {  // a prompt's ids, and then generated ones
      StreamDecoder rest(tokenizer_, true);
      std::string both = tokenizer_.decode(std::span(ids).first(cut));
      for (std::size_t i = cut; i < ids.size(); ++i) both += rest.push(ids[i]);
      ASSERT_EQ(both + rest.finish(), tokenizer_.decode(ids)) << text << " after " << cut;
    }
  }
}

// True at a space after an ASCII character other than white space.
bool may_cut(std::string_view text, std::size_t at) {
  const auto before = static_cast<unsigned char>(text[at - 1]);
  return text[at] == ' ' && before > ' ' && before < 0x80;
}

TEST_P(DecoderTokenizer, PartsCutBeforeSpacesHaveTheIdsOfTheWhole) {
  TokenizerSpec spec = tokenizer_.spec();
  if (spec.added.back().content == "cafe\u0301 au") {  // an added token that a cut could divide
    EXPECT_FALSE(tokenizer_.cuts_at_spaces());
    spec.added.pop_back();
    spec.tokens.pop_back();
  }
  const Tokenizer tokenizer(std::move(spec));
  const std::string family = GetParam();
  const bool has_expression = family == "o200k" || family == "deepseek" || family == "expressions";
  ASSERT_EQ(tokenizer.cuts_at_spaces(), family != "llama2_across" && !has_expression);
  if (!tokenizer.cuts_at_spaces()) return;
  std::vector<std::string> texts = texts_;
  texts.push_back(read_file(golden_folder() / "text.txt", 1 << 20).substr(0, 3000));
  int cuts = 0;
  for (const std::string& text : texts) {
    const Ids whole = tokenizer.encode(text);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      if (!may_cut(text, cut)) continue;
      ++cuts;
      Ids parts = tokenizer.encode(std::string_view(text).substr(0, cut));
      tokenizer.encode(std::string_view(text).substr(cut), parts, SpecialTokens::as_text, true);
      ASSERT_EQ(parts, whole) << text << " cut at " << cut;
    }
  }
  EXPECT_GT(cuts, 300);
}

// The text's ids, encoded in two parts that are cut at the first space after an ASCII character.
Ids encode_in_parts(const Tokenizer& tokenizer, std::string_view text) {
  std::size_t cut = 1;
  while (!may_cut(text, cut)) ++cut;
  Ids ids = tokenizer.encode(text.substr(0, cut));
  tokenizer.encode(text.substr(cut), ids, SpecialTokens::as_text, true);
  return ids;
}

TEST(DecoderTokenizers, TextsThatACutCouldChangeAreEncodedWhole) {
  const auto replace = [](const char* from, const char* to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const auto added = [](const json& document, const char* content, bool normalized) {
    json tokens = document["added_tokens"];
    std::size_t id = document["model"]["vocab"].size();
    for (const json& token : tokens) id = std::max(id, token["id"].get<std::size_t>() + 1);
    tokens.push_back({{"id", id}, {"content", content}, {"special", false}, {"normalized", normalized}});
    return tokens;
  };
  const json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}}, marks = replace(" ", "\u2581");
  const json llama2 = document_of("llama2"), smollm2 = document_of("smollm2");
  struct Case {
    const json& document;
    const char* pointer;
    json value;
    const char* text;
  };
  const Case cases[] = {
      {smollm2, "/normalizer", replace(", ", ";;"), "ab, ab"},
      {llama2, "/normalizer/normalizers", {prepend, replace(", ", ";;"), marks}, "ab, ab"},
      {llama2, "/normalizer/normalizers", {marks, replace(",\u2581", ";;"), prepend}, "ab, ab"},
      {llama2, "/added_tokens", added(llama2, "a\u2581b", true), "a b"},
      {llama2, "/added_tokens", added(llama2, "<tool>", false), "x<tool> b"},  // gets a mark after it
  };
  for (const Case& c : cases) {
    json document = c.document;
    document[json::json_pointer(c.pointer)] = c.value;
    const Tokenizer tokenizer = tokenizer_of(document);
    EXPECT_FALSE(tokenizer.cuts_at_spaces()) << c.value;
    EXPECT_NE(encode_in_parts(tokenizer, c.text), tokenizer.encode(c.text)) << c.value;
  }
  json no_marks = document_of("mistral");  // a merge may cross a space
  no_marks["pre_tokenizer"] = nullptr;
  EXPECT_FALSE(tokenizer_of(no_marks).cuts_at_spaces());
}

TEST_P(DecoderTokenizer, AnyBytesAreEncodedAndKept) {
  std::mt19937 random(5);
  const std::string_view parts[] = {"a",    " b",           "1",        "\xff", "\xc3",
                                    "\x80", "\xed\xa0\x80", "\xe2\x96", "\n",   "é"};
  for (int round = 0; round < 500; ++round) {
    std::string bytes = "x";
    for (int i = 0; i < 12; ++i) bytes += parts[random() % std::size(parts)];
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(bytes)), bytes);
  }
}

TEST_P(DecoderTokenizer, SavedAndReadAgainItIsTheSame) {
  const TokenizerSpec& spec = tokenizer_.spec();
  const TokenizerSpec again = parse_tokenizer_json(format_tokenizer_json(spec), "FILE");
  EXPECT_EQ(again.tokens, spec.tokens);
  EXPECT_EQ(again.merges, spec.merges);
  EXPECT_EQ(again.added, spec.added);
  EXPECT_EQ(again.normalizer, spec.normalizer);
  EXPECT_EQ(again.patterns, spec.patterns);
  EXPECT_EQ(again.characters, spec.characters);
  EXPECT_EQ(again.before, spec.before);
  EXPECT_EQ(again.after, spec.after);
  EXPECT_EQ(again.use_regex, spec.use_regex);
  EXPECT_EQ(again.ignore_merges, spec.ignore_merges);
}

TEST_P(DecoderTokenizer, TakesLinearTimeForLongRuns) {
  // At 100,000 characters, quadratic time would be minutes.
  for (const char* unit :
       {"a", " ", "\n", "\n ", " \n", "1", "!", "'", "\u0301", "\u2581", "\u0e01", "\xff"}) {
    std::string text;
    while (text.size() < 200000) text += unit;
    EXPECT_FALSE(tokenizer_.encode(text).empty());
    EXPECT_FALSE(tokenizer_.encode(text + "x").empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderTokenizer,
                         testing::Values("gpt_neox", "smollm2", "llama3", "qwen2", "o200k", "deepseek",
                                         "expressions", "llama2", "llama2_across", "mistral", "metaspace"),
                         [](const auto& family) { return std::string(family.param); });

TEST(DecoderTokenizers, EndOfTextAndTemplate) {
  const auto load = [](const char* family) { return Tokenizer::load(golden_folder() / "decoders" / family); };
  const Tokenizer llama3 = load("llama3"), llama2 = load("llama2"), qwen2 = load("qwen2");
  EXPECT_EQ(llama3.eos_id(), llama3.id_of("<|end_of_text|>"));
  EXPECT_EQ(llama2.eos_id(), llama2.id_of("</s>"));
  EXPECT_EQ(qwen2.eos_id(), qwen2.id_of("<|endoftext|>"));
  EXPECT_EQ(llama3.spec().before, Ids{*llama3.id_of("<|begin_of_text|>")});
  EXPECT_EQ(llama2.spec().before, Ids{*llama2.id_of("<s>")});
  EXPECT_TRUE(qwen2.spec().before.empty());
}

TEST(DecoderTokenizers, ATextThatContinuesGetsNoMark) {
  const Tokenizer llama2 = Tokenizer::load(golden_folder() / "decoders" / "llama2");
  Ids ids = llama2.encode("the");
  EXPECT_EQ(llama2.decode(ids), "the");
  EXPECT_EQ(llama2.bytes_of(ids[0]).front(), ' ');
  ids.clear();
  llama2.encode("the", ids, SpecialTokens::as_text, true);
  EXPECT_NE(llama2.bytes_of(ids[0]).front(), ' ');
}

TEST(DecoderTokenizers, ATemplateMayNameATokenThatIsNotUtf8) {
  json document = document_of("llama3");
  const TokenId byte = document["model"]["vocab"]["\u00ff"];
  document["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {byte};
  const Tokenizer tokenizer = tokenizer_of(document);
  ASSERT_EQ(tokenizer.bytes_of(byte), "\xff");
  EXPECT_EQ(parse_tokenizer_json(format_tokenizer_json(tokenizer.spec()), "FILE").before, Ids{byte});
  EXPECT_EQ(format_tokenizer_config(tokenizer.spec()).find("bos_token"), std::string::npos);
}

// The document with one more added token, a single word that the model lacks.
json with_word(json document, const char* content) {
  const std::size_t id = parse_tokenizer_json(document.dump(), "FILE").tokens.size();
  document["added_tokens"].push_back(
      {{"id", id}, {"content", content}, {"single_word", true}, {"normalized", false}, {"special", false}});
  return document;
}

TEST(DecoderTokenizers, TheModelMakesNoTokenThatIsOnlyAdded) {
  const std::pair<const char*, const char*> cases[] = {{"llama2", "猫"}, {"llama3", "wordily"}};
  for (const auto& [family, content] : cases) {
    const json without = document_of(family), with = with_word(without, content);
    const Tokenizer tokenizer = tokenizer_of(with);
    const std::string text = std::string("x") + content, number = content + std::string("123");
    const TokenId id = tokenizer.spec().added.back().id;
    EXPECT_EQ(tokenizer.encode(content).back(), id);
    EXPECT_EQ(tokenizer.encode(text), tokenizer_of(without).encode(text)) << text;
    EXPECT_EQ(tokenizer.encode(number), tokenizer_of(without).encode(number)) << number;
    const json saved = json::parse(format_tokenizer_json(tokenizer.spec()));
    EXPECT_FALSE(saved["model"]["vocab"].contains(content));
    json known = with;  // the same token in the model's vocabulary
    known["model"]["vocab"][content] = id;
    EXPECT_NE(fingerprint_of(tokenizer), fingerprint_of(tokenizer_of(known))) << content;
  }
}

TEST(DecoderTokenizers, AnAddedTokenThatNoPieceEqualsKeepsTheFingerprint) {
  json with = with_word(document_of("llama3"), "<tool>"), known = with;
  known["model"]["vocab"]["<tool>"] = with["added_tokens"].back()["id"];
  EXPECT_EQ(fingerprint_of(tokenizer_of(with)), fingerprint_of(tokenizer_of(known)));
}

TEST(DecoderTokenizers, EachRuleChangesTheFingerprint) {
  const json llama2 = document_of("llama2"), llama3 = document_of("llama3");
  const auto with = [](json document, const char* pointer, const json& value) {
    document[json::json_pointer(pointer)] = value;
    return fingerprint_of(tokenizer_of(document)).rules;
  };
  std::vector<std::string> rules = {fingerprint_of(tokenizer_of(llama2)).rules,
                                    fingerprint_of(tokenizer_of(llama3)).rules};
  const json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", true}};
  rules.push_back(with(llama2, "/normalizer", nullptr));
  rules.push_back(with(llama2, "/post_processor", nullptr));
  rules.push_back(with(llama2, "/decoder/decoders/3/start", 0));
  rules.push_back(with(llama2, "/pre_tokenizer", metaspace));
  rules.push_back(with(llama3, "/normalizer", {{"type", "NFC"}}));
  rules.push_back(
      with(llama3, "/pre_tokenizer/pretokenizers/0", {{"type", "Digits"}, {"individual_digits", true}}));
  for (const char* expression : {"\\w+", "\\w+|x"}) {
    rules.push_back(with(llama3, "/pre_tokenizer/pretokenizers/0/pattern/Regex", expression));
  }
  rules.push_back(with(llama3, "/model/ignore_merges", false));
  std::sort(rules.begin(), rules.end());
  EXPECT_EQ(std::adjacent_find(rules.begin(), rules.end()), rules.end());
}

// The error's problem for a document, or "accepted".
std::string refusal_of(const json& document) {
  try {
    tokenizer_of(document);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "FILE");
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.problem();
  }
}

// As in files for o200k, whose special tokens have ids after a gap.
TEST(DecoderTokenizers, IdsMayHaveNoToken) {
  constexpr TokenId kGap = 18;
  const json document = document_of("o200k");
  json with_gap = document;
  const TokenId first = document["added_tokens"][0]["id"];
  for (json& token : with_gap["added_tokens"]) token["id"] = token["id"].get<TokenId>() + kGap;
  EXPECT_NE(refusal_of(with_gap).find("is not in model.vocab"), std::string::npos);
  for (const json& token : with_gap["added_tokens"]) {
    with_gap["model"]["vocab"][token["content"].get<std::string>()] = token["id"];
  }
  const Tokenizer plain = tokenizer_of(document), gapped = tokenizer_of(with_gap);
  EXPECT_EQ(gapped.vocab_size(), plain.vocab_size() + kGap);
  for (const std::string text : golden_file("texts.json")) {
    Ids ids = plain.encode(text, SpecialTokens::recognize);
    for (TokenId& id : ids) id += id >= first ? kGap : 0;
    EXPECT_EQ(gapped.encode(text, SpecialTokens::recognize), ids) << text;
    ids.insert(ids.begin(), first);
    EXPECT_EQ(gapped.decode(ids), text);
  }
  EXPECT_EQ(gapped.id_of(""), std::nullopt);
  EXPECT_NE(fingerprint_of(plain), fingerprint_of(gapped));
  const Tokenizer saved = tokenizer_of(json::parse(format_tokenizer_json(gapped.spec())));
  EXPECT_EQ(saved.spec().tokens, gapped.spec().tokens);
}

struct Refused {
  const char* family;
  const char* pointer;
  json value;
  const char* named;  // a part of the error
};

TEST(DecoderTokenizers, WhatIsNotSupportedIsNamedWithItsValue) {
  const json nothing, digits = {{"type", "Digits"}, {"individual_digits", true}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}};
  const json expression = {{"Regex", "\\w+"}}, sequence = {{"type", "Sequence"}};
  const Refused cases[] = {
      {"llama3", "/normalizer", {{"type", "NFKC"}}, "normalizer.type is \"NFKC\""},
      {"llama3", "/normalizer", {{"type", "NFC"}, {"form", 1}}, "normalizer[\"form\"]"},
      {"llama3", "/normalizer", json::array(), "normalizer"},
      {"llama3", "/normalizer", sequence, "normalizer.normalizers"},
      {"llama2", "/normalizer/normalizers/0/prepend", 1, "normalizers[0].prepend"},
      {"llama2", "/normalizer/normalizers/0/prepend", "", "normalizers[0].prepend is empty"},
      {"llama2", "/normalizer/normalizers/0/prepend", std::string(16, 'x'), "16 times"},
      {"llama2", "/normalizer/normalizers/1/pattern", expression, "Regex is \"\\\\w+\""},
      {"llama2", "/normalizer/normalizers/1/pattern", {{"String", ""}}, "a text of 0 bytes"},
      {"llama2",
       "/normalizer/normalizers/1/pattern",
       {{"String", std::string(65, 'x')}},
       "a text of 65 bytes"},
      {"llama2", "/normalizer/normalizers/1/content", std::string(17, 'x'), "16 times"},
      {"llama2", "/normalizer/normalizers", json(100, {{"type", "NFC"}}), "over 16 steps"},
      {"llama2", "/normalizer/normalizers/1", 5, "normalizers[1] is not an object"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w\\R",
       "pattern.Regex is \"\\\\w\\\\R\", with"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern", {{"String", "a"}}, "pattern is not a Regex"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed", "behavior is \"Removed\""},
      {"o200k", "/pre_tokenizer/pretokenizers/0/invert", false, "behavior is \"Removed\", with invert false"},
      {"o200k", "/pre_tokenizer/pretokenizers/0/behavior", "Contiguous", "behavior is \"Contiguous\""},
      {"llama3", "/pre_tokenizer/pretokenizers/0/invert", "no", "invert"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/type", "Punctuation", "\"Punctuation\""},
      {"llama3", "/pre_tokenizer/pretokenizers/1", byte_level, "add_prefix_space"},
      {"llama3", "/pre_tokenizer/pretokenizers/2", digits, "pretokenizers[2] follows ByteLevel"},
      {"llama3", "/pre_tokenizer", json::array({1}), "pre_tokenizer is not an object"},
      {"llama3", "/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json(15, digits)}}, "ByteLevel"},
      {"smollm2", "/pre_tokenizer/pretokenizers/0/individual_digits", 1, "individual_digits"},
      {"mistral", "/pre_tokenizer/replacement", "_", "replacement \"_\""},
      {"mistral", "/pre_tokenizer/replacement", "__", "replacement is \"__\", not one"},
      {"mistral", "/pre_tokenizer/replacement", "", "replacement is \"\", not one"},
      {"mistral", "/pre_tokenizer/prepend_scheme", "last", "prepend_scheme is \"last\""},
      {"mistral", "/pre_tokenizer/add_prefix_space", false, "contradicts prepend_scheme"},
      {"mistral", "/pre_tokenizer/split", "no", "split"},
      {"mistral", "/model/byte_fallback", false, "byte_fallback is not true"},
      {"mistral", "/decoder", nothing, "ByteFallback"},
      {"mistral", "/decoder", {{"type", "CTC"}}, "decoder.type is \"CTC\""},
      {"mistral", "/decoder/decoders/0/content", "-", "content is not a space"},
      {"mistral", "/decoder/decoders/1", {{"type", "Fuse"}}, "ByteFallback"},
      {"mistral", "/decoder/decoders/2", {{"type", "ByteFallback"}}, "does not follow Fuse"},
      {"mistral", "/decoder/decoders/3/start", 2, "start is over 1"},
      {"mistral", "/decoder/decoders/3/stop", 1, "stop is not 0"},
      {"mistral", "/decoder/decoders/3/stop", -1, "stop is not a count"},
      {"mistral", "/decoder/decoders/3/content", "x", "content is not a space"},
      {"mistral", "/decoder/decoders/4", {{"type", "Fuse"}}, "follows Strip"},
      {"metaspace", "/decoder/decoders/2", {{"type", "Replace"}}, "follows another step"},
      {"llama3", "/decoder", {{"type", "Fuse"}}, "decoder.type"},
      {"llama3", "/post_processor/processors/1/single", json::array(), "exactly once"},
      {"llama3", "/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids", {100000}, "id 100000"},
      {"llama3", "/post_processor/processors/2", {{"type", "Custom"}}, "processors[2]"},
      {"llama3", "/post_processor/processors/0/bogus", 5, "processors[0][\"bogus\"] is not a known field"},
      {"llama3", "/post_processor/processors/0/trim_offsets", "x", "trim_offsets is not true or false"},
      {"llama3", "/post_processor/processors", json(17, byte_level), "processors has over 16 steps"},
      {"llama3", "/post_processor/processors/0", 5, "processors[0] is not an object"},
      {"llama3",
       "/post_processor",
       {{"type", "BertProcessing"}, {"sep", {1, 1}}, {"cls", {"a", 1}}},
       "sep[0] is not a string"},
  };
  for (const Refused& refused : cases) {
    json document = document_of(refused.family);
    document[json::json_pointer(refused.pointer)] = refused.value;
    const std::string problem = refusal_of(document);
    EXPECT_NE(problem.find(refused.named), std::string::npos) << refused.pointer << ": " << problem;
  }
}

TEST(DecoderTokenizers, VocabulariesOfCharactersThatContradictThemselves) {
  const json llama2 = document_of("llama2");
  const auto expect = [&](const char* text, auto&& change) {
    json document = llama2;
    change(document);
    const std::string problem = refusal_of(document);
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  };
  expect("no token <0x41>", [](json& d) {
    d["model"]["vocab"]["<0x041>"] = d["model"]["vocab"]["<0x41>"];
    d["model"]["vocab"].erase("<0x41>");
  });
  expect("is empty", [](json& d) { d["model"]["vocab"][""] = 900; });
  expect("most ids would have none", [](json& d) { d["model"]["vocab"]["far"] = 5000; });
  expect("lacks", [](json& d) {  // a merge must not make a token of a byte
    for (const char* token : {"<0x4", "2>"}) d["model"]["vocab"][token] = d["model"]["vocab"].size();
    d["model"]["merges"].push_back({"<0x4", "2>"});
  });
  expect("lacks", [](json& d) {  // nor a special token
    for (const char* token : {"<", "s>"}) {
      if (!d["model"]["vocab"].contains(token)) d["model"]["vocab"][token] = d["model"]["vocab"].size();
    }
    d["model"]["merges"].push_back({"<", "s>"});
  });
  expect("bytes long once normalized", [](json& d) {
    d["added_tokens"].push_back({{"id", d["model"]["vocab"].size()},
                                 {"content", std::string(400, ' ')},
                                 {"normalized", true},
                                 {"special", false}});
  });
  expect("once normalized", [](json& d) {
    for (const char* token : {"a b", "a\u2581b"}) {
      d["added_tokens"].push_back({{"id", d["model"]["vocab"].size() + d["added_tokens"].size() - 3},
                                   {"content", token},
                                   {"normalized", true},
                                   {"special", false}});
    }
  });
}

}  // namespace
}  // namespace warpwright::text
