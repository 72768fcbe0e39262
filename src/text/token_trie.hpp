// A set of strings in which to find the longest one that a text starts with.
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

// A set of strings with an id each, searched byte by byte. Nodes are stored in breadth-first order, so a
// node's children are adjacent, sorted by their byte. A node takes 9 bytes.
class TokenTrie {
 public:
  static constexpr TokenId kNone = std::numeric_limits<TokenId>::max();

  TokenTrie() = default;
  // The last of equal tokens counts. An empty token matches nothing.
  explicit TokenTrie(std::vector<std::pair<std::string_view, TokenId>> entries);

  struct Match {
    std::size_t length = 0;
    TokenId id = kNone;
  };
  // True if an entry starts with this byte.
  bool may_start(char byte) const { return from_root_[static_cast<unsigned char>(byte)] != 0; }

  // The longest entry that the text starts with. The text must not be empty.
  Match longest(std::string_view text) const;

 private:
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;  // 0 if there is none

  // The first child of each node. Its last child comes just before the next node's first child.
  std::vector<std::uint32_t> first_child_;
  std::vector<unsigned char> label_;  // the byte that leads to each node
  std::vector<TokenId> id_;
  std::array<std::uint32_t, 256> from_root_{};  // the root's child by byte
};

}  // namespace warpwright::text
