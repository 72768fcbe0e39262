#include "text/encoder_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "text/json.hpp"
#include "text/piece_cache.hpp"
#include "text/scratch_pool.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kLongestAddedToken = 512;  // bytes; limits the cost of one position in a text
// Bytes normalized at once. They stay in the cache.
constexpr std::size_t kPart = std::size_t{1} << 15;

// The size of the text's next part: at most kPart bytes, up to a space. No rule of normalization or
// pre-tokenization looks across a space. A text without spaces gives a longer part.
std::size_t part_size(std::string_view text) {
  if (text.size() <= kPart) return text.size();
  std::size_t space = text.rfind(' ', kPart);
  if (space == 0 || space == std::string_view::npos) space = text.find(' ', kPart);
  return std::min(space, text.size());
}

std::size_t count_special(const std::vector<TemplatePiece>& pieces) {
  std::size_t count = 0;
  for (const TemplatePiece& piece : pieces) count += piece.ids.size();
  return count;
}

// The template holds each text exactly once. Otherwise a truncated sequence could not have the requested
// length.
void check_template(const std::vector<TemplatePiece>& pieces, bool pair, const std::string& where) {
  const auto count = [&](TemplatePiece::Kind kind) {
    return std::count_if(pieces.begin(), pieces.end(),
                         [&](const TemplatePiece& piece) { return piece.kind == kind; });
  };
  if (count(TemplatePiece::Kind::first) != 1 || count(TemplatePiece::Kind::second) != (pair ? 1 : 0)) {
    throw Error(fmt::format("the template for {} does not hold {} exactly once",
                            pair ? "pairs" : "single texts", pair ? "each text" : "the text"),
                where, "use a post_processor such as BERT's");
  }
}

Encoding assemble(const std::vector<TemplatePiece>& pieces, bool add_special, std::span<const TokenId> first,
                  std::span<const TokenId> second) {
  Encoding encoding;
  const std::size_t count = first.size() + second.size() + (add_special ? count_special(pieces) : 0);
  encoding.ids.reserve(count);
  encoding.types.reserve(count);
  for (const TemplatePiece& piece : pieces) {
    std::span<const TokenId> ids = piece.kind == TemplatePiece::Kind::first ? first : second;
    if (piece.kind == TemplatePiece::Kind::special) {
      ids = add_special ? std::span<const TokenId>(piece.ids) : std::span<const TokenId>();
    }
    encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
    encoding.types.insert(encoding.types.end(), ids.size(), piece.type);
  }
  return encoding;
}

}  // namespace

struct EncoderTokenizer::Scratch {
  PieceCache cache;
  std::vector<char> normalized;
  std::vector<Segment> segments, normalized_segments;
};

EncoderTokenizer::EncoderTokenizer(EncoderTokenizer&&) noexcept = default;
EncoderTokenizer& EncoderTokenizer::operator=(EncoderTokenizer&&) noexcept = default;
EncoderTokenizer::~EncoderTokenizer() = default;

