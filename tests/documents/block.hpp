// Emulates a thread block: warps between barriers in any order, and the banks of shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <vector>

namespace warpwright::documents {

// A warp's work before it may have to wait for the other warps.
struct Phase {
  std::function<void(int warp)> run;
  bool barrier_after = true;
};

// Runs the phases up to each barrier for one warp after the other, in the given order. A GPU may choose any
// order, so results that depend on it are a race.
inline void run_block(const std::vector<int>& order, const std::vector<Phase>& phases) {
  for (std::size_t first = 0; first < phases.size();) {
    std::size_t past = first + 1;
    while (past < phases.size() && !phases[past - 1].barrier_after) ++past;
    for (const int warp : order) {
      for (std::size_t i = first; i < past; ++i) phases[i].run(warp);
    }
    first = past;
  }
}

// The passes that shared memory needs for one access of some lanes to words of 4 bytes: the most different
// words in one of the 32 banks.
inline int bank_passes(const std::vector<int>& words) {
  std::array<std::set<int>, 32> banks;
  for (const int word : words) banks[static_cast<std::size_t>(word % 32)].insert(word);
  std::size_t most = 0;
  for (const auto& bank : banks) most = std::max(most, bank.size());
  return static_cast<int>(most);
}

}  // namespace warpwright::documents
