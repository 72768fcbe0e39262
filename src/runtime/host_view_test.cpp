#include "runtime/host_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/device.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kElements = 16 << 20;
constexpr int kCopies = 300;  // some 10 ms of a GPU's work, which the host gives in less

class HostViewOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  }
  static Tensor tensor(const Buffer& buffer) {
    return {buffer.data(), DType::f32, {kElements}, Device{DeviceKind::cuda, 0}};
  }
  static Buffer buffer() { return {kElements * sizeof(float), {DeviceKind::cuda, 0}, "test"}; }
  static void fill(const Tensor& t, const Stream& stream, float value) {
    write_on_host(t, stream, [&](const Tensor& host) { std::fill_n(host.as<float>(), kElements, value); });
  }
};

TEST_F(HostViewOnCuda, DownloadedIsWhatTheStreamLeaves) {
  const Buffer a = buffer(), b = buffer(), c = buffer();
  const Tensor to = tensor(a), before = tensor(b), last = tensor(c);
  const Stream stream(to.device);
  fill(before, stream, 1);
  fill(last, stream, 2);
  for (int i = 0; i < kCopies; ++i) copy(to, before, stream);
  copy(to, last, stream);
  const HostView view = downloaded(to, stream);
  EXPECT_EQ(std::count(view.tensor().as<float>(), view.tensor().as<float>() + kElements, 2.0f), kElements);
}

TEST_F(HostViewOnCuda, WriteOnHostComesBehindWhatTheStreamWasGiven) {
  const Buffer a = buffer(), b = buffer();
  const Tensor to = tensor(a), before = tensor(b);
  const Stream stream(to.device);
  fill(before, stream, 1);
  for (int i = 0; i < kCopies; ++i) copy(to, before, stream);
  fill(to, stream, 2);
  const HostView view = downloaded(to, stream);
  EXPECT_EQ(std::count(view.tensor().as<float>(), view.tensor().as<float>() + kElements, 2.0f), kElements);
}

}  // namespace
}  // namespace warpwright
