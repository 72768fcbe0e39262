// Tensor: a cheap, non-owning view of elements in memory (data, dtype, shape, strides, device).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.hpp"

namespace warpwright {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxRank = 5;

// Up to kMaxRank sizes, each ≥ 0. The constructor and append() throw Error for others; elements() does if the
// product overflows.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) { return sizes_[static_cast<std::size_t>(axis)]; }
  void append(std::int64_t size);
  std::int64_t elements() const;
  std::string to_string() const;  // "(256, 768)"
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  Shape shape;
  Shape strides;  // in elements

  Tensor() = default;
  // A contiguous (row-major) view.
  Tensor(void* data, DType dtype, const Shape& shape, Device device = {});

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool contiguous() const;

  // The elements as T. Throws if the tensor has another dtype. A null view gives a null pointer.
  template <class T>
  T* as() const {
    if (data && dtype != dtype_of<T>) throw_dtype_mismatch(dtype_of<T>);
    return static_cast<T*>(data);
  }

  Tensor view(const Shape& new_shape) const;                             // throws unless contiguous
  Tensor select(int axis, std::int64_t index) const;                     // removes the axis
  Tensor slice(int axis, std::int64_t first, std::int64_t count) const;  // [first, first + count)

 private:
  [[noreturn]] void throw_dtype_mismatch(DType wanted) const;
};

}  // namespace warpwright
