// Answers requests on standard input, for scripts that compare the library with others (conformance.py).
//
//   text_pipe encode DIR [special]
//       frames of text in, frames of ids out; "special": recognize special tokens
//   text_pipe decode DIR
//       frames of ids in, frames of bytes out
//   text_pipe save DIR OUT
//       loads a tokenizer and saves it
//   text_pipe encoder DIR as_text|recognize MAX_LENGTH STRATEGY
//       a count (1 or 2) and that many frames of text in, a frame of ids and a frame of types out; both empty
//       for an error
//   text_pipe normalize CLEAN CHINESE ACCENTS LOWER
//       BertNormalizer with these options, each 0 or 1: frames of text in and out
//   text_pipe words
//       BertPreTokenizer: frames of text in, frames of words out, a newline after each word
//   text_pipe pieces gpt2|cl100k|qwen|digits|each_digit|EXPRESSION
//       frames of text in, frames of the pieces' ends out
//   text_pipe nfc
//       frames of text in, frames of the text in NFC out
//   text_pipe repair
//       frames of any bytes in, frames of UTF-8 out
//   text_pipe classes
//       one byte per code point: its Unicode classes
//   text_pipe train SIZE OUT FILE…
//       trains on files, each one document, and saves the tokenizer
//
// A frame is a 32-bit count and that many elements: bytes of text in, 32-bit ids out (little-endian).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "text/bert_normalizer.hpp"
#include "text/canonical.hpp"
#include "text/encoder_tokenizer.hpp"
#include "text/pieces.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"
#include "text/unicode.hpp"
#include "text/wordpiece.hpp"

