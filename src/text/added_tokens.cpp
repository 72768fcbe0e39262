#include "text/added_tokens.hpp"

#include <algorithm>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

std::uint8_t classes_of(const Utf8Char& c) {
  return UnicodeTable::instance().classes(c.code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && (classes_of(first_char(text)) & kWord);
}
bool ends_with_word(std::string_view text) {
  return !text.empty() && (classes_of(last_char(text)) & kWord);
}

std::size_t leading_space(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Char c = first_char(text.substr(size));
    if (!(classes_of(c) & kSpace)) break;
    size += c.length;
  }
  return size;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) (token.normalized ? normalized_ : raw_).tokens.push_back(&token);
  for (Round* round : {&raw_, &normalized_}) {
    std::sort(round->tokens.begin(), round->tokens.end(),
              [](const AddedToken* a, const AddedToken* b) { return a->content < b->content; });
    for (const AddedToken* token : round->tokens) {
      round->only_special = round->only_special && token->special;
      ++round->first[static_cast<unsigned char>(token->content[0]) + std::size_t{1}];
    }
    for (std::size_t b = 0; b < 256; ++b) round->first[b + 1] += round->first[b];
  }
}

void AddedTokenMatcher::split(std::string_view text, SpecialTokens special,
                              std::vector<Segment>& segments) const {
  if (normalized_.tokens.empty()) return split_round(raw_, text, special, segments);
  std::vector<Segment> first_round;
  split_round(raw_, text, special, first_round);
  for (const Segment& segment : first_round) {
    if (segment.token) {
      segments.push_back(segment);
    } else {
      split_round(normalized_, segment.text, special, segments);
    }
  }
}

// The longest token that the text starts with: the range of candidates narrows byte by byte.
const AddedToken* AddedTokenMatcher::longest_match(const Round& round, std::string_view text) {
  const auto first_byte = static_cast<unsigned char>(text[0]);
  auto low = round.tokens.begin() + round.first[first_byte];
  auto high = round.tokens.begin() + round.first[first_byte + std::size_t{1}];
  const AddedToken* match = nullptr;
  for (std::size_t size = 1; low != high; ++size) {
    if (high - low == 1) return text.starts_with((*low)->content) ? *low : match;
    if ((*low)->content.size() == size) match = *low++;
    if (size == text.size()) break;
    const auto byte_less = [size](const AddedToken* token, unsigned char byte) {
      return static_cast<unsigned char>(token->content[size]) < byte;
    };
    const auto byte_greater = [size](unsigned char byte, const AddedToken* token) {
      return byte < static_cast<unsigned char>(token->content[size]);
    };
    const auto byte = static_cast<unsigned char>(text[size]);
    low = std::lower_bound(low, high, byte, byte_less);
    high = std::upper_bound(low, high, byte, byte_greater);
  }
  return match;
}

void AddedTokenMatcher::split_round(const Round& round, std::string_view text, SpecialTokens special,
                                    std::vector<Segment>& segments) {
  std::size_t done = 0;
  std::size_t space_end = 0;  // white space known to reach this far, so that no run is scanned twice
  const bool nothing_to_find = round.only_special && special == SpecialTokens::as_text;
  for (std::size_t i = 0; i < text.size() && !nothing_to_find;) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool possible = round.first[byte] != round.first[byte + std::size_t{1}];
    const AddedToken* token = possible ? longest_match(round, text.substr(i)) : nullptr;
    if (!token) {
      ++i;
      continue;
    }
    const std::string_view left = text.substr(0, i);
    const std::string_view right = text.substr(i + token->content.size());
    std::size_t begin = i;
    i += token->content.size();  // a match that is passed over is still passed
    if (token->special && special == SpecialTokens::as_text) continue;
    if (token->single_word && (ends_with_word(left) || starts_with_word(right))) continue;
    if (token->lstrip && begin > done) begin -= trailing_space(left.substr(done));
    if (token->rstrip && i > space_end) space_end = i + leading_space(right);
    const std::size_t end = token->rstrip ? std::max(i, space_end) : i;
    if (begin > done) segments.push_back({text.substr(done, begin - done), nullptr});
    segments.push_back({text.substr(begin, end - begin), token});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), nullptr});
}

}  // namespace warpwright::text
