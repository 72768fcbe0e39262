// Reads and writes elements of any floating dtype as fp64. The references use it: slow and obviously right.
#pragma once

#include "core/tensor.hpp"

namespace warpwright::ops {

double load_element(const Tensor& tensor, std::int64_t offset);  // offset: in elements from data
void store_element(const Tensor& tensor, std::int64_t offset, double value);

// A contiguous tensor as an array of doubles.
class Elements {
 public:
  explicit Elements(const Tensor& tensor) : tensor_(tensor) {}
  double operator[](std::int64_t i) const { return load_element(tensor_, i); }
  void set(std::int64_t i, double value) const { store_element(tensor_, i, value); }
  void add(std::int64_t i, double value) const { set(i, (*this)[i] + value); }
  explicit operator bool() const { return static_cast<bool>(tensor_); }

 private:
  Tensor tensor_;
};

}  // namespace warpwright::ops