namespace {

using namespace warpwright;
using namespace warpwright::text;

template <class T>
bool read_items(T* items, std::size_t count) {
  return std::fread(items, sizeof(T), count, stdin) == count;
}

template <class T>
void write_items(const T* items, std::size_t count) {
  if (std::fwrite(items, sizeof(T), count, stdout) != count)
    throw_system_error("write", "stdout", "check the reader");
}

// add_prefix_space adds a space to the text, some added tokens remove white space, normalizers rewrite, and
// marks of spaces become spaces.
bool is_lossless(const TokenizerSpec& spec) {
  return !spec.add_prefix_space && spec.normalizer.empty() && !spec.characters &&
         std::none_of(spec.added.begin(), spec.added.end(),
                      [](const AddedToken& token) { return token.lstrip || token.rstrip; });
}

void encode(const Tokenizer& tokenizer, SpecialTokens special) {
  const bool lossless = is_lossless(tokenizer.spec());
  std::string text;
  std::vector<TokenId> ids;
  for (std::uint32_t size; read_items(&size, 1);) {
    text.resize(size);
    if (!read_items(text.data(), size)) throw Error("a frame is cut short", "stdin", "send whole frames");
    ids.clear();
    tokenizer.encode(text, ids, special);
    const auto count = static_cast<std::uint32_t>(ids.size());
    write_items(&count, 1);
    write_items(ids.data(), ids.size());
    std::fflush(stdout);
    if (lossless && tokenizer.decode(ids) != text) {
      throw Error("decode(encode(text)) is not the text", text, "find out why");
    }
  }
}

bool read_text(std::string& text) {
  std::uint32_t size = 0;
  if (!read_items(&size, 1)) return false;
  text.resize(size);
  if (!read_items(text.data(), size)) throw Error("a frame is cut short", "stdin", "send whole frames");
  return true;
}

template <class Items>
void write_frame(const Items& items) {
  const auto count = static_cast<std::uint32_t>(items.size());
  write_items(&count, 1);
  write_items(items.data(), items.size());
}

void decode(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (std::uint32_t count; read_items(&count, 1);) {
    ids.resize(count);
    if (!read_items(ids.data(), count)) throw Error("a frame is cut short", "stdin", "send whole frames");
    write_frame(tokenizer.decode(ids));
  }
}

Truncation truncation_named(const std::string& name) {
  if (name == "longest_first") return Truncation::longest_first;
  if (name == "only_first") return Truncation::only_first;
  if (name == "only_second") return Truncation::only_second;
  throw Error("is not a strategy", name, "use longest_first, only_first or only_second");
}

void encode_for_encoder(const EncoderTokenizer& tokenizer, const EncodeOptions& options) {
  std::string texts[2];
  for (std::uint32_t count; read_items(&count, 1);) {
    for (std::uint32_t i = 0; i < count; ++i) read_text(texts[i]);
    Encoding encoding;
    try {
      encoding =
          count == 1 ? tokenizer.encode(texts[0], options) : tokenizer.encode(texts[0], texts[1], options);
    } catch (const Error&) {
      encoding = {};
    }
    write_frame(encoding.ids);
    write_frame(encoding.types);
    std::fflush(stdout);
  }
}

void normalize(const BertNormalizer& normalizer) {
  std::vector<char> buffer;
  for (std::string text; read_text(text);) {
    write_frame(normalizer.normalize(text, buffer));
    std::fflush(stdout);
  }
}

void cut_into_words() {
  for (std::string text; read_text(text);) {
    std::string words;
    for (BertWord word = next_bert_word(text, 0); word.begin < text.size();
         word = next_bert_word(text, word.end)) {
      words.append(text, word.begin, word.end - word.begin) += '\n';
    }
    write_frame(words);
    std::fflush(stdout);
  }
}

Cut cut_named(const std::string& name) {
  if (name == "gpt2") return Pattern::gpt2;
  if (name == "cl100k") return Pattern::cl100k;
  if (name == "qwen") return Pattern::qwen;
  if (name == "digits") return Pattern::digits;
  if (name == "each_digit") return Pattern::each_digit;
  return SplitExpression(name, Uncovered::piece, "the pattern", "text_pipe");
}

void cut_into_pieces(const CutRules& rules) {
  for (std::string text; read_text(text);) {
    std::vector<std::uint32_t> ends;
    PieceCursor cursor(rules, text);
    for (std::size_t begin = 0; begin < text.size(); begin = ends.back()) {
      ends.push_back(static_cast<std::uint32_t>(cursor.end_of_piece(begin)));
    }
    write_frame(ends);
    std::fflush(stdout);
  }
}

void print_nfc() {
  std::string buffer;
  for (std::string text; read_text(text);) {
    write_frame(to_nfc(text, buffer));
    std::fflush(stdout);
  }
}

void repair() {
  for (std::string text; read_text(text);) {
    write_frame(repair_utf8(text));
    std::fflush(stdout);
  }
}

void print_classes() {
  for (char32_t code = 0; code < 0x110000; ++code) {
    const std::uint8_t classes = UnicodeTable::instance().classes(code);
    write_items(&classes, 1);
  }
}

int run(const std::vector<std::string>& args) {
  if (args.size() >= 2 && args[0] == "encode") {
    const bool special = args.size() == 3 && args[2] == "special";
    encode(Tokenizer::load(args[1]), special ? SpecialTokens::recognize : SpecialTokens::as_text);
  } else if (args.size() == 2 && args[0] == "decode") {
    decode(Tokenizer::load(args[1]));
  } else if (args.size() == 3 && args[0] == "save") {
    Tokenizer::load(args[1]).save(args[2]);
  } else if (args.size() == 5 && args[0] == "encoder") {
    EncodeOptions options;
    options.in_text = args[2] == "recognize" ? SpecialTokens::recognize : SpecialTokens::as_text;
    options.max_length = std::stoul(args[3]);
    options.truncation = truncation_named(args[4]);
    encode_for_encoder(EncoderTokenizer::load(args[1]), options);
  } else if (args.size() == 5 && args[0] == "normalize") {
    normalize(BertNormalizer({args[1] == "1", args[2] == "1", args[3] == "1", args[4] == "1"}));
  } else if (args.size() == 1 && args[0] == "words") {
    cut_into_words();
  } else if (args.size() == 2 && args[0] == "pieces") {
    CutRules rules;
    rules.patterns = {cut_named(args[1])};
    cut_into_pieces(rules);
  } else if (args.size() == 1 && args[0] == "nfc") {
    print_nfc();
  } else if (args.size() == 1 && args[0] == "repair") {
    repair();
  } else if (args.size() == 1 && args[0] == "classes") {
    print_classes();
  } else if (args.size() >= 4 && args[0] == "train") {
    TokenizerTraining options;
    options.vocab_size = std::stoul(args[1]);
    std::vector<std::string> documents;
    for (std::size_t i = 3; i < args.size(); ++i)
      documents.push_back(read_file(args[i], std::uint64_t{1} << 30));
    const std::vector<std::string_view> texts(documents.begin(), documents.end());
    train_tokenizer(texts, options).save(args[2]);
  } else {
    std::fputs(
        "usage: text_pipe encode|decode|save|encoder|normalize|words|pieces|nfc|repair|classes|train ...\n",
        stderr);
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "text_pipe: %s\n", error.what());
    return 1;
  }
}
