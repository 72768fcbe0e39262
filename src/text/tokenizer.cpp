#include "text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "text/byte_alphabet.hpp"
#include "text/json.hpp"
#include "text/piece_cache.hpp"
#include "text/pretokenize.hpp"
#include "text/scratch_pool.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr const char* kRemedy = "use the files of a BPE tokenizer such as GPT-2's, Llama's or Qwen's";
constexpr std::size_t kLargestVocabulary = std::size_t{1} << 31;
constexpr std::size_t kLongestMark = 16;         // bytes; limits how much longer a text becomes
constexpr std::size_t kLongestAddedToken = 512;  // bytes; limits the cost of one position in a text

}  // namespace

struct Tokenizer::Scratch {
  PieceCache cache;
  WordMerger merger;
  std::vector<TokenId> piece;
  std::vector<Segment> segments, normalized_segments;
  Normalizer::Buffers normalized;
  std::string prefixed;
};

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer::Tokenizer(TokenizerSpec spec, const std::string& where)
    : spec_(std::move(spec)), pool_(std::make_unique<ScratchPool<Scratch>>()) {
  if (spec_.tokens.size() >= kLargestVocabulary) {
    throw Error(fmt::format("holds {} tokens, more than 2^31", spec_.tokens.size()), where, kRemedy);
  }
  if (spec_.patterns.size() + spec_.use_regex > CutRules::kMostPatterns) {
    throw Error(fmt::format("cuts text by over {} patterns", CutRules::kMostPatterns), where, kRemedy);
  }
  check_added_tokens(where);
  check_template(where);
  index_tokens(where);
  spec_.characters ? index_characters(where) : index_bytes(where);
  index_merges(where);
  normalizer_ = Normalizer(spec_.normalizer, where);
  index_added_tokens(where);
  make_cut_rules();
  if (spec_.end_of_text.empty()) return;
  const auto eos = std::find_if(spec_.added.begin(), spec_.added.end(),
                                [&](const AddedToken& token) { return token.content == spec_.end_of_text; });
  if (eos == spec_.added.end()) {
    throw Error(
        fmt::format("the end-of-text token {} is not among the added tokens", quote(spec_.end_of_text)),
        where, "add it to added_tokens, or name another eos_token");
  }
  eos_id_ = eos->id;
}

// True if the model may make this added token of plain text, if its vocabulary has it. An added token's
// content is stored verbatim. So the merges can produce it only if the byte alphabet spells it in the same
// way.
bool Tokenizer::could_be_text(const AddedToken& token) const {
  return !token.special && (spec_.characters || spell_bytes(token.content) == token.content);
}

bool Tokenizer::model_lacks(const AddedToken& token) const {
  if (token.in_model || !could_be_text(token)) return false;
  const std::string_view content = token.content;
  if (spec_.characters && first_char(content).length == content.size()) return true;
  return spec_.ignore_merges && cut_rules_.may_be_piece(content);
}

void Tokenizer::check_added_tokens(const std::string& where) {
  ordinary_.resize(spec_.tokens.size());
  std::ranges::transform(spec_.tokens, ordinary_.begin(), [](const auto& token) { return !token.empty(); });
  std::vector<std::uint8_t> seen(spec_.tokens.size(), 0);
  for (const AddedToken& token : spec_.added) {
    if (token.content.empty() || token.content.size() > kLongestAddedToken) {
      throw Error(fmt::format("added token {} is {} bytes long, expected 1 to {}", token.id,
                              token.content.size(), kLongestAddedToken),
                  where, kRemedy);
    }
    if (!is_utf8(token.content)) {
      throw Error(fmt::format("added token {} is not UTF-8", token.id), where, kRemedy);
    }
    if (token.id >= spec_.tokens.size() || spec_.tokens[token.id] != token.content) {
      throw Error(fmt::format("added token {} is not in its place in the vocabulary", token.id), where,
                  kRemedy);
    }
    if (seen[token.id]++) throw Error(fmt::format("added token {} appears twice", token.id), where, kRemedy);
    ordinary_[token.id] = token.in_model && could_be_text(token);
  }
}

void Tokenizer::check_template(const std::string& where) const {
  for (const auto* ids : {&spec_.before, &spec_.after}) {
    for (const TokenId id : *ids) {
      if (id >= spec_.tokens.size() || spec_.tokens[id].empty()) {
        throw Error(fmt::format("the template adds id {}, which has no token", id), where, kRemedy);
      }
    }
  }
}

