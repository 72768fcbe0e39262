#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "text/golden.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_json.hpp"

namespace warpwright::text {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_ =
      fs::path(testing::TempDir()) /
      (std::string("warpwright_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string golden_json() {
  return read_file(golden_folder() / "tokenizer.json", 1 << 20);
}

// The error's problem for a document, or "accepted".
std::string problem_of(const std::string& document) {
  try {
    const Tokenizer tokenizer(parse_tokenizer_json(document, "FILE"), "FILE");
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "FILE");
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.problem();
  }
}

void expect_same(const Tokenizer& a, const Tokenizer& b) {
  EXPECT_EQ(a.spec().tokens, b.spec().tokens);
  EXPECT_EQ(a.spec().merges, b.spec().merges);
  EXPECT_EQ(a.spec().added, b.spec().added);
  EXPECT_EQ(a.spec().add_prefix_space, b.spec().add_prefix_space);
  EXPECT_EQ(a.spec().use_regex, b.spec().use_regex);
  EXPECT_EQ(a.spec().ignore_merges, b.spec().ignore_merges);
  EXPECT_EQ(a.eos_id(), b.eos_id());
}

TEST_F(TokenizerFiles, BothFormsSurviveTheRoundTrip) {
  const Tokenizer golden = Tokenizer::load(golden_folder());
  golden.save(folder_ / "new" / "tokenizer");
  expect_same(Tokenizer::load(folder_ / "new" / "tokenizer"), golden);
  EXPECT_FALSE(fs::exists(folder_ / "new" / "tokenizer" / "vocab.json"));  // it could not name <|pad|>
  TokenizerSpec spec = golden.spec();
  spec.added.pop_back();
  spec.add_prefix_space = true;
  const Tokenizer original(spec);
  original.save(folder_);
  fs::remove(folder_ / "tokenizer.json");
  expect_same(Tokenizer::load(folder_), original);
}

TEST_F(TokenizerFiles, ThePairIsSavedOnlyIfItSaysEverything) {
  TokenizerSpec spec = Tokenizer::load(golden_folder()).spec();
  spec.added.pop_back();
  ASSERT_TRUE(is_vocab_and_merges(spec));
  const auto with = [&](auto&& change) {
    TokenizerSpec changed = spec;
    change(changed);
    return is_vocab_and_merges(changed);
  };
  EXPECT_FALSE(with([](TokenizerSpec& s) { s.use_regex = false; }));
  EXPECT_FALSE(with([](TokenizerSpec& s) { s.ignore_merges = true; }));
  EXPECT_FALSE(with([](TokenizerSpec& s) { s.added[0].rstrip = true; }));
  EXPECT_FALSE(with([](TokenizerSpec& s) { s.added.clear(); }));
}

TEST_F(TokenizerFiles, WithoutTokenizerJsonTheConfigHasTheAddedTokens) {
  const TokenizerSpec golden = Tokenizer::load(golden_folder()).spec();
  write_file_atomically(folder_ / "vocab.json", format_vocab(golden));
  write_file_atomically(folder_ / "merges.txt", format_merges(golden));
  const auto load = [&](const json& config) {
    write_file_atomically(folder_ / "tokenizer_config.json", config.dump());
    return Tokenizer::load(folder_);
  };
  EXPECT_TRUE(load({{"add_prefix_space", true}}).spec().add_prefix_space);
  const json pad = {{"content", "<|pad|>"}, {"normalized", false}, {"special", true}};
  EXPECT_EQ(load({{"added_tokens_decoder", {{"1", pad}}}}).encode("<|pad|>", SpecialTokens::recognize),
            (std::vector<TokenId>{1}));
  EXPECT_THROW(load({{"added_tokens_decoder", {{"7", pad}}}}), Error);
  load(json::object());
  write_file_atomically(folder_ / "added_tokens.json", "{}");
  try {
    Tokenizer::load(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), (folder_ / "added_tokens.json").string());
  }
}

