#include "text/token_trie.hpp"

#include <algorithm>
#include <deque>

namespace warpwright::text {
namespace {

using Entries = std::vector<std::pair<std::string_view, TokenId>>;

// Sorts the entries, drops empty ones, and keeps the last of equal ones.
Entries sorted(Entries entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::size_t count = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i + 1 == entries.size() || entries[i + 1].first != entries[i].first) entries[count++] = entries[i];
  }
  entries.resize(count);
  return entries;
}

}  // namespace

TokenTrie::TokenTrie(Entries unordered) {
  const Entries entries = sorted(std::move(unordered));
  struct Range {
    std::size_t begin, end, depth;  // the entries below a node, and the node's depth in bytes
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

}  // namespace warpwright::text
