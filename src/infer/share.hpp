// The share of one process in work that several do together. All of them make the same calls; each runs some
// of the parts, and process 0 gets all results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace warpwright {

struct Share {
  // Takes this process's bytes and returns those of all, in order.
  using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

  int rank = 0, ranks = 1;
  Exchange all_gather{};  // to every process, for small texts
  Exchange gather{};      // to process 0, and nothing elsewhere

  bool has(std::int64_t part) const { return part % ranks == rank; }
};

}  // namespace warpwright
