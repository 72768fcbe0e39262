#include "roofline/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "roofline/shares.hpp"

namespace warpwright::roofline {

std::string_view name_of(Schedule schedule) {
  static constexpr std::string_view names[] = {"block", "persistent", "stream_k"};
  return names[static_cast<int>(schedule)];
}

Schedule schedule_named(std::string_view name) {
  for (const Schedule schedule : kSchedules) {
    if (name == name_of(schedule)) return schedule;
  }
  throw UsageError(fmt::format("there is no schedule '{}'", name), "--schedule",
                   "use block, persistent or stream_k");
}

StreamK::StreamK(const Work& work, std::int64_t slots, std::int64_t ctas) : work_(work), slots_(slots) {
  whole_tiles_ = roofline::whole_tiles(work.tiles, slots);
  cut_iterations_ = cut_tiles() * work.iterations;
  const std::int64_t most = ctas > 0 ? std::min(ctas, slots) : slots;
  ctas_ = cut_iterations_ > 0 ? sharers_of(cut_iterations_, work.iterations, most) : 0;
}

Range StreamK::range(std::int64_t cta) const {
  return {share_begin(cut_iterations_, ctas_, cta), share_begin(cut_iterations_, ctas_, cta + 1)};
}

std::int64_t StreamK::cta_of(std::int64_t iteration) const {
  return ((iteration + 1) * ctas_ - 1) / cut_iterations_;
}

std::int64_t StreamK::most_iterations() const {
  const std::int64_t cut = ctas_ > 0 ? ceil_div(cut_iterations_, ctas_) : 0;
  return waves_of_whole_tiles() * work_.iterations + cut;
}

std::int64_t StreamK::fewest_iterations() const {
  const std::int64_t whole = waves_of_whole_tiles() * work_.iterations;
  if (ctas_ == 0 || (ctas_ < slots_ && whole > 0)) return whole;
  return whole + cut_iterations_ / ctas_;
}

std::int64_t StreamK::contributors(std::int64_t cut_tile) const {
  const std::int64_t first = cut_tile * work_.iterations;
  return cta_of(first + work_.iterations - 1) - cta_of(first) + 1;
}

std::int64_t StreamK::most_contributors() const {
  std::int64_t most = 1;
  for (std::int64_t tile = 0; tile < cut_tiles() && work_.iterations > 0; ++tile) {
    most = std::max(most, contributors(tile));
  }
  return most;
}

std::int64_t StreamK::shared_tiles() const {
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < cut_tiles() && work_.iterations > 0; ++tile)
    count += contributors(tile) > 1;
  return count;
}

std::int64_t StreamK::partial_sums() const {
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < cut_tiles() && work_.iterations > 0; ++tile)
    count += contributors(tile) - 1;
  return count;
}

Split split(Schedule schedule, const Work& work, std::int64_t slots, std::int64_t ctas) {
  Split s;
  s.schedule = schedule;
  s.slots = slots;
  if (work.tiles == 0 || work.iterations == 0) return s;
  if (schedule == Schedule::stream_k) {
    const StreamK stream(work, slots, ctas);
    s.ctas = stream.whole_tiles() > 0 ? slots : stream.ctas();
    s.most_iterations = stream.most_iterations();
    s.fewest_iterations = stream.fewest_iterations();
    s.waves = ceil_div(s.most_iterations, work.iterations);
    s.shared_tiles = stream.shared_tiles();
    s.most_contributors = stream.most_contributors();
    s.partial_sums = stream.partial_sums();
  } else {
    s.waves = ceil_div(work.tiles, slots);
    s.ctas = schedule == Schedule::block ? work.tiles : std::min(work.tiles, slots);
    s.most_iterations = s.waves * work.iterations;
    s.fewest_iterations = work.tiles / slots * work.iterations;
  }
  s.utilization = static_cast<double>(work.tiles) * static_cast<double>(work.iterations) /
                  (static_cast<double>(slots) * static_cast<double>(s.most_iterations));
  return s;
}

}  // namespace warpwright::roofline
