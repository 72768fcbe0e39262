#include "text/encoder_tokenizer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.hpp"
#include "runtime/test_folder.hpp"
#include "text/encoder_files.hpp"
#include "text/golden.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

using Ids = std::vector<TokenId>;
using Types = std::vector<std::uint32_t>;

constexpr const char* kVocab =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nhello\n,\nworld\n##s\n你\ne\n";

EncoderTokenizer small(const std::string& config = "", const std::string& vocab = kVocab) {
  return EncoderTokenizer(parse_bert_vocab(vocab, "vocab.txt", config, "tokenizer_config.json"));
}

std::string normalized(std::string_view text, const BertNormalizer::Options& options = {}) {
  std::vector<char> buffer;
  return std::string(BertNormalizer(options).normalize(text, buffer));
}

TEST(BertNormalizer, CleansSetsApartStripsAndLowers) {
  EXPECT_EQ(normalized("H\u00e9LLo\tW\u0000orld\u00ad"), "hello w");  // a C string ends at its zero
  EXPECT_EQ(normalized(std::string_view("a\0b\x01\x7f\ufffd\u200dc", 12)), "abc");
  EXPECT_EQ(normalized("\u00a0\u3000\u2028"), "   ");
  EXPECT_EQ(normalized("a\u4f60b"), "a \u4f60 b");
  EXPECT_EQ(normalized("\u0130I\u1e9e\u03a3"), "ii\u00df\u03c3");
  EXPECT_EQ(normalized("\uac01"), "\u1100\u1161\u11a8");  // stripping accents decomposes Hangul
  BertNormalizer::Options cased;
  cased.strip_accents = cased.lowercase = false;
  EXPECT_EQ(normalized("H\u00e9\u0301\uac01", cased), "H\u00e9\u0301\uac01");
}

TEST(BertNormalizer, OrdersTheMarksThatItKeeps) {
  // U+302E has class 224 and is not a nonspacing mark. U+1D165 has class 216, so it moves before U+302E. The
  // accent is removed.
  EXPECT_EQ(normalized("a\u302e\u0301\U0001d165"), "a\U0001d165\u302e");
  EXPECT_EQ(normalized("a\u302e \U0001d165"), "a\u302e \U0001d165");
}

