// Makes seeded arguments for an operation's test and bench, each in its own memory between guard bytes. For
// each case and dtype, the operation's cases.hpp has a function that builds the arguments from a Fixture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "ops/op.hpp"

namespace warpwright::ops::testing {

class Fixture {
 public:
  explicit Fixture(std::uint64_t seed) : seed_(seed) {}
  // A fixture whose floating tensors have shapes and addresses but no memory. It serves to compute a problem
  // without its data.
  static Fixture of_shapes() {
    Fixture fixture(0);
    fixture.with_data_ = false;
    return fixture;
  }
  // True if the tensors may be read and written.
  bool with_data() const { return with_data_; }

  // Normal deviates, mean + scale · z, rounded to the dtype. Only benches ask for more than 2^23 elements;
  // these repeat the first 2^23.
  Tensor random(DType dtype, const Shape& shape, double scale = 1, double mean = 0);
  // Integers in [low, high).
  Tensor random_integers(const Shape& shape, std::int32_t low, std::int32_t high);
  Tensor integers(const std::vector<std::int32_t>& values);
  // An output: every element is NaN. With Store::add it holds random numbers instead.
  Tensor output(DType dtype, const Shape& shape, Store store = Store::assign);

  struct Storage {
    std::vector<std::byte> bytes;  // guard, data, guard
    std::vector<std::byte> before;
    Tensor tensor;
  };
  std::vector<Storage>& storages() { return storages_; }
  // snapshot() remembers the current bytes, and restore() returns to them.
  void snapshot();
  void restore();

 private:
  Tensor make(DType dtype, const Shape& shape);

  std::uint64_t seed_;
  std::uint32_t drawn_ = 0;
  bool with_data_ = true;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
  std::vector<Storage> storages_;
};

// Calls f(offset in elements) for each element of a strided view in row-major order.
template <class F>
void for_each_element(const Tensor& t, F&& f) {
  const std::int64_t count = t.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, offset = 0;
    for (int axis = t.shape.rank() - 1; axis >= 0; --axis) {
      offset += rest % t.shape[axis] * t.strides[axis];
      rest /= t.shape[axis];
    }
    f(offset);
  }
}

// fp64 copies of a tensor's elements (in row-major order of its view).
std::vector<double> elements_of(const Tensor& tensor);

}  // namespace warpwright::ops::testing
