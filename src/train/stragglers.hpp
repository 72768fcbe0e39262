// Finds the rank for which the others wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warpwright {

class Stragglers {
 public:
  // hosts: of each rank.
  explicit Stragglers(std::vector<std::string> hosts);

  // Adds a step: its seconds, and those that each rank has worked and not waited for others. Returns a line
  // after every kWindow steps, if the median rank waits for one during more than 5 % of a step, and that one
  // is not the rank of the last line.
  std::string add(std::int64_t step, double seconds, const std::vector<double>& worked);
  // The same line about all steps.
  std::string summary() const;

  static constexpr int kWindow = 100;

 private:
  struct Sums {
    std::int64_t first = 0, last = 0;
    int steps = 0;
    double seconds = 0;
    std::vector<double> worked;

    void add(std::int64_t step, double of_step, const std::vector<double>& of_ranks);
    std::size_t slowest() const;
  };

  std::string line_about(const Sums& sums) const;

  const std::vector<std::string> hosts_;
  Sums window_, all_;
  std::size_t named_;  // the rank of the last line; the number of ranks: none
};

}  // namespace warpwright