TEST(BertNormalizer, TakesAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(255 - i);
  for (int choice = 0; choice < 16; ++choice) {
    const BertNormalizer::Options options{(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0,
                                          (choice & 8) != 0};
    EXPECT_TRUE(is_utf8(normalized(bytes, options)));
  }
}

TEST(RepairUtf8, ReplacesMaximalParts) {
  // The Unicode Standard, tables 3-8 and 3-11.
  EXPECT_EQ(repair_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\x41");
  EXPECT_EQ(repair_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), "\ufffd\ufffd\ufffd\ufffd\x41");
  EXPECT_EQ(repair_utf8("\xed\xa0\x80\xf4\x91\x92\x93\xff"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(repair_utf8("\u00e9\U0001f600\xe4\xbd"), "\u00e9\U0001f600\ufffd");
}

TEST(WordPiece, TakesTheLongestPieceFirst) {
  const EncoderTokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.encode("Unaffable, hello WORLDS!").ids, (Ids{2, 5, 6, 7, 9, 8, 10, 11, 1, 3}));
  EXPECT_EQ(tokenizer.encode("unaffablex").ids,
            (Ids{2, 1, 3}));  // one piece missing: all of the word is unknown
  EXPECT_EQ(tokenizer.encode("hello\u4f60\u4f60").ids, (Ids{2, 8, 12, 12, 3}));
  EXPECT_EQ(tokenizer.encode("").ids, (Ids{2, 3}));
  EXPECT_EQ(tokenizer.encode(" \t\n").ids, (Ids{2, 3}));
}

TEST(WordPiece, AWordOfMoreThanItsCharactersIsUnknown) {
  const std::string vocab = std::string(kVocab) + "##e\n";
  const EncoderTokenizer tokenizer = small("", vocab);
  std::string word;
  for (int i = 0; i < 100; ++i) word += i % 2 ? "e" : "\u00e9";
  EXPECT_EQ(tokenizer.encode(word).ids.size(), 102u);
  EXPECT_EQ(tokenizer.encode(word + "e").ids, (Ids{2, 1, 3}));
}

TEST(WordPiece, OfEqualLinesTheLastCounts) {
  EXPECT_EQ(small("", std::string(kVocab) + "hello\n").encode("hello").ids, (Ids{2, 14, 3}));
}

TEST(EncoderTokenizer, TypesOfAPair) {
  const Encoding pair = small().encode("hello", "world");
  EXPECT_EQ(pair.ids, (Ids{2, 8, 3, 10, 3}));
  EXPECT_EQ(pair.types, (Types{0, 0, 0, 1, 1}));
  EXPECT_EQ(small().type_count(), 2u);
  EXPECT_EQ(small().vocab_size(), 14u);
  EncodeOptions bare;
  bare.add_special_tokens = false;
  EXPECT_EQ(small().encode("hello", "world", bare).types, (Types{0, 1}));
}

TEST(EncoderTokenizer, SpecialTokensInATextAreRecognizedOrNot) {
  const EncoderTokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.encode("hello[SEP]world").ids, (Ids{2, 8, 3, 10, 3}));
  EncodeOptions as_text;
  as_text.in_text = SpecialTokens::as_text;
  EXPECT_EQ(tokenizer.encode("hello[SEP]world", as_text).ids, (Ids{2, 8, 1, 1, 1, 10, 3}));
}

TEST(EncoderTokenizer, FlagsOfTokenizerConfig) {
  EXPECT_EQ(small(R"({"do_lower_case": false})").encode("Hello hello").ids, (Ids{2, 1, 8, 3}));
  EXPECT_EQ(small(R"({"strip_accents": false})").encode("h\u00e9llo").ids, (Ids{2, 1, 3}));
  EXPECT_EQ(small(R"({"tokenize_chinese_chars": false})").encode("hello\u4f60").ids, (Ids{2, 1, 3}));
  EXPECT_TRUE(small().lowercases());
}

TEST(EncoderTokenizer, CutsToALength) {
  const EncoderTokenizer tokenizer = small();
  EncodeOptions options;
  options.max_length = 4;
  const Encoding cut = tokenizer.encode("hello , world , hello", options);
  EXPECT_EQ(cut.ids, (Ids{2, 8, 9, 3}));
  EXPECT_TRUE(cut.truncated);
  EXPECT_FALSE(tokenizer.encode("hello ,", options).truncated);
  options.max_length = 2;
  EXPECT_EQ(tokenizer.encode("hello", options).ids, (Ids{2, 3}));
  options.max_length = 1;
  EXPECT_THROW(tokenizer.encode("hello", options), Error);
  options = {.max_length = 8, .truncation = Truncation::only_second};
  EXPECT_EQ(tokenizer.encode("hello hello", ", , , , ,", options).ids, (Ids{2, 8, 8, 3, 9, 9, 9, 3}));
  EXPECT_THROW(tokenizer.encode("hello hello hello hello hello", ",", options), Error);
}

TEST(Truncate, SharesTheRoomAsTheStrategySays) {
  const auto cut = [](std::size_t a, std::size_t b, std::size_t room) {
    const Lengths left = truncate({a, b}, true, room, Truncation::longest_first);
    return std::pair(left.first, left.second);
  };
  EXPECT_EQ(cut(3, 4, 7), std::pair(std::size_t{3}, std::size_t{4}));
  EXPECT_EQ(cut(3, 9, 8), std::pair(std::size_t{3}, std::size_t{5}));
  EXPECT_EQ(cut(9, 3, 8), std::pair(std::size_t{5}, std::size_t{3}));
  EXPECT_EQ(cut(9, 9, 7), std::pair(std::size_t{3}, std::size_t{4}));
  EXPECT_EQ(cut(10, 9, 7), std::pair(std::size_t{4}, std::size_t{3}));
  EXPECT_EQ(cut(10, 9, 0), std::pair(std::size_t{0}, std::size_t{0}));
  EXPECT_THROW(truncate({5, 0}, false, 3, Truncation::only_second), Error);
  EXPECT_THROW(truncate({2, 5}, true, 4, Truncation::only_first), Error);
}

TEST(EncoderTokenizer, ALongTextIsCutWhereverItsPartsEnd) {
  const EncoderTokenizer tokenizer = small();
  std::string text;
  Ids ids{2};
  for (int i = 0; i < 60000; ++i) {
    text += i % 3 ? "hello " : "UNaffable,\u4f60";
    for (const TokenId id : i % 3 ? Ids{8} : Ids{5, 6, 7, 9, 12}) ids.push_back(id);
  }
  ids.push_back(3);
  EXPECT_EQ(tokenizer.encode(text).ids, ids);
  text.insert(0, std::string(100000, 'x') + " ");  // one word longer than a part
  ids.insert(ids.begin() + 1, 1);
  EXPECT_EQ(tokenizer.encode(text).ids, ids);
}

TEST(EncoderTokenizer, SeveralThreadsAtOnce) {
  const EncoderTokenizer tokenizer = EncoderTokenizer::load(golden_folder() / "uncased");
  const std::string text = read_file(golden_folder() / "text.txt", 1 << 20);
  const Ids expected = tokenizer.encode(text).ids;
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text).ids; });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

