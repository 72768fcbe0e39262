// Distributes a product's tiles over multiprocessors, in whole numbers: the three schedules of document 003.
//   block       a CTA a tile; the device starts the next where one ends
//   persistent  a CTA a slot, walking over tiles slot, slot + slots, …
//   stream_k    whole tiles first, as persistent; what would be a partly filled last wave, with the full one
//               before it, is cut evenly over the slots by K iterations (Osama et al., Stream-K,
//               arXiv:2301.03598, the hybrid of section 5.2). A cut tile has one owner, the CTA with its last
//               iterations, which adds the others' partial sums in a fixed order.
// A slot is a place for a CTA, or for a cluster of them that work on neighbouring tiles, which then count as
// one. Stream-K's shares are those of the kernels (roofline/shares.hpp).
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright::roofline {

enum class Schedule : std::uint8_t { block, persistent, stream_k };
inline constexpr Schedule kSchedules[] = {Schedule::block, Schedule::persistent, Schedule::stream_k};
std::string_view name_of(Schedule schedule);
Schedule schedule_named(std::string_view name);  // UsageError for an unknown one

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

struct Work {
  std::int64_t tiles = 0;
  std::int64_t iterations = 0;  // over K, of a tile
};

// K iterations [first, last), counted through all tiles that are cut, tile by tile.
struct Range {
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
};

// The stream-K split of some work over slots, of which fewer than all may have shares of the cut tiles.
class StreamK {
 public:
  // slots ≥ 1. `ctas` (1 to slots) may share the cut tiles; 0: as many as have shares of that size.
  StreamK(const Work& work, std::int64_t slots, std::int64_t ctas = 0);

  std::int64_t whole_tiles() const { return whole_tiles_; }  // a multiple of slots
  std::int64_t cut_tiles() const { return work_.tiles - whole_tiles_; }
  std::int64_t ctas() const { return ctas_; }  // that share the cut tiles
  Range range(std::int64_t cta) const;         // of the cut tiles' iterations; 0 ≤ cta < ctas()
  std::int64_t cta_of(std::int64_t iteration) const;

  // K iterations of the CTA with the most, and with the fewest among those that have any.
  std::int64_t most_iterations() const;
  std::int64_t fewest_iterations() const;
  // CTAs that work on one cut tile.
  std::int64_t contributors(std::int64_t cut_tile) const;
  std::int64_t most_contributors() const;  // 1 where no tile is shared
  std::int64_t shared_tiles() const;       // with more than one contributor
  // Partial sums that travel through memory: one tile's worth each.
  std::int64_t partial_sums() const;

 private:
  std::int64_t waves_of_whole_tiles() const { return whole_tiles_ / slots_; }

  Work work_;
  std::int64_t slots_, ctas_, whole_tiles_;
  std::int64_t cut_iterations_;  // of all cut tiles together
};

// The result of scheduling the work: counts alone, no time.
struct Split {
  Schedule schedule = Schedule::block;
  std::int64_t slots = 0;
  std::int64_t ctas = 0;   // launched
  std::int64_t waves = 0;  // rounds of whole tiles; of stream_k: tiles' worth of the busiest CTA, rounded up
  std::int64_t most_iterations = 0;    // of the busiest slot, over all its tiles
  std::int64_t fewest_iterations = 0;  // of the idlest slot
  std::int64_t shared_tiles = 0, most_contributors = 1, partial_sums = 0;
  double utilization = 0;  // K iterations done over those that all slots could do meanwhile
};
// ctas: for stream_k, as above.
Split split(Schedule schedule, const Work& work, std::int64_t slots, std::int64_t ctas = 0);

}  // namespace warpwright::roofline
