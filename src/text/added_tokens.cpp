#include "text/added_tokens.hpp"

#include <algorithm>
#include <utility>

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
    std::vector<std::pair<std::string_view, TokenId>> contents;
    for (const AddedToken* token : round->tokens) {
      contents.emplace_back(token->content, static_cast<TokenId>(contents.size()));
      round->only_special = round->only_special && token->special;
    }
    round->trie = TokenTrie(std::move(contents));
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

void AddedTokenMatcher::split_round(const Round& round, std::string_view text, SpecialTokens special,
                                    std::vector<Segment>& segments) {
  std::size_t done = 0;
  std::size_t space_end = 0;  // end of the known white space, so that no run is scanned twice
  const bool nothing_to_find = round.only_special && special == SpecialTokens::as_text;
  for (std::size_t i = 0; i < text.size() && !nothing_to_find;) {
    const TokenTrie::Match match =
        round.trie.may_start(text[i]) ? round.trie.longest(text.substr(i)) : TokenTrie::Match{};
    if (match.length == 0) {
      ++i;
      continue;
    }
    const AddedToken* token = round.tokens[match.id];
    const std::string_view left = text.substr(0, i);
    const std::string_view right = text.substr(i + token->content.size());
    std::size_t begin = i;
    i += token->content.size();  // the search continues after a match even if its flags reject it
    if (token->special && special == SpecialTokens::as_text) continue;
    if (token->single_word && (ends_with_word(left) || starts_with_word(right))) continue;
    if (token->lstrip) begin = std::max(begin - trailing_space(left.substr(std::min(done, begin))), done);
    if (token->rstrip && i > space_end) space_end = i + leading_space(right);
    const std::size_t end = token->rstrip ? std::max(i, space_end) : i;
    if (begin >= end) continue;  // all of it is white space that the token before has taken
    if (begin > done) segments.push_back({text.substr(done, begin - done), nullptr});
    segments.push_back({text.substr(begin, end - begin), token});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), nullptr});
}

}  // namespace warpwright::text