void compare(const EncoderTokenizer& tokenizer, const std::filesystem::path& strings) {
  const auto cases = nlohmann::json::parse(read_file(strings, 1 << 20));
  EncodeOptions cut;
  cut.max_length = 12;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string text = cases[i]["text"], second = cases[(i + 1) % cases.size()]["text"];
    EXPECT_EQ(tokenizer.encode(text).ids, cases[i]["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.encode(text, second).ids, cases[i]["pair_ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.encode(text, second, cut).ids, cases[i]["cut_ids"].get<Ids>()) << text;
  }
}

class EncoderGolden : public TestFolder, public testing::WithParamInterface<const char*> {
 protected:
  std::filesystem::path golden() const { return golden_folder() / GetParam(); }
};

TEST_P(EncoderGolden, IdsOfTokenizerJson) {
  compare(EncoderTokenizer::load(golden()), golden() / "strings.json");
}

TEST_P(EncoderGolden, IdsOfVocabTxt) {
  for (const char* name : {"vocab.txt", "tokenizer_config.json"})
    put(name, read_file(golden() / name, 1 << 20));
  compare(EncoderTokenizer::load(folder), golden() / "strings.json");
}

INSTANTIATE_TEST_SUITE_P(, EncoderGolden, testing::Values("uncased", "cased"));

TEST(MiniLM, IdsOfItsVocabulary) {
  const char* folder = std::getenv("WARPWRIGHT_MINILM");
  if (!folder) GTEST_SKIP() << "all-MiniLM-L6-v2 is not here: set WARPWRIGHT_MINILM (scripts/fetch-minilm)";
  compare(EncoderTokenizer::load(folder), golden_folder() / "minilm.json");
}

TEST(EncoderFiles, RobertasTemplateAroundByteLevelBpe) {
  auto document = nlohmann::json::parse(read_file(golden_folder() / "tokenizer.json", 1 << 20));
  document["post_processor"] = {{"type", "RobertaProcessing"},
                                {"sep", {"<|pad|>", 1}},
                                {"cls", {"<|endoftext|>", 0}},
                                {"trim_offsets", true},
                                {"add_prefix_space", false}};
  document["truncation"] = {{"max_length", 5}};
  const EncoderTokenizer tokenizer(parse_encoder_json(document.dump(), "test"));
  const Tokenizer bpe = Tokenizer::load(golden_folder());
  const Ids a = bpe.encode("In the"), b = bpe.encode("beginning");
  Ids expected{0};
  expected.insert(expected.end(), a.begin(), a.end());
  for (const TokenId id : {1u, 1u}) expected.push_back(id);
  expected.insert(expected.end(), b.begin(), b.end());
  expected.push_back(1);
  const Encoding pair = tokenizer.encode("In the", "beginning");
  EXPECT_EQ(pair.ids, expected);
  EXPECT_EQ(pair.types, Types(expected.size(), 0));
  // An invalid byte becomes U+FFFD, which has three bytes.
  EXPECT_EQ(tokenizer.encode("a\xff").ids, tokenizer.encode("a\ufffd").ids);
}

TEST(EncoderFiles, RobertasVocabularyAndMerges) {
  const Tokenizer bpe = Tokenizer::load(golden_folder());
  nlohmann::json vocab =
      nlohmann::json::parse(read_file(golden_folder() / "tokenizer.json", 1 << 20))["model"]["vocab"];
  const TokenId base = static_cast<TokenId>(vocab.size());
  TokenId id = base;
  for (const char* token : {"<s>", "</s>", "<mask>"}) vocab[token] = id++;
  const EncoderTokenizer tokenizer(parse_roberta_files(vocab.dump(), "vocab.json", "", "merges.txt",
                                                       R"({"add_prefix_space": true})", "config"));
  const Ids ids = tokenizer.encode("a <mask>").ids;
  EXPECT_EQ(ids, (Ids{base, bpe.encode(" ")[0], bpe.encode("a")[0], base + 2, base + 1}));
}

