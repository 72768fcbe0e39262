#include "ops/testing/fixture.hpp"

#include <algorithm>

#include "ops/element.hpp"
#include "runtime/philox.hpp"

namespace warpwright::ops::testing {
namespace {

constexpr std::size_t kGuard = 256;  // at least half of it before the data, and a quarter after
constexpr std::size_t kDataAlignment = 64;
constexpr std::byte kPoison{0xff};  // NaN in every floating dtype
constexpr std::int64_t kMostDrawn = std::int64_t{1} << 23;

}  // namespace

Tensor Fixture::make(DType dtype, const Shape& shape) {
  const Tensor layout(nullptr, dtype, shape);
  if (!with_data_ && is_floating(dtype)) {
    const std::uintptr_t address = next_address_;
    next_address_ += (layout.bytes() / kGuard + 2) * kGuard;  // aligned like real data
    return Tensor(reinterpret_cast<void*>(address), dtype, shape);
  }
  Storage storage;
  storage.bytes.assign(layout.bytes() + 2 * kGuard, kPoison);
  std::byte* data = storage.bytes.data() + kGuard / 2;
  data += (kDataAlignment - reinterpret_cast<std::uintptr_t>(data) % kDataAlignment) % kDataAlignment;
  storage.tensor = Tensor(data, dtype, shape);
  storages_.push_back(std::move(storage));
  return storages_.back().tensor;
}

Tensor Fixture::random(DType dtype, const Shape& shape, double scale, double mean) {
  const Tensor tensor = make(dtype, shape);
  if (!with_data_) return tensor;
  const PhiloxStream stream(seed_, drawn_++);
  const std::int64_t drawn = std::min(tensor.elements(), kMostDrawn);
  if (drawn == 0) return tensor;
#pragma omp parallel for
  for (std::int64_t i = 0; i < drawn; ++i) {
    store_element(tensor, i, mean + scale * stream.normal(static_cast<std::uint64_t>(i)));
  }
  auto* bytes = static_cast<std::byte*>(tensor.data);
  const std::size_t all = tensor.bytes(), period = static_cast<std::size_t>(drawn) * size_of(dtype);
#pragma omp parallel for
  for (std::size_t at = period; at < all; at += period) {
    std::copy_n(bytes, std::min(period, all - at), bytes + at);
  }
  return tensor;
}

Tensor Fixture::random_integers(const Shape& shape, std::int32_t low, std::int32_t high) {
  const Tensor tensor = make(DType::i32, shape);
  const PhiloxStream stream(seed_, drawn_++);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double u = stream.uniform(static_cast<std::uint64_t>(i));
    tensor.as<std::int32_t>()[i] = low + static_cast<std::int32_t>(u * static_cast<double>(high - low));
  }
  return tensor;
}

Tensor Fixture::integers(const std::vector<std::int32_t>& values) {
  const Tensor tensor = make(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
  return tensor;
}

Tensor Fixture::output(DType dtype, const Shape& shape, Store store) {
  return store == Store::add ? random(dtype, shape) : make(dtype, shape);
}

void Fixture::snapshot() {
  for (Storage& storage : storages_) storage.before = storage.bytes;
}

void Fixture::restore() {
  for (Storage& storage : storages_)
    std::copy(storage.before.begin(), storage.before.end(), storage.bytes.begin());
}

std::vector<double> elements_of(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(tensor.elements()));
  for_each_element(tensor, [&](std::int64_t offset) { values.push_back(load_element(tensor, offset)); });
  return values;
}

}  // namespace warpwright::ops::testing
