#include "ops/testing/device_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace warpwright::ops::testing {
namespace {

constexpr std::size_t kGuard = kAlignment;
constexpr std::byte kPoison{0xff};

Tensor bytes_at(std::byte* data, std::size_t count, Device device) {
  return {data, DType::u8, {static_cast<std::int64_t>(count)}, device};
}

// The range from a view's first byte to the byte after its last.
std::pair<std::byte*, std::byte*> span_of(const Tensor& t) {
  auto* begin = static_cast<std::byte*>(t.data);
  if (t.elements() == 0) return {begin, begin};
  std::int64_t last = 0;
  for (int axis = 0; axis < t.shape.rank(); ++axis) last += (t.shape[axis] - 1) * t.strides[axis];
  return {begin, begin + static_cast<std::size_t>(last + 1) * size_of(t.dtype)};
}

}  // namespace

DeviceCopy::DeviceCopy(const std::vector<TensorUse>& uses, Device device, const Stream& stream)
    : device_(device) {
  std::vector<std::pair<std::byte*, std::byte*>> spans;
  for (const TensorUse& use : uses) spans.push_back(span_of(use.tensor));
  std::sort(spans.begin(), spans.end());
  for (const auto& [begin, end] : spans) {
    if (!regions_.empty() && begin < regions_.back().end) {
      regions_.back().end = std::max(regions_.back().end, end);
    } else {
      regions_.push_back({begin, end, {}});
    }
  }
  for (Region& region : regions_) {
    const auto bytes = static_cast<std::size_t>(region.end - region.begin);
    // Views keep the alignment that they have on the host, modulo 16 bytes.
    const std::size_t skew = reinterpret_cast<std::uintptr_t>(region.begin) % 16;
    std::vector<std::byte> host(bytes + 2 * kGuard + skew, kPoison);
    std::copy(region.begin, region.end, host.begin() + static_cast<std::ptrdiff_t>(kGuard + skew));
    region.buffer = Buffer(host.size(), device, "test arguments");
    copy(bytes_at(region.buffer.data(), host.size(), device), bytes_at(host.data(), host.size(), {}), stream);
    stream.synchronize();
  }
}

void DeviceCopy::download(const Stream& stream) {
  for (Region& region : regions_) {
    std::vector<std::byte> host(region.buffer.bytes());
    copy(bytes_at(host.data(), host.size(), {}), bytes_at(region.buffer.data(), host.size(), device_),
         stream);
    stream.synchronize();
    const std::size_t skew = reinterpret_cast<std::uintptr_t>(region.begin) % 16;
    const auto first = host.begin() + static_cast<std::ptrdiff_t>(kGuard + skew);
    const auto last = first + (region.end - region.begin);
    const auto untouched = [](std::byte b) { return b == kPoison; };
    EXPECT_TRUE(std::all_of(host.begin(), first, untouched)) << "bytes before a tensor changed";
    EXPECT_TRUE(std::all_of(last, host.end(), untouched)) << "bytes after a tensor changed";
    std::copy(first, last, region.begin);
  }
}

void DeviceCopy::move(Tensor& tensor) const {
  auto* address = static_cast<std::byte*>(tensor.data);
  auto next = std::upper_bound(regions_.begin(), regions_.end(), address,
                               [](const std::byte* a, const Region& r) { return a < r.begin; });
  const Region& region = *std::prev(next);
  const std::size_t skew = reinterpret_cast<std::uintptr_t>(region.begin) % 16;
  tensor.data = region.buffer.data() + kGuard + skew + (address - region.begin);
  tensor.device = device_;
}

}  // namespace warpwright::ops::testing
