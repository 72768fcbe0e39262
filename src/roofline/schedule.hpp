// Distributes a product's tiles over multiprocessors, in whole numbers. There are three schedules:
//   block       one CTA per tile; the device starts the next CTA when one ends
//   persistent  one CTA per slot, which visits the tiles slot, slot + slots, …
//   stream_k    whole tiles first, as persistent. The partly filled last wave and the full wave before it are
//               cut evenly over the slots, by K iterations (Osama et al., Stream-K, arXiv:2301.03598, the
//               hybrid of section 5.2). The CTA with a cut tile's last iterations owns the tile. It adds the
//               others' partial sums in a fixed order.
// A slot is a place for one worker: a CTA, or a cluster of CTAs on neighbouring tiles. A cluster counts as
// one. The kernels compute Stream-K's shares with the same functions (roofline/shares.hpp).
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright::roofline {

enum class Schedule : std::uint8_t { block, persistent, stream_k };
inline constexpr Schedule kSchedules[] = {Schedule::block, Schedule::persistent, Schedule::stream_k};
std::string_view name_of(Schedule schedule);
Schedule schedule_named(std::string_view name);  // throws UsageError for an unknown name

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

struct Work {
  std::int64_t tiles = 0;
  std::int64_t iterations = 0;  // K iterations of a tile
};

// K iterations [first, last), numbered through all cut tiles, tile by tile.
struct Range {
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
};

// Stream-K's split of some work over slots. Only some of the slots may get a share of the cut tiles.
class StreamK {
 public:
  // slots ≥ 1. At most `ctas` (1 to slots) CTAs share the cut tiles; 0 means as many as get a share of the
  // least size.
  StreamK(const Work& work, std::int64_t slots, std::int64_t ctas = 0);

  std::int64_t whole_tiles() const { return whole_tiles_; }  // a multiple of slots
  std::int64_t cut_tiles() const { return work_.tiles - whole_tiles_; }
  std::int64_t ctas() const { return ctas_; }  // CTAs that share the cut tiles
  Range range(std::int64_t cta) const;         // the share of a CTA; 0 ≤ cta < ctas()
  std::int64_t cta_of(std::int64_t iteration) const;

  // K iterations of the busiest CTA, and of the idlest CTA that has any.
  std::int64_t most_iterations() const;
  std::int64_t fewest_iterations() const;
  // CTAs that work on this cut tile.
  std::int64_t contributors(std::int64_t cut_tile) const;
  std::int64_t most_contributors() const;  // 1 if no tile is shared
  std::int64_t shared_tiles() const;       // cut tiles with more than one contributor
  // Partial tiles that pass through memory.
  std::int64_t partial_sums() const;

 private:
  std::int64_t waves_of_whole_tiles() const { return whole_tiles_ / slots_; }

  Work work_;
  std::int64_t slots_, ctas_, whole_tiles_;
  std::int64_t cut_iterations_;  // of all cut tiles together
};

// The result of a schedule: counts only, no time.
struct Split {
  Schedule schedule = Schedule::block;
  std::int64_t slots = 0;
  std::int64_t ctas = 0;   // launched
  std::int64_t waves = 0;  // rounds of whole tiles; for stream_k the busiest CTA's work in tiles, rounded up
  std::int64_t most_iterations = 0;    // of the busiest slot, over all its tiles
  std::int64_t fewest_iterations = 0;  // of the idlest slot
  std::int64_t shared_tiles = 0, most_contributors = 1, partial_sums = 0;
  double utilization = 0;  // K iterations done over the K iterations that all slots could do in that time
};
// ctas: only for stream_k, as in StreamK's constructor.
Split split(Schedule schedule, const Work& work, std::int64_t slots, std::int64_t ctas = 0);

}  // namespace warpwright::roofline