EncoderTokenizer::EncoderTokenizer(EncoderTokenizerSpec spec, const std::string& where)
    : pretokenize_(spec.pretokenize),
      post_(std::move(spec.post)),
      pool_(std::make_unique<ScratchPool<Scratch>>()) {
  check_template(post_.single, false, where);
  check_template(post_.pair, true, where);
  const auto count_id = [&](TokenId id) {
    vocab_size_ = std::max<std::size_t>(vocab_size_, std::size_t{id} + 1);
  };
  for (const auto* pieces : {&post_.single, &post_.pair}) {
    for (const TemplatePiece& piece : *pieces) {
      for (const TokenId id : piece.ids) count_id(id);
      type_count_ = std::max(type_count_, piece.type + 1);
    }
  }
  if (spec.bpe) {
    bpe_.emplace(std::move(*spec.bpe), where);
    vocab_size_ = std::max(vocab_size_, bpe_->vocab_size());
    return;
  }
  wordpiece_.emplace(spec.wordpiece, where);
  if (spec.normalizer) normalizer_.emplace(*spec.normalizer);
  for (const VocabularyEntry& entry : spec.wordpiece.vocabulary) {
    if (!entry.token.empty()) count_id(entry.id);
  }
  std::vector<char> buffer;
  for (AddedToken& token : spec.added) {
    count_id(token.id);
    if (token.normalized && normalizer_) token.content = normalizer_->normalize(token.content, buffer);
    if (token.content.empty() || token.content.size() > kLongestAddedToken) {
      throw Error(fmt::format("added token {} is {} bytes long once normalized, expected 1 to {}", token.id,
                              token.content.size(), kLongestAddedToken),
                  where, "remove it");
    }
    (token.normalized ? normalized_added_ : added_).push_back(token);
  }
  for (std::vector<AddedToken>* tokens : {&added_, &normalized_added_}) {
    for (AddedToken& token : *tokens) token.normalized = false;  // each matcher has one round
    std::vector<std::string_view> contents;
    for (const AddedToken& token : *tokens) contents.push_back(token.content);
    std::sort(contents.begin(), contents.end());
    const auto twin = std::adjacent_find(contents.begin(), contents.end());
    if (twin != contents.end()) {
      throw Error(fmt::format("two added tokens have the content {}", quote(*twin)), where,
                  "remove one of them");
    }
  }
  matcher_ = AddedTokenMatcher(added_);
  normalized_matcher_ = AddedTokenMatcher(normalized_added_);
}

std::size_t EncoderTokenizer::special_tokens(bool pair) const {
  return count_special(pair ? post_.pair : post_.single);
}

bool EncoderTokenizer::lowercases() const {
  return normalizer_ && normalizer_->options().lowercase;
}

Lengths truncate(Lengths lengths, bool pair, std::size_t room, Truncation truncation) {
  const std::size_t total = lengths.first + lengths.second;
  if (total <= room) return lengths;
  if (truncation == Truncation::longest_first) {
    if (!pair) return {room, 0};
    const bool swap = lengths.first > lengths.second;
    std::size_t least = std::min(lengths.first, lengths.second);
    std::size_t most = room > least ? std::max(least, room - least) : least;
    if (least + most > room) {
      least = room / 2;
      most = room - least;
    }
    return swap ? Lengths{most, least} : Lengths{least, most};
  }
  if (truncation == Truncation::only_second && !pair) {
    throw Error("there is no second text to shorten", "only_second", "use longest_first or only_first");
  }
  if (room == 0) return {0, 0};
  std::size_t& length = truncation == Truncation::only_first ? lengths.first : lengths.second;
  const std::size_t surplus = total - room;
  if (length <= surplus) {
    throw Error(fmt::format("a text of {} tokens cannot be shortened by {}", length, surplus),
                truncation == Truncation::only_first ? "only_first" : "only_second",
                "raise max_length, or use longest_first");
  }
  length -= surplus;
  return lengths;
}

Encoding EncoderTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const std::size_t special = options.add_special_tokens ? special_tokens(false) : 0;
  if (options.max_length != 0 && options.max_length < special) {
    throw Error(fmt::format("{} tokens leave no room for {} special ones", options.max_length, special),
                "max_length", "raise it");
  }
  const std::size_t room = options.max_length == 0 ? kUnlimited : options.max_length - special;
  std::vector<TokenId> ids;
  encode_text(text, options.in_text, room == kUnlimited ? room : room + 1, ids);
  const std::size_t length = truncate({ids.size(), 0}, false, room, options.truncation).first;
  Encoding encoding = assemble(post_.single, options.add_special_tokens, std::span(ids).first(length), {});
  encoding.truncated = length < ids.size();
  return encoding;
}

