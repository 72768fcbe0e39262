// A small cache from short pieces of text to their ids, for all tokenizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"

namespace warpwright::text {

// The ids of short pieces encoded before. Direct-mapped; an entry takes half a cache line.
class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 15;
  static constexpr std::size_t kMostIds = 4;
  static constexpr TokenId kNoId = std::numeric_limits<TokenId>::max();

  struct Entry {
    std::uint64_t key[2] = {0, 0};  // the bytes, then zeros, then the length in the last byte; 0: empty
    TokenId ids[kMostIds] = {};     // kNoId after the last
  };

  PieceCache() : entries_(std::size_t{1} << kBits) {}

  static_assert(std::endian::native == std::endian::little);

  // The key of a piece of at most kLongestPiece bytes. `readable` says that 16 bytes can be read from its
  // start, which makes the key with two loads.
  static void make_key(std::string_view piece, bool readable, std::uint64_t (&key)[2]) {
    if (readable) {
      const unsigned bits = static_cast<unsigned>(piece.size()) * 8;
      std::memcpy(key, piece.data(), sizeof key);
      key[0] &= bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
      key[1] &= bits <= 64 ? 0 : (std::uint64_t{1} << (bits - 64)) - 1;
    } else {
      key[0] = key[1] = 0;
      std::memcpy(key, piece.data(), piece.size());
    }
    key[1] |= static_cast<std::uint64_t>(piece.size()) << 56;
  }

  Entry& entry(const std::uint64_t (&key)[2]) {
    std::uint64_t hash = (key[0] ^ (key[1] * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u;
    hash ^= hash >> 32;
    return entries_[(hash * 0xd6e8feb86659fd93u) >> (64 - kBits)];
  }

 private:
  static constexpr unsigned kBits = 15;
  std::vector<Entry> entries_;
};

}  // namespace warpwright::text
