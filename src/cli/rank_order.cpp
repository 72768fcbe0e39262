#include "cli/rank_order.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "comm/launch.hpp"
#include "core/error.hpp"

namespace warpwright::cli {

int launched_rank() {
  try {
    return read_launch().rank;
  } catch (const Error&) {
    return 0;  // its variables do not fit together, which every process may say
  }
}

void let_rank_0_report(int rank) {
  constexpr std::chrono::seconds kAfterRank0(3);
  static bool waited = false;
  if (rank != 0 && !std::exchange(waited, true)) std::this_thread::sleep_for(kAfterRank0);
}

}  // namespace warpwright::cli
