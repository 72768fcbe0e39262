#include "ops/matmul/workers.hpp"

#include <algorithm>
#include <limits>

#include "ops/cuda/flag_sets.hpp"

namespace warpwright::ops::matmul {

std::vector<Workers> workers_of(const roofline::Machine& machine, const roofline::Product& product,
                                const roofline::Options& options, Schedule schedule, int groups) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max(), kMostTiles = std::int64_t{1} << 30;
  std::vector<Workers> list;
  const std::int64_t slots = roofline::slots_of(machine, options);
  const roofline::Work work = roofline::tiles_of(machine, product, options).work();
  if (work.tiles > kMostTiles || 2 * slots * work.iterations > kMost) return list;
  const auto add = [&](std::int64_t workers) {
    const auto split = roofline::split(schedule, work, slots, workers);
    Workers w{static_cast<int>(workers), roofline::predict(machine, product, options, split).seconds};
    if (schedule == Schedule::stream_k) {
      const auto& tile = options.tiling.block;
      w.partial_bytes = static_cast<std::size_t>(workers * tile.m * tile.n) * 4;
    }
    list.push_back(w);
  };
  if (schedule == Schedule::block) {
    add(work.tiles);
  } else if (schedule == Schedule::persistent) {
    add(std::min(work.tiles, slots));
  } else if (slots * groups <= gpu::kFlagsOfSet) {
    add(slots);
    // Fewer workers, the same number for every tile: no worker has parts of two tiles, and an owner adds
    // fewer partial sums.
    for (std::int64_t each = slots / work.tiles; each > 1; each /= 2) {
      if (each * work.tiles != slots) add(each * work.tiles);
    }
  }
  return list;
}

}  // namespace warpwright::ops::matmul