void Tokenizer::index_tokens(const std::string& where) {
  for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
    if (!spec_.tokens[id].empty()) by_bytes_.push_back(static_cast<TokenId>(id));
  }
  const auto order = [&](TokenId id) {
    return std::pair(std::string_view(spec_.tokens[id]), !ordinary_[id]);
  };
  std::sort(by_bytes_.begin(), by_bytes_.end(), [&](TokenId a, TokenId b) { return order(a) < order(b); });
  const auto twin = std::adjacent_find(by_bytes_.begin(), by_bytes_.end(),
                                       [&](TokenId a, TokenId b) { return order(a) == order(b); });
  if (twin != by_bytes_.end()) {
    throw Error(fmt::format("ids {} and {} are the same token", twin[0], twin[1]), where, kRemedy);
  }
}

// An added token spelled as a byte is has that byte's id in the file, and is the two bytes of its character.
void Tokenizer::fail_without_byte(char byte, const std::string& where) const {
  const std::string spelled = spell_bytes({&byte, 1});
  const auto code = static_cast<unsigned char>(byte);
  for (const AddedToken& token : spec_.added) {
    if (token.content != spelled) continue;
    throw Error(fmt::format("added token {} ({}) takes the place of byte {:#04x}'s token", token.id,
                            quote(token.content), code),
                where, "remove it from added_tokens, or give it an id of its own");
  }
  throw Error(fmt::format("the vocabulary has no token for byte {:#04x}", code), where, kRemedy);
}

void Tokenizer::index_bytes(const std::string& where) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::optional<TokenId> id = ordinary_id_of({&c, 1});
    if (!id) fail_without_byte(c, where);
    byte_ids_[byte] = *id;
  }
}

void Tokenizer::index_characters(const std::string& where) {
  decoded_ = spec_.tokens;
  std::vector<std::uint8_t> is_added(spec_.tokens.size(), 0);
  for (const AddedToken& token : spec_.added) is_added[token.id] = 1;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string spelled = fmt::format("<0x{:02X}>", byte);
    const std::optional<TokenId> id = ordinary_id_of(spelled);
    if (!id) throw Error(fmt::format("the vocabulary has no token {}", spelled), where, kRemedy);
    byte_ids_[byte] = *id;
    decoded_[*id].assign(1, static_cast<char>(byte));
    ordinary_[*id] = 0;  // text that spells it out is text
  }
  const std::string& mark = spec_.characters->mark;
  if (spec_.characters->metaspace && (mark.empty() || mark.size() > kLongestMark)) {
    throw Error(
        fmt::format("the mark of a space is {} bytes long, expected 1 to {}", mark.size(), kLongestMark),
        where, kRemedy);
  }
  for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
    const std::string& token = spec_.tokens[id];
    if (!ordinary_[id]) continue;
    if (!is_utf8(token)) throw Error(fmt::format("token {} is not UTF-8", id), where, kRemedy);
    if (!is_added[id]) decoded_[id] = with_spaces(token);
    const Utf8Char c = first_char(token);
    if (c.length != token.size()) continue;
    if (c.code >= character_ids_.size()) character_ids_.resize(c.code + 1, TokenTrie::kNone);
    character_ids_[c.code] = static_cast<TokenId>(id);
  }
}

// The text with spaces for marks.
std::string Tokenizer::with_spaces(const std::string& text) const {
  if (!spec_.characters || spec_.characters->mark.empty()) return text;
  std::string spaced;
  replace_text(text, spec_.characters->mark, " ", spaced);
  return spaced;
}