void refuses(const std::string& document, const std::string& words) {
  try {
    EncoderTokenizer tokenizer(parse_encoder_json(document, "tokenizer.json"), "tokenizer.json");
    FAIL() << "accepted: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(error.where(), "tokenizer.json");
  }
}

TEST(EncoderFiles, RefusesWhatItDoesNotDo) {
  const auto golden =
      nlohmann::json::parse(read_file(golden_folder() / "uncased" / "tokenizer.json", 1 << 20));
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json document = golden;
    document[nlohmann::json::json_pointer(pointer)] = value;
    return document.dump();
  };
  refuses("{}", "model");
  refuses("[1", "not JSON");
  refuses(with("/model/type", "Unigram"), "model.type");
  refuses(with("/model/unk_token", "<nothing>"), "<nothing>");
  refuses(with("/model/max_input_chars_per_word", -1), "max_input_chars_per_word");
  refuses(with("/model/max_input_chars_per_word", 1001), "not a number of characters up to 1000");
  refuses(with("/model/vocab/hello", -1), "not an id");
  refuses(with("/model/vocab/hello", 2147483648u), "not an id");
  refuses(with("/model/surprise", 1), "surprise");
  refuses(with("/normalizer/type", "NFKC"), "normalizer.type");
  refuses(with("/normalizer/lowercase", nullptr), "normalizer.lowercase");
  refuses(with("/pre_tokenizer/type", "Whitespace"), "pre_tokenizer.type");
  refuses(with("/post_processor/type", "Mystery"), "post_processor.type");
  refuses(with("/post_processor/single", nlohmann::json::array()), "the template for single texts");
  refuses(with("/post_processor/special_tokens", nlohmann::json::object()), "special_tokens");
  const nlohmann::json piece = golden["post_processor"]["single"][0];
  refuses(with("/post_processor/single", std::vector<nlohmann::json>(65, piece)), "has over 64 pieces");
  refuses(with("/post_processor/special_tokens/[CLS]/ids", std::vector<int>(65, 2)), "has over 64 ids");
  refuses(with("/added_tokens/0/id", 7), "[PAD]");
  refuses(with("/added_tokens/0/content", ""), "added token");
  nlohmann::json bpe = nlohmann::json::parse(read_file(golden_folder() / "tokenizer.json", 1 << 20));
  bpe["decoder"] = nullptr;
  refuses(bpe.dump(), "decoder is not ByteLevel");
}

TEST(EncoderFiles, RefusesAVocabularyWithoutItsSpecialTokens) {
  EXPECT_THROW(small("", "[UNK]\n[CLS]\nhello\n"), Error);
  EXPECT_THROW(small("", "[CLS]\n[SEP]\nhello\n"), Error);
  EXPECT_THROW(small("", "[UNK]\n[CLS]\n[SEP]\n\xff\n"), Error);
  EXPECT_THROW(small("", ""), Error);
  EXPECT_NE(message_of([] { small("", std::string("[UNK]\n[CLS]\n[SEP]\n\0hello\n", 25)); }).find("is a NUL"),
            std::string::npos);
  EXPECT_THROW(small("[]"), Error);
  EXPECT_THROW(small(R"({"do_lower_case": "no"})"), Error);
  for (const char* id : {"x", "", "1x", "-1", "2147483648", "99999999999999999999"}) {
    const nlohmann::json config = {{"added_tokens_decoder", {{id, {{"content", "[UNK]"}}}}}};
    EXPECT_NE(message_of([&] { small(config.dump()); }).find("is not under an id below 2^31"),
              std::string::npos)
        << id;
  }
  EXPECT_NE(message_of([] {
              small(R"({"added_tokens_decoder": {"0": {"content": "[UNK]", "left": true}}})");
            }).find("added_tokens_decoder[\"0\"][\"left\"] is not a known field"),
            std::string::npos);
}

TEST(EncoderFiles, NamesAFolderWithoutThem) {
  EXPECT_THROW(EncoderTokenizer::load("/nonexistent"), Error);
}

}  // namespace
}  // namespace warpwright::text