Encoding EncoderTokenizer::encode(std::string_view first, std::string_view second,
                                  const EncodeOptions& options) const {
  const std::size_t special = options.add_special_tokens ? special_tokens(true) : 0;
  if (options.max_length != 0 && options.max_length < special) {
    throw Error(fmt::format("{} tokens leave no room for {} special ones", options.max_length, special),
                "max_length", "raise it");
  }
  const std::size_t room = options.max_length == 0 ? kUnlimited : options.max_length - special;
  std::vector<TokenId> a, b;  // encoded whole, since the lengths decide how much of each remains
  encode_text(first, options.in_text, kUnlimited, a);
  encode_text(second, options.in_text, kUnlimited, b);
  const Lengths lengths = truncate({a.size(), b.size()}, true, room, options.truncation);
  Encoding encoding = assemble(post_.pair, options.add_special_tokens, std::span(a).first(lengths.first),
                               std::span(b).first(lengths.second));
  encoding.truncated = lengths != Lengths{a.size(), b.size()};
  return encoding;
}

// Appends the text's ids. May stop after `most` ids.
void EncoderTokenizer::encode_text(std::string_view text, SpecialTokens special, std::size_t most,
                                   std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repair_utf8(text);
  if (bpe_) return bpe_->encode(text, ids, special);
  const typename ScratchPool<Scratch>::Lease lease(*pool_);
  Scratch& scratch = *lease;
  scratch.segments.clear();
  matcher_.split(text, special, scratch.segments);
  for (const Segment& segment : scratch.segments) {
    if (ids.size() >= most) return;
    if (segment.token) {
      ids.push_back(segment.token->id);
      continue;
    }
    // Added tokens may contain a space, and without pre-tokenization the text is one word. Both cases need
    // the whole text at once.
    const bool whole = !normalized_added_.empty() || !pretokenize_;
    for (std::string_view rest = segment.text; !rest.empty() && ids.size() < most;) {
      const std::size_t size = whole ? rest.size() : part_size(rest);
      encode_normalized(rest.substr(0, size), special, most, scratch, ids);
      rest.remove_prefix(size);
    }
  }
}

void EncoderTokenizer::encode_normalized(std::string_view text, SpecialTokens special, std::size_t most,
                                         Scratch& scratch, std::vector<TokenId>& ids) const {
  if (normalizer_) text = normalizer_->normalize(text, scratch.normalized);
  if (normalized_added_.empty()) return encode_words(text, most, scratch, ids);
  scratch.normalized_segments.clear();
  normalized_matcher_.split(text, special, scratch.normalized_segments);
  for (const Segment& segment : scratch.normalized_segments) {
    if (ids.size() >= most) return;
    if (segment.token) {
      ids.push_back(segment.token->id);
    } else {
      encode_words(segment.text, most, scratch, ids);
    }
  }
}

void EncoderTokenizer::encode_words(std::string_view text, std::size_t most, Scratch& scratch,
                                    std::vector<TokenId>& ids) const {
  if (!pretokenize_) {
    if (!text.empty()) wordpiece_->encode(text, ids);
    return;
  }
  std::uint64_t key[2];
  for (BertWord next = next_bert_word(text, 0); next.begin < text.size() && ids.size() < most;
       next = next_bert_word(text, next.end)) {
    const std::string_view word = text.substr(next.begin, next.end - next.begin);
    if (word.size() > PieceCache::kLongestPiece) {
      wordpiece_->encode(word, ids);
      continue;
    }
    PieceCache::make_key(word, text.size() - next.begin >= sizeof key, key);
    PieceCache::Entry& entry = scratch.cache.entry(key);
    if (entry.key[0] != key[0] || entry.key[1] != key[1]) {
      const std::size_t before = ids.size();
      wordpiece_->encode(word, ids);
      const std::span<const TokenId> found = std::span(ids).subspan(before);
      if (found.size() > PieceCache::kMostIds) continue;
      std::copy(key, key + 2, entry.key);
      std::copy(found.begin(), found.end(), entry.ids);
      std::fill(entry.ids + found.size(), entry.ids + PieceCache::kMostIds, PieceCache::kNoId);
      continue;
    }
    for (std::size_t i = 0; i < PieceCache::kMostIds && entry.ids[i] != PieceCache::kNoId; ++i) {
      ids.push_back(entry.ids[i]);
    }
  }
}

}  // namespace warpwright::text
