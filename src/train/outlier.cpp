#include "train/outlier.hpp"

#include <cmath>

namespace warpwright {

double OutlierDetector::z_score(double value) const {
  if (values_.size() < window_) return 0;
  const double n = static_cast<double>(values_.size());
  double mean = 0, square = 0;
  for (const double v : values_) mean += v / n;
  for (const double v : values_) square += (v - mean) * (v - mean) / n;
  return square > 0 ? (value - mean) / std::sqrt(square) : 0;
}

void OutlierDetector::add(double value) {
  values_.push_back(value);
  if (values_.size() > window_) values_.pop_front();
}

void OutlierDetector::restore(const std::vector<double>& values) {
  values_.clear();
  for (const double v : values) add(v);
}

}  // namespace warpwright
