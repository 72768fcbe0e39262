#include "text/wordpiece.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
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

// Sorted, of equal tokens the last one alone.
Entries sorted(Entries entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::size_t count = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i + 1 == entries.size() || entries[i + 1].first != entries[i].first) entries[count++] = entries[i];
  }
  entries.resize(count);
  return entries;
}

bool has_more_chars_than(std::string_view word, std::uint64_t most) {
  if (word.size() <= most) return false;
  const auto starts_char = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return static_cast<std::uint64_t>(std::count_if(word.begin(), word.end(), starts_char)) > most;
}

}  // namespace

TokenTrie::TokenTrie(const Entries& entries) : from_root_(256, 0) {
  struct Range {
    std::size_t begin, end, depth;  // the entries below a node, and how many of their bytes lead to it
  };
  std::deque<Range> nodes{{0, entries.size(), 0}};
  label_.push_back(0);
  id_.push_back(kNone);
  for (; !nodes.empty(); nodes.pop_front()) {
    Range range = nodes.front();
    const std::size_t node = first_child_.size();
    first_child_.push_back(static_cast<std::uint32_t>(label_.size()));
    if (range.begin < range.end && entries[range.begin].first.size() == range.depth) {
      id_[node] = entries[range.begin++].second;
    }
    while (range.begin < range.end) {
      const char byte = entries[range.begin].first[range.depth];
      std::size_t end = range.begin;
      while (end < range.end && entries[end].first[range.depth] == byte) ++end;
      if (node == 0) from_root_[static_cast<unsigned char>(byte)] = static_cast<std::uint32_t>(label_.size());
      nodes.push_back({range.begin, end, range.depth + 1});
      label_.push_back(static_cast<unsigned char>(byte));
      id_.push_back(kNone);
      range.begin = end;
    }
  }
  first_child_.push_back(static_cast<std::uint32_t>(label_.size()));
}

std::uint32_t TokenTrie::child(std::uint32_t node, unsigned char byte) const {
  const unsigned char* first = label_.data() + first_child_[node];
  const unsigned char* last = label_.data() + first_child_[node + 1];
  const unsigned char* found = std::lower_bound(first, last, byte);
  return found != last && *found == byte ? static_cast<std::uint32_t>(found - label_.data()) : 0;
}

TokenTrie::Match TokenTrie::longest(std::string_view text) const {
  Match match;
  std::uint32_t node = from_root_[static_cast<unsigned char>(text[0])];
  for (std::size_t length = 1; node != 0; ++length) {
    if (id_[node] != kNone) match = {length, id_[node]};
    if (length == text.size()) break;
    node = child(node, static_cast<unsigned char>(text[length]));
  }
  return match;
}

WordPiece::WordPiece(const WordPieceSpec& spec, const std::string& where) : most_chars_(spec.most_chars) {
  Entries words, continuations;
  for (const VocabularyEntry& entry : spec.vocabulary) {
    const std::string_view token = entry.token;
    if (!token.empty()) words.emplace_back(token, entry.id);
    if (token.size() > spec.continuing_prefix.size() && token.starts_with(spec.continuing_prefix)) {
      continuations.emplace_back(token.substr(spec.continuing_prefix.size()), entry.id);
    }
  }
  words = sorted(std::move(words));
  const auto unknown = std::lower_bound(words.begin(), words.end(), spec.unknown,
                                        [](const auto& a, const std::string& b) { return a.first < b; });
  if (unknown == words.end() || unknown->first != spec.unknown) {
    throw Error(fmt::format("the vocabulary lacks the unknown token {}", quote(spec.unknown)), where,
                "use the vocabulary of a BERT model");
  }
  unknown_ = unknown->second;
  words_ = TokenTrie(words);
  continuations_ = TokenTrie(sorted(std::move(continuations)));
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