void Tokenizer::index_added_tokens(const std::string& where) {
  if (normalizer_.empty()) {
    matcher_ = AddedTokenMatcher(spec_.added);
    return;
  }
  if (decoded_.empty()) decoded_ = spec_.tokens;
  Normalizer::Buffers buffers;
  for (AddedToken token : spec_.added) {
    std::vector<AddedToken>& round = token.normalized ? normalized_added_ : raw_added_;
    if (token.normalized) {
      token.content = normalizer_.normalize(token.content, false, buffers);
      decoded_[token.id] = with_spaces(token.content);  // the text that it was found as
    }
    if (token.content.empty() || token.content.size() > kLongestAddedToken) {
      throw Error(fmt::format("added token {} is {} bytes long once normalized, expected 1 to {}", token.id,
                              token.content.size(), kLongestAddedToken),
                  where, kRemedy);
    }
    token.normalized = false;  // each matcher has one round
    round.push_back(std::move(token));
  }
  std::vector<std::string_view> contents;
  for (const AddedToken& token : normalized_added_) contents.push_back(token.content);
  std::sort(contents.begin(), contents.end());
  const auto twin = std::adjacent_find(contents.begin(), contents.end());
  if (twin != contents.end()) {
    throw Error(fmt::format("two added tokens are {} once normalized", quote(*twin)), where, kRemedy);
  }
  matcher_ = AddedTokenMatcher(raw_added_);
  normalized_matcher_ = AddedTokenMatcher(normalized_added_);
}

// True if the mark is one character and has a token, so that every token is spelled with all of it.
bool Tokenizer::has_token_of_mark() const {
  const std::string& mark = spec_.characters->mark;
  return first_char(mark).length == mark.size() && ordinary_id_of(mark);
}

// True if some merge joins a token that does not end with the mark to one that starts with it.
bool Tokenizer::merges_across_marks() const {
  const std::string& mark = spec_.characters->mark;
  return std::any_of(spec_.merges.begin(), spec_.merges.end(), [&](const MergePair& pair) {
    return spec_.tokens[pair.right].starts_with(mark) && !spec_.tokens[pair.left].ends_with(mark);
  });
}

void Tokenizer::make_cut_rules() {
  cut_rules_.patterns = spec_.patterns;
  if (!spec_.characters) {
    if (spec_.use_regex) cut_rules_.patterns.push_back(Pattern::gpt2);
    return;
  }
  cut_rules_.mark = spec_.characters->mark;
  if (cut_rules_.mark.empty()) return;
  if (spec_.characters->metaspace && spec_.characters->metaspace->split) {
    cut_rules_.mark_cuts = MarkCuts::each;
  } else if (!spec_.ignore_merges && spec_.patterns.empty() && has_token_of_mark() &&
             !merges_across_marks()) {
    // No merge crosses such a place, so a cut there changes nothing but the time it takes.
    cut_rules_.mark_cuts = MarkCuts::run;
  }
}

// True if the normalized text of a part cut before a space is the part of the whole's: the steps are NFC,
// Prepend and then the Replace of spaces by marks. A character model must make marks, since only they cut it.
bool Tokenizer::normalizes_in_parts() const {
  bool has_marks = false;
  for (const NormalizerStep& step : spec_.normalizer) {
    if (step.kind == NormalizerStep::Kind::nfc && has_marks) return false;
    if (step.kind != NormalizerStep::Kind::replace) continue;
    if (!spec_.characters || step.from != " " || step.to != spec_.characters->mark) return false;
    has_marks = true;
  }
  return !spec_.characters || has_marks || spec_.characters->metaspace;
}

// True if finding an added token, or rejecting it, could depend on the text across a space. Special tokens in
// the text are text, but the search skips their contents.
bool Tokenizer::added_tokens_reach_across() const {
  const auto is_prepend = [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::prepend;
  };
  const bool prepends = std::any_of(spec_.normalizer.begin(), spec_.normalizer.end(), is_prepend);
  const auto reaches = [&](const AddedToken& token, bool normalized) {
    const std::string content = normalized ? with_spaces(token.content) : token.content;
    const std::size_t word = content.find_first_not_of(' ');
    const bool holds_space = word != std::string::npos && content.find(' ', word) != std::string::npos;
    if (holds_space) return true;
    if (token.special) return false;
    // The text after a token gets something prepended, unless the token was found in normalized text.
    return token.rstrip || (token.single_word && (normalized || word != 0)) || (prepends && !normalized);
  };
  const auto raw = [&](const AddedToken& token) { return reaches(token, false); };
  const auto normalized = [&](const AddedToken& token) { return reaches(token, true); };
  const std::vector<AddedToken>& first = normalizer_.empty() ? spec_.added : raw_added_;
  return std::any_of(first.begin(), first.end(), raw) ||
         std::any_of(normalized_added_.begin(), normalized_added_.end(), normalized);
}

