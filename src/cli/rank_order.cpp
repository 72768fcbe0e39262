#include "cli/rank_order.hpp"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace warpwright::cli {

// Open MPI's mpirun sets the first variable, and MPICH's and Slurm's PMI the second.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    const char* text = std::getenv(name);
    if (!text) continue;
    int rank = 0;
    std::from_chars(text, text + std::strlen(text), rank);
    return rank;
  }
  return 0;
}

void let_rank_0_report(int rank) {
  constexpr std::chrono::seconds kAfterRank0(3);
  static bool waited = false;
  if (rank != 0 && !std::exchange(waited, true)) std::this_thread::sleep_for(kAfterRank0);
}

}  // namespace warpwright::cli
