#include "text/wordpiece.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "text/bert_unicode.hpp"
#include "text/json.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

using Entries = std::vector<std::pair<std::string_view, TokenId>>;

constexpr std::uint8_t kWordAscii = 0, kWhiteAscii = 1, kPunctuationAscii = 2, kNotAscii = 3;

std::array<std::uint8_t, 256> make_ascii_kinds() {
  std::array<std::uint8_t, 256> kinds;
  kinds.fill(kNotAscii);
  for (unsigned char code = 0; code < 0x80; ++code) {
    const std::uint8_t classes = bert::classes(code);
    kinds[code] = (classes & bert::kWhite)         ? kWhiteAscii
                  : (classes & bert::kPunctuation) ? kPunctuationAscii
                                                   : kWordAscii;
  }
  return kinds;
}

struct Char {
  std::uint8_t kind;
  unsigned length;
};

Char char_at(const std::array<std::uint8_t, 256>& ascii, const unsigned char* p, const unsigned char* end) {
  if (ascii[*p] != kNotAscii) return {ascii[*p], 1};
  const Utf8Char c = decode_utf8(p, end);
  const std::uint8_t classes = bert::classes(c.code);
  const std::uint8_t kind = (classes & bert::kWhite)         ? kWhiteAscii
                            : (classes & bert::kPunctuation) ? kPunctuationAscii
                                                             : kWordAscii;
  return {kind, c.length};
}

bool has_more_chars_than(std::string_view word, std::uint64_t most) {
  if (word.size() <= most) return false;
  const auto starts_char = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return static_cast<std::uint64_t>(std::count_if(word.begin(), word.end(), starts_char)) > most;
}

}  // namespace

WordPiece::WordPiece(const WordPieceSpec& spec, const std::string& where) : most_chars_(spec.most_chars) {
  Entries words, continuations;
  bool has_unknown = false;
  const auto add = [&](Entries& entries, std::string_view token, TokenId id) {
    // A longer token matches no word.
    if (!has_more_chars_than(token, most_chars_)) entries.emplace_back(token, id);
  };
  for (const VocabularyEntry& entry : spec.vocabulary) {
    const std::string_view token = entry.token;
    if (!token.empty() && token == spec.unknown) {
      unknown_ = entry.id;
      has_unknown = true;
    }
    add(words, token, entry.id);
    if (token.starts_with(spec.continuing_prefix)) {
      add(continuations, token.substr(spec.continuing_prefix.size()), entry.id);
    }
  }
  if (!has_unknown) {
    throw Error(fmt::format("the vocabulary lacks the unknown token {}", quote(spec.unknown)), where,
                "use the vocabulary of a BERT model");
  }
  words_ = TokenTrie(std::move(words));
  continuations_ = TokenTrie(std::move(continuations));
}

void WordPiece::encode(std::string_view word, std::vector<TokenId>& ids) const {
  const std::size_t count = ids.size();
  const TokenTrie* trie = &words_;
  if (has_more_chars_than(word, most_chars_)) word = {};
  const bool too_long = word.empty();
  while (!word.empty()) {
    const TokenTrie::Match match = trie->longest(word);
    if (match.length == 0) break;
    ids.push_back(match.id);
    word.remove_prefix(match.length);
    trie = &continuations_;
  }
  if (!too_long && word.empty()) return;
  ids.resize(count);
  ids.push_back(unknown_);
}

BertWord next_bert_word(std::string_view text, std::size_t from) {
  static const std::array<std::uint8_t, 256> ascii = make_ascii_kinds();
  const auto* start = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* end = start + text.size();
  const unsigned char* p = start + from;
  Char c{};
  while (p < end && (c = char_at(ascii, p, end)).kind == kWhiteAscii) p += c.length;
  const unsigned char* begin = p;
  if (p < end) {
    p += c.length;
    if (c.kind == kWordAscii) {
      while (p < end && (c = char_at(ascii, p, end)).kind == kWordAscii) p += c.length;
    }
  }
  return {static_cast<std::size_t>(begin - start), static_cast<std::size_t>(p - start)};
}

}  // namespace warpwright::text
