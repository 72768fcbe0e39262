#include "train/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace warpwright {

Stragglers::Stragglers(std::vector<std::string> hosts) : hosts_(std::move(hosts)), named_(hosts_.size()) {}

void Stragglers::Sums::add(std::int64_t step, double of_step, const std::vector<double>& of_ranks) {
  if (steps++ == 0) first = step;
  last = step;
  seconds += of_step;
  worked.resize(of_ranks.size());
  for (std::size_t r = 0; r < of_ranks.size(); ++r) worked[r] += of_ranks[r];
}

std::size_t Stragglers::Sums::slowest() const {
  return static_cast<std::size_t>(std::ranges::max_element(worked) - worked.begin());
}

std::string Stragglers::add(std::int64_t step, double seconds, const std::vector<double>& worked) {
  all_.add(step, seconds, worked);
  window_.add(step, seconds, worked);
  if (window_.steps < kWindow) return "";
  const Sums full = std::exchange(window_, {});
  std::string line = line_about(full);
  if (line.empty()) return "";
  const std::size_t slowest = full.slowest();
  return std::exchange(named_, slowest) == slowest ? "" : line;
}

std::string Stragglers::summary() const {
  return line_about(all_);
}

std::string Stragglers::line_about(const Sums& sums) const {
  constexpr int kFewestSteps = 10;
  constexpr double kClearly = 0.05;  // of a step
  if (sums.steps < kFewestSteps) return "";
  std::vector<double> sorted = sums.worked;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2], most = sorted.back();
  if (most - median <= kClearly * sums.seconds) return "";
  const std::size_t slowest = sums.slowest();
  return fmt::format(
      "rank {} on {} is the slowest: it works during {:.0f} % of a step, and the median rank during {:.0f} % "
      "(steps {} to {})",
      slowest, hosts_[slowest], 100 * most / sums.seconds, 100 * median / sums.seconds, sums.first,
      sums.last);
}

}  // namespace warpwright
