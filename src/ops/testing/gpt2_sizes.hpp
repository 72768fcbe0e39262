// The sizes of GPT-2 124M's tensors with a padded vocabulary. Optimizers are timed on them.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

namespace warpwright::ops::testing {

inline std::vector<std::int64_t> gpt2_124m_sizes() {
  constexpr std::int64_t C = 768;
  std::vector<std::int64_t> sizes{50304 * C, 1024 * C};
  for (int layer = 0; layer < 12; ++layer) {
    const std::int64_t block[] = {C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C};
    sizes.insert(sizes.end(), std::begin(block), std::end(block));
  }
  sizes.insert(sizes.end(), {C, C});
  return sizes;
}

}  // namespace warpwright::ops::testing
