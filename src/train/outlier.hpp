// Is a value far off the recent ones? A z-score over a sliding window, for losses and gradient norms.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace warpwright {

class OutlierDetector {
 public:
  // threshold: in standard deviations of the window; 0 never finds an outlier.
  explicit OutlierDetector(double threshold, std::size_t window = 128)
      : threshold_(threshold), window_(window) {}

  // The distance of the value above the window's mean in standard deviations; 0 until the window is full.
  double z_score(double value) const;
  bool is_outlier(double value) const { return threshold_ > 0 && z_score(value) > threshold_; }
  // Takes the value into the window. Outliers and values that are not finite are the caller's to leave out.
  void add(double value);

  // The window, oldest first, for a checkpoint.
  std::vector<double> values() const { return {values_.begin(), values_.end()}; }
  void restore(const std::vector<double>& values);

 private:
  double threshold_;
  std::size_t window_;
  std::deque<double> values_;
};

}  // namespace warpwright