bool Tokenizer::cuts_at_spaces() const {
  if (!normalizes_in_parts() || added_tokens_reach_across()) return false;
  if (spec_.characters) return cut_rules_.mark_cuts != MarkCuts::none;
  return cut_rules_.patterns_cut_at_spaces();
}

void Tokenizer::index_merges(const std::string& where) {
  merges_ = MergeTable(spec_.merges.size());
  std::uint32_t rank = 0;
  for (const MergePair& pair : spec_.merges) {
    const auto fail = [&](const char* fact) {
      throw Error(fmt::format("merge {} (of ids {} and {}) {}", rank, pair.left, pair.right, fact), where,
                  kRemedy);
    };
    for (const TokenId id : {pair.left, pair.right}) {
      if (id >= spec_.tokens.size() || spec_.tokens[id].empty()) fail("refers to an id that has no token");
    }
    const std::optional<TokenId> result = ordinary_id_of(spec_.tokens[pair.left] + spec_.tokens[pair.right]);
    // A merge must not make a special token, or plain text could produce it.
    if (!result) fail("makes a token that the vocabulary lacks or keeps for special use");
    if (!merges_.insert(pair, {rank, *result})) fail("appears twice");
    ++rank;
  }
}

std::optional<TokenId> Tokenizer::id_of(std::string_view bytes) const {
  const auto id = std::lower_bound(by_bytes_.begin(), by_bytes_.end(), bytes,
                                   [&](TokenId a, std::string_view b) { return spec_.tokens[a] < b; });
  if (id == by_bytes_.end() || spec_.tokens[*id] != bytes) return std::nullopt;
  return *id;
}

std::optional<TokenId> Tokenizer::ordinary_id_of(std::string_view bytes) const {
  const std::optional<TokenId> id = id_of(bytes);  // among equal tokens, ordinary ones come first
  return id && ordinary_[*id] ? id : std::nullopt;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> ids;
  encode(text, ids, special);
  return ids;
}

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids, SpecialTokens special,
                       bool continues) const {
  const ScratchPool<Scratch>::Lease lease(*pool_);
  Scratch& scratch = *lease;
  scratch.segments.clear();
  matcher_.split(text, special, scratch.segments);
  for (const Segment& segment : scratch.segments) {
    const bool first = segment.text.data() == text.data();
    if (segment.token) {
      ids.push_back(segment.token->id);
    } else {
      encode_segment(segment.text, {first && !continues, first && continues}, special, scratch, ids);
    }
  }
}

void Tokenizer::encode_segment(std::string_view text, Place place, SpecialTokens special, Scratch& scratch,
                               std::vector<TokenId>& ids) const {
  if (normalizer_.empty()) return encode_prefixed(text, place, scratch, ids);
  text = normalizer_.normalize(text, place.continues, scratch.normalized);
  if (normalized_added_.empty()) return encode_prefixed(text, place, scratch, ids);
  scratch.normalized_segments.clear();
  normalized_matcher_.split(text, special, scratch.normalized_segments);
  for (const Segment& segment : scratch.normalized_segments) {
    const bool first = segment.text.data() == text.data();
    if (segment.token) {
      ids.push_back(segment.token->id);
    } else {
      encode_prefixed(segment.text, {first && place.starts, first && place.continues}, scratch, ids);
    }
  }
}

// Puts a space or a mark in front, if the rules say so.
void Tokenizer::encode_prefixed(std::string_view text, Place place, Scratch& scratch,
                                std::vector<TokenId>& ids) const {
  if (text.empty()) return;
  if (spec_.characters && spec_.characters->metaspace) {
    return encode_text(with_marks(text, place, scratch.prefixed), scratch, ids);
  }
  if (spec_.add_prefix_space && !place.continues && text.front() != ' ') {
    text = scratch.prefixed.assign(1, ' ').append(text);
  }
  encode_text(text, scratch, ids);
}

std::string_view Tokenizer::with_marks(std::string_view text, Place place, std::string& buffer) const {
  const std::string& mark = spec_.characters->mark;
  const Metaspace::Prepend prepend = spec_.characters->metaspace->prepend;
  const bool wanted =
      prepend == Metaspace::Prepend::always || (prepend == Metaspace::Prepend::first && place.starts);
  buffer.clear();
  if (wanted && !place.continues && text.front() != ' ' && !text.starts_with(mark)) buffer = mark;
  replace_text(text, " ", mark, buffer);
  return buffer;
}

