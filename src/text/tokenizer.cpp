#include "text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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

constexpr const char* kRemedy = "use the files of a byte-level BPE tokenizer such as GPT-2's";
constexpr std::size_t kLargestVocabulary = std::size_t{1} << 31;
constexpr std::size_t kLongestAddedToken = 512;  // bytes; limits the cost of one position in a text

}  // namespace

struct Tokenizer::Scratch {
  PieceCache cache;
  WordMerger merger;
  std::vector<TokenId> piece;
  std::vector<Segment> segments;
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
  check_added_tokens(where);
  index_tokens(where);
  index_merges(where);
  matcher_ = AddedTokenMatcher(spec_.added);
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

void Tokenizer::check_added_tokens(const std::string& where) {
  ordinary_.assign(spec_.tokens.size(), 1);
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
    // An added token's content is stored verbatim. So the merges can produce it only if the byte alphabet
    // spells it in the same way.
    ordinary_[token.id] = !token.special && spell_bytes(token.content) == token.content;
  }
}

void Tokenizer::index_tokens(const std::string& where) {
  by_bytes_.resize(spec_.tokens.size());
  std::iota(by_bytes_.begin(), by_bytes_.end(), TokenId{0});
  const auto order = [&](TokenId id) {
    return std::pair(std::string_view(spec_.tokens[id]), !ordinary_[id]);
  };
  std::sort(by_bytes_.begin(), by_bytes_.end(), [&](TokenId a, TokenId b) { return order(a) < order(b); });
  const auto twin = std::adjacent_find(by_bytes_.begin(), by_bytes_.end(),
                                       [&](TokenId a, TokenId b) { return order(a) == order(b); });
  if (twin != by_bytes_.end()) {
    throw Error(fmt::format("ids {} and {} are the same token", twin[0], twin[1]), where, kRemedy);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::optional<TokenId> id = ordinary_id_of({&c, 1});
    if (!id) throw Error(fmt::format("the vocabulary has no token for byte {:#04x}", byte), where, kRemedy);
    byte_ids_[byte] = *id;
  }
}

void Tokenizer::index_merges(const std::string& where) {
  merges_ = MergeTable(spec_.merges.size());
  std::uint32_t rank = 0;
  for (const MergePair& pair : spec_.merges) {
    const auto fail = [&](const char* fact) {
      throw Error(fmt::format("merge {} (of ids {} and {}) {}", rank, pair.left, pair.right, fact), where,
                  kRemedy);
    };
    if (std::max(pair.left, pair.right) >= spec_.tokens.size()) fail("refers to an id beyond the vocabulary");
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

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids, SpecialTokens special) const {
  const ScratchPool<Scratch>::Lease lease(*pool_);
  Scratch& scratch = *lease;
  scratch.segments.clear();
  matcher_.split(text, special, scratch.segments);
  for (const Segment& segment : scratch.segments) {
    if (segment.token) {
      ids.push_back(segment.token->id);
    } else if (spec_.add_prefix_space && segment.text.front() != ' ') {
      scratch.prefixed.assign(1, ' ').append(segment.text);
      encode_text(scratch.prefixed, scratch, ids);
    } else {
      encode_text(segment.text, scratch, ids);
    }
  }
}

void Tokenizer::encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
  std::uint64_t key[2];
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = spec_.use_regex ? pretoken_end(text, begin) : text.size();
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
  std::transform(piece.begin(), piece.end(), scratch.piece.begin(),
                 [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; });
  return std::span(scratch.piece).first(scratch.merger.merge(merges_, scratch.piece));
}

std::string_view Tokenizer::bytes_of(TokenId id) const {
  if (id >= spec_.tokens.size()) {
    throw Error(fmt::format("id {} is beyond the vocabulary of {} tokens", id, spec_.tokens.size()),
                "tokenizer", "decode with the tokenizer that made these ids");
  }
  return spec_.tokens[id];
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::size_t size = 0;
  for (const TokenId id : ids) size += bytes_of(id).size();
  std::string bytes;
  bytes.reserve(size);
  for (const TokenId id : ids) bytes += spec_.tokens[id];
  return bytes;
}

}  // namespace warpwright::text
