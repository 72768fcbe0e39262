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

// undecided: the first byte of a character that is not ASCII
enum class Kind : std::uint8_t { word, white, punctuation, undecided };

Kind kind_of(std::uint32_t code) {
  const std::uint8_t classes = bert::classes(code);
  return (classes & bert::kWhite)         ? Kind::white
         : (classes & bert::kPunctuation) ? Kind::punctuation
                                          : Kind::word;
}

// The kinds by a character's first byte.
using FirstKinds = std::array<Kind, 256>;

FirstKinds make_first_kinds() {
  FirstKinds kinds;
  kinds.fill(Kind::undecided);
  for (unsigned char code = 0; code < 0x80; ++code) kinds[code] = kind_of(code);
  return kinds;
}

struct Char {
  Kind kind;
  unsigned length;
};

Char char_at(const FirstKinds& first, const unsigned char* p, const unsigned char* end) {
  if (first[*p] != Kind::undecided) return {first[*p], 1};
  const Utf8Char c = decode_utf8(p, end);
  return {kind_of(c.code), c.length};
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
  static const FirstKinds first = make_first_kinds();
  const auto* start = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* end = start + text.size();
  const unsigned char* p = start + from;
  Char c{};
  while (p < end && (c = char_at(first, p, end)).kind == Kind::white) p += c.length;
  const unsigned char* begin = p;
  if (p < end) {
    p += c.length;
    if (c.kind == Kind::word) {
      while (p < end && (c = char_at(first, p, end)).kind == Kind::word) p += c.length;
    }
  }
  return {static_cast<std::size_t>(begin - start), static_cast<std::size_t>(p - start)};
}

}  // namespace warpwright::text