void Tokenizer::encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
  PieceCursor cursor(cut_rules_, text);
  std::uint64_t key[2];
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = cursor.end_of_piece(begin);
    const std::string_view piece = text.substr(begin, end - begin);
    if (piece.size() > PieceCache::kLongestPiece) {
      const std::span<const TokenId> merged = merge_piece(piece, scratch);
      ids.insert(ids.end(), merged.begin(), merged.end());
      continue;
    }
    PieceCache::make_key(piece, text.size() - begin >= sizeof key, key);
    PieceCache::Entry& entry = scratch.cache.entry(key);
    if (entry.key[0] != key[0] || entry.key[1] != key[1]) {
      const std::span<const TokenId> merged = merge_piece(piece, scratch);
      if (merged.size() > PieceCache::kMostIds) {
        ids.insert(ids.end(), merged.begin(), merged.end());
        continue;
      }
      std::copy(key, key + 2, entry.key);
      std::copy(merged.begin(), merged.end(), entry.ids);
      std::fill(entry.ids + merged.size(), entry.ids + PieceCache::kMostIds, PieceCache::kNoId);
    }
    for (std::size_t i = 0; i < PieceCache::kMostIds && entry.ids[i] != PieceCache::kNoId; ++i) {
      ids.push_back(entry.ids[i]);
    }
  }
}

std::span<const TokenId> Tokenizer::merge_piece(std::string_view piece, Scratch& scratch) const {
  scratch.piece.resize(piece.size());
  if (spec_.ignore_merges) {
    if (const std::optional<TokenId> id = ordinary_id_of(piece)) {
      scratch.piece[0] = *id;
      return std::span(scratch.piece).first(1);
    }
  }
  const std::size_t count = spell_piece(piece, scratch.piece);
  return std::span(scratch.piece).first(scratch.merger.merge(merges_, std::span(scratch.piece).first(count)));
}

// Writes the ids of the piece's bytes or characters, at most one per byte. Returns their number.
std::size_t Tokenizer::spell_piece(std::string_view piece, std::span<TokenId> ids) const {
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!spec_.characters) {
    std::transform(piece.begin(), piece.end(), ids.begin(), byte_id);
    return piece.size();
  }
  const auto* p = reinterpret_cast<const unsigned char*>(piece.data());
  const auto* end = p + piece.size();
  std::size_t count = 0;
  while (p < end) {
    const Utf8Char c = decode_utf8(p, end);
    const TokenId id = c.code < character_ids_.size() ? character_ids_[c.code] : TokenTrie::kNone;
    if (id != TokenTrie::kNone) {
      ids[count++] = id;
    } else {
      for (unsigned i = 0; i < c.length; ++i) ids[count++] = byte_ids_[p[i]];
    }
    p += c.length;
  }
  return count;
}

std::string_view Tokenizer::bytes_of(TokenId id) const {
  if (id >= spec_.tokens.size()) {
    throw Error(fmt::format("id {} is beyond the vocabulary of {} tokens", id, spec_.tokens.size()),
                "tokenizer", "decode with the tokenizer that made these ids");
  }
  return decoded_.empty() ? spec_.tokens[id] : decoded_[id];
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::size_t size = 0;
  for (const TokenId id : ids) size += bytes_of(id).size();
  std::string bytes;
  bytes.reserve(size);
  for (const TokenId id : ids) bytes += bytes_of(id);
  if (!spec_.characters || ids.empty()) return bytes;
  using FirstSpace = CharacterSpec::FirstSpace;
  const CharacterSpec& rules = *spec_.characters;
  if (rules.first_space == FirstSpace::strip && bytes.starts_with(' ')) bytes.erase(0, 1);
  const std::string &spelled = spec_.tokens[ids[0]], &decoded = decoded_[ids[0]];
  const bool has_marks = ordinary_[ids[0]] && spelled != decoded;
  if (rules.first_space == FirstSpace::strip_marks && has_marks) {
    std::string first;
    replace_text(spelled, rules.mark, "", first);
    bytes.replace(0, decoded.size(), first);
  }
  return bytes;
}

}  // namespace warpwright::text
