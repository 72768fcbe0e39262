#include "core/tensor.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace warpwright {
namespace {

// This many elements of the widest dtype are fewer than 2^63 bytes.
constexpr std::int64_t kMostElements = std::int64_t{1} << 59;

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) append(size);
}

void Shape::append(std::int64_t size) {
  if (rank_ == kMaxRank) throw Error(fmt::format("more than {} axes", kMaxRank), "shape", "merge some axes");
  if (size < 0) throw Error(fmt::format("has the size {}", size), "shape", "use sizes of 0 or more");
  sizes_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) {
    if (__builtin_mul_overflow(product, (*this)[axis], &product) || product > kMostElements) {
      throw Error(fmt::format("{} has more than 2^59 elements", to_string()), "shape", "use smaller sizes");
    }
  }
  return product;
}

std::string Shape::to_string() const {
  std::string text = "(";
  for (int axis = 0; axis < rank_; ++axis) text += fmt::format("{}{}", axis ? ", " : "", (*this)[axis]);
  return text + ")";
}

Tensor::Tensor(void* data_, DType dtype_, const Shape& shape_, Device device_)
    : data(data_), dtype(dtype_), device(device_), shape(shape_), strides(shape_) {
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    static_cast<void>(__builtin_mul_overflow(step, shape[axis], &step));  // elements() refuses such a shape
  }
}

bool Tensor::contiguous() const {
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[axis] != step) return false;
    step *= shape[axis];
  }
  return true;
}

Tensor Tensor::view(const Shape& new_shape) const {
  if (!contiguous() || new_shape.elements() != elements()) {
    throw Error(fmt::format("cannot view {} as {}", shape.to_string(), new_shape.to_string()), "tensor",
                "view contiguous tensors with an equal number of elements");
  }
  return Tensor(data, dtype, new_shape, device);
}

Tensor Tensor::select(int axis, std::int64_t index) const {
  const Tensor one = slice(axis, index, 1);
  Tensor result = one;
  result.shape = {};
  result.strides = {};
  for (int a = 0; a < shape.rank(); ++a) {
    if (a == axis) continue;
    result.shape.append(one.shape[a]);
    result.strides.append(one.strides[a]);
  }
  return result;
}

Tensor Tensor::slice(int axis, std::int64_t first, std::int64_t count) const {
  if (axis < 0 || axis >= shape.rank() || first < 0 || count < 0 || count > shape[axis] - first) {
    throw Error(
        fmt::format("axis {} of {} has no {} elements from {} on", axis, shape.to_string(), count, first),
        "tensor", "slice within the shape");
  }
  Tensor result = *this;
  result.shape[axis] = count;
  if (data) {
    result.data =
        static_cast<std::byte*>(data) + first * strides[axis] * static_cast<std::int64_t>(size_of(dtype));
  }
  return result;
}

void Tensor::throw_dtype_mismatch(DType wanted) const {
  throw Error(fmt::format("holds {}, read as {}", name_of(dtype), name_of(wanted)),
              fmt::format("tensor {}", shape.to_string()), "convert it first");
}

}  // namespace warpwright
