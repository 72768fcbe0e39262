// A set of strings, searched for the longest one that a text starts with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.hpp"

namespace warpwright::text {

// A set of strings with an id each, found byte by byte. Nodes are in breadth-first order, so that the
// children of one stand together, sorted by their byte: 9 bytes a node.
class TokenTrie {
 public:
  static constexpr TokenId kNone = std::numeric_limits<TokenId>::max();

  TokenTrie() = default;
  // Of equal tokens the last counts; an empty one matches nothing.
  explicit TokenTrie(std::vector<std::pair<std::string_view, TokenId>> entries);

  struct Match {
    std::size_t length = 0;
    TokenId id = kNone;
  };
  // True if an entry starts with this byte.
  bool may_start(char byte) const { return from_root_[static_cast<unsigned char>(byte)] != 0; }

  // The longest entry that the text, which is not empty, starts with.
  Match longest(std::string_view text) const;

 private:
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;  // 0 where there is none

  std::vector<std::uint32_t>
      first_child_;                   // of each node; its last child stands before the next node's first
  std::vector<unsigned char> label_;  // the byte that leads to each node
  std::vector<TokenId> id_;
  std::array<std::uint32_t, 256> from_root_{};  // the root's child by byte
};

}  // namespace warpwright::text