TEST_F(TokenizerFiles, FlagsSurviveTheRoundTrip) {
  TokenizerSpec spec = Tokenizer::load(golden_folder()).spec();
  spec.add_prefix_space = spec.ignore_merges = true;
  spec.use_regex = false;
  for (int bits = 0; bits < 32; ++bits) {
    AddedToken token;
    token.content = "<new token " + std::to_string(bits) + "é>";
    token.id = static_cast<TokenId>(spec.tokens.size());
    token.special = bits & 1;
    token.single_word = bits & 2;
    token.lstrip = bits & 4;
    token.rstrip = bits & 8;
    token.normalized = bits & 16;
    spec.tokens.push_back(token.content);
    spec.added.push_back(token);
  }
  const Tokenizer original(std::move(spec));
  original.save(folder_);
  expect_same(Tokenizer::load(folder_), original);
}

TEST_F(TokenizerFiles, MergesAreReadInBothSpellings) {
  json document = json::parse(golden_json());
  const TokenizerSpec pairs = parse_tokenizer_json(document.dump(), "FILE");
  for (json& merge : document["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(parse_tokenizer_json(document.dump(), "FILE").merges, pairs.merges);
}

TEST_F(TokenizerFiles, OldFilesWithFieldsLeftOut) {
  json document = json::parse(golden_json());
  for (const char* field : {"type", "byte_fallback", "ignore_merges"}) document["model"].erase(field);
  document["model"]["unk_token"] = document["model"]["continuing_subword_prefix"] = "";
  document["model"]["end_of_word_suffix"] = "";
  document["pre_tokenizer"].erase("use_regex");
  EXPECT_EQ(problem_of(document.dump()), "accepted");
}

TEST_F(TokenizerFiles, TheConfigNamesTheEndOfText) {
  write_file_atomically(folder_ / "tokenizer.json", golden_json());
  EXPECT_EQ(Tokenizer::load(folder_).eos_id(), 0u);
  write_file_atomically(folder_ / "tokenizer_config.json", R"({"eos_token": "<|pad|>"})");
  EXPECT_EQ(Tokenizer::load(folder_).eos_id(), 1u);
  write_file_atomically(folder_ / "tokenizer_config.json",
                        R"({"eos_token": {"content": "<|pad|>", "lstrip": false}})");
  EXPECT_EQ(Tokenizer::load(folder_).eos_id(), 1u);
  write_file_atomically(folder_ / "tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(Tokenizer::load(folder_).eos_id(), 0u);
  for (const char* bad : {R"({"eos_token": 5})", R"({"eos_token": "</s>"})", "[]", "{"}) {
    write_file_atomically(folder_ / "tokenizer_config.json", bad);
    try {
      Tokenizer::load(folder_);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), (folder_ / "tokenizer_config.json").string()) << bad;
    }
  }
}

TEST_F(TokenizerFiles, EachUnsupportedFieldIsNamed) {
  const json golden = json::parse(golden_json());
  const auto with = [&](const char* pointer, const json& value) {
    json document = golden;
    document[json::json_pointer(pointer)] = value;
    return problem_of(document.dump());
  };
  const std::pair<const char*, json> cases[] = {
      {"/version", "2.0"},
      {"/truncation", json{{"max_length", 5}}},
      {"/padding", json{{"pad_id", 0}}},
      {"/normalizer", json{{"type", "NFKC"}}},
      {"/pre_tokenizer", json{{"type", "Whitespace"}}},
      {"/pre_tokenizer", nullptr},
      {"/pre_tokenizer/add_prefix_space", 1},
      {"/pre_tokenizer/extra", true},
      {"/post_processor", json{{"type", "TemplateProcessing"}}},
      {"/decoder", nullptr},
      {"/decoder", json{{"type", "WordPiece"}}},
      {"/extra", 1},
      {"/model/type", "Unigram"},
      {"/model/dropout", 0.1},
      {"/model/unk_token", 3},
      {"/model/continuing_subword_prefix", "##"},
      {"/model/end_of_word_suffix", "</w>"},
      {"/model/fuse_unk", 0},
      {"/model/byte_fallback", "no"},
      {"/model/ignore_merges", 2},
      {"/model/extra", nullptr},
      {"/model/vocab", json::array()},
      {"/model/vocab/th", -1},
      {"/model/vocab/th", 1.5},
      {"/model/vocab/th", 4294967296},
      {"/model/vocab/th", "5"},
      {"/model/merges", json::object()},
      {"/model/merges/0", "a"},
      {"/model/merges/0", " a"},
      {"/model/merges/0", "a b c"},
      {"/model/merges/0", json::array({"a"})},
      {"/model/merges/0", json::array({"a", "b", "c"})},
      {"/model/merges/0", json::array({1, 2})},
      {"/model/merges/0", 7},
      {"/added_tokens", json::object()},
      {"/added_tokens/0/id", -1},
      {"/added_tokens/0/content", nullptr},
      {"/added_tokens/0/special", "yes"},
      {"/added_tokens/0/extra", 1},
  };
  for (const auto& [pointer, value] : cases) {
    std::string path = pointer + 1;  // "/model/merges/0" is reported as "model.merges[0]"
    path = path.substr(0, path.find("/0"));
    for (std::size_t begin = 0, end = 0; end < path.size(); begin = end + 1) {
      end = std::min(path.find('/', begin), path.size());
      const std::string problem = with(pointer, value);
      EXPECT_NE(problem.find(path.substr(begin, end - begin)), std::string::npos)
          << pointer << ": " << problem;
    }
  }
}

TEST_F(TokenizerFiles, AMissingFieldIsCalledMissing) {
  const std::pair<const char*, const char*> cases[] = {{"", "model"},
                                                       {"", "version"},
                                                       {"", "pre_tokenizer"},
                                                       {"/model", "vocab"},
                                                       {"/model", "merges"},
                                                       {"/added_tokens/0", "content"},
                                                       {"/added_tokens/0", "id"}};
  for (const auto& [place, field] : cases) {
    json document = json::parse(golden_json());
    document[json::json_pointer(place)].erase(field);
    const std::string problem = problem_of(document.dump());
    EXPECT_NE(problem.find(field + std::string(" is missing")), std::string::npos) << problem;
  }
}

TEST_F(TokenizerFiles, VocabulariesThatContradictThemselves) {
  const json golden = json::parse(golden_json());
  const auto expect = [&](const char* text, auto&& change) {
    json document = golden;
    change(document);
    const std::string problem = problem_of(document.dump());
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  };
  expect("most ids would have none", [](json& d) { d["model"]["vocab"]["th"] = 5000; });
  expect("same id", [](json& d) { d["model"]["vocab"]["th"] = 40; });
  expect("alphabet", [](json& d) { d["model"]["vocab"]["two words"] = 700; });
  expect("alphabet", [](json& d) { d["model"]["vocab"][""] = 700; });
  expect("not in the vocabulary", [](json& d) { d["model"]["merges"][3] = {"qqqq", "a"}; });
  expect("lacks", [](json& d) { d["model"]["merges"][3] = {"Q", "Q"}; });
  expect("twice", [](json& d) { d["model"]["merges"].push_back(d["model"]["merges"][0]); });
  expect("in the vocabulary it has", [](json& d) { d["added_tokens"][0]["id"] = 5; });
  expect("most ids would have none", [](json& d) {
    d["added_tokens"].push_back(d["added_tokens"][0]);
    d["added_tokens"][2]["id"] = 2000000000;
    d["added_tokens"][2]["content"] = "far away";
  });
  expect("takes the place of byte 0xdf's token", [](json& d) {
    const json sharp_s = {{"id", d["model"]["vocab"]["ß"]}, {"content", "ß"}, {"special", false}};
    d["added_tokens"].push_back(sharp_s);
  });
  expect("byte 0x0a", [](json& d) {
    d["model"]["vocab"]["Ġnot_a_newline"] = d["model"]["vocab"]["Ċ"];
    d["model"]["vocab"].erase("Ċ");
    d["model"]["merges"] = json::array();
  });
}

TEST_F(TokenizerFiles, BrokenJsonIsOneClearError) {
  const std::string golden = golden_json();
  for (std::size_t size = 0; size < golden.size(); size += 97) {
    EXPECT_NE(problem_of(golden.substr(0, size)).find("JSON"), std::string::npos) << size;
  }
  EXPECT_NE(problem_of(golden + "x").find("JSON"), std::string::npos);
  EXPECT_NE(problem_of("\"\xff\"").find("JSON"), std::string::npos);
  EXPECT_NE(problem_of(R"({"version": "\ud800"})").find("JSON"), std::string::npos);
  EXPECT_NE(problem_of(std::string(1000000, '[')).find("deep"), std::string::npos);
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  EXPECT_NE(problem_of(nested).find("deep"), std::string::npos);
  EXPECT_NE(problem_of(R"({"version": "1.0", "version": "1.0"})").find("twice"), std::string::npos);
  EXPECT_NE(problem_of("[]").find("object"), std::string::npos);
  EXPECT_NE(problem_of("{}").find("version"), std::string::npos);
}

TEST_F(TokenizerFiles, WhatAFileSaysIsQuotedOnOneLine) {
  const json golden = json::parse(golden_json());
  const std::string evil = "a\n\x1b[2J\xc2\x9b" + std::string(100000, 'x');
  for (const char* place : {"/model/vocab", "/model", "", "/added_tokens/0"}) {
    json document = golden;
    document[json::json_pointer(place)][evil] = 5;
    const std::string problem = problem_of(document.dump());
    EXPECT_LT(problem.size(), 400u);
    EXPECT_TRUE(std::all_of(problem.begin(), problem.end(), [](char c) { return c >= ' ' && c <= '~'; }))
        << problem;
  }
  const std::string broken = problem_of("{\"" + evil + "\x1b");
  EXPECT_TRUE(std::all_of(broken.begin(), broken.end(), [](char c) { return c >= ' ' && c <= '~'; }))
      << broken;
}

TEST_F(TokenizerFiles, MergesTxtIsReadLineByLine) {
  const TokenizerSpec golden = Tokenizer::load(golden_folder()).spec();
  const std::string vocab = format_vocab(golden), merges = format_merges(golden);
  const auto parse = [&](const std::string& text) {
    return parse_vocab_and_merges(vocab, "V", text, "M").merges;
  };
  EXPECT_EQ(parse(merges), golden.merges);
  std::string crlf;
  for (const char c : merges) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse(crlf), golden.merges);
  EXPECT_EQ(parse(merges.substr(0, merges.size() - 1)), golden.merges);
  EXPECT_EQ(parse(""), std::vector<MergePair>{});
  for (const char* bad :
       {"t h\n\n", "th\n", "t h e\n", "t  h\n", " h\n", "t \n", "t qqqq\n", "\xff\xfe h\n"}) {
    EXPECT_THROW(parse(bad), Error) << bad;
  }
}

TEST_F(TokenizerFiles, MissingFilesAreNamed) {
  try {
    Tokenizer::load(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), folder_.string());
    EXPECT_NE(error.problem().find("tokenizer.json"), std::string::npos);
  }
  write_file_atomically(folder_ / "vocab.json", "{}");
  EXPECT_THROW(Tokenizer::load(folder_), Error);
  write_file_atomically(folder_ / "merges.txt", "");
  EXPECT_THROW(Tokenizer::load(folder_), Error);
}

}  // namespace
}  // namespace warpwright::text
