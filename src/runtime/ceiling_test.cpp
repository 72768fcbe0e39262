#include "runtime/ceiling.hpp"

#include <gtest/gtest.h>

namespace warpwright {
namespace {

TEST(Ceiling, MeasuresWhatNoMachineExceeds) {
  const DeviceInfo device = cpu_device_info(1);
  const Ceilings ceilings{measure_peak_flops(device, 0.1),
                          measure_bandwidth(device, bandwidth_footprint(device), 0.1)};
  // 100 MFLOP/s and 100 MB/s are below any x86-64 processor; 10 TFLOP/s and 1 TB/s above any core of one.
  for (const double flops : {ceilings.flops.fp32, ceilings.flops.bf16}) {
    EXPECT_GT(flops, 1e8);
    EXPECT_LT(flops, 1e13);
  }
  for (const double rate : {ceilings.bandwidth.read, ceilings.bandwidth.mixed, ceilings.bandwidth.copy}) {
    EXPECT_GT(rate, 1e8);
    EXPECT_LT(rate, 1e12);
  }
  EXPECT_GE(ceilings.flops.bf16, device.cpu.amx_bf16 ? ceilings.flops.fp32 : 0);
}

TEST(Ceiling, Bf16IsNeverSlowerThanFp32) {
  DeviceInfo device = cpu_device_info(1);
  device.cpu.amx_bf16 = false;
  const PeakFlops peak = measure_peak_flops(device, 0.05);
  EXPECT_GE(peak.bf16, peak.fp32);
  if (device.cpu.fast_bf16_dot()) {
    EXPECT_GT(peak.bf16, 1.2 * peak.fp32);
  }
}

TEST(Ceiling, OfACudaDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  DeviceInfo device = device_info({DeviceKind::cuda, 0});
  const PeakFlops peak = measure_peak_flops(device, 0.1);
  const Bandwidth bandwidth = measure_bandwidth(device, bandwidth_footprint(device), 0.1);
  device.tf32 = true;
  const PeakFlops with_tf32 = measure_peak_flops(device, 0.1);
  // 1 TFLOP/s and 100 GB/s are below any GPU with tensor cores for bf16; 100 times an H100 is above all.
  EXPECT_GT(peak.fp32, 1e12);
  EXPECT_GT(with_tf32.fp32, peak.fp32);
  EXPECT_GT(peak.bf16, with_tf32.fp32);
  EXPECT_LT(peak.bf16, 1e17);
  for (const double rate : {bandwidth.read, bandwidth.mixed, bandwidth.copy}) {
    EXPECT_GT(rate, 1e11);
    EXPECT_LT(rate, 3e14);
  }
}

TEST(Ceiling, BandwidthFollowsTheShareOfWrites) {
  const Bandwidth bandwidth{40, 20, 10};
  EXPECT_DOUBLE_EQ(bandwidth.at(0), 40);
  EXPECT_DOUBLE_EQ(bandwidth.at(1.0 / 3), 20);
  EXPECT_DOUBLE_EQ(bandwidth.at(0.5), 10);
  EXPECT_DOUBLE_EQ(bandwidth.at(1), 10);
  EXPECT_DOUBLE_EQ(bandwidth.at(1.0 / 6), 1 / ((1.0 / 40 + 1.0 / 20) / 2));
}

TEST(Ceiling, TheSlowerOfArithmeticAndMemoryBounds) {
  const Ceilings ceilings{{100, 400}, {40, 20, 10}};
  EXPECT_DOUBLE_EQ(ceilings.seconds(1000, DType::f32, 40, 0), 10);
  EXPECT_DOUBLE_EQ(ceilings.seconds(1000, DType::bf16, 40, 0), 2.5);
  EXPECT_DOUBLE_EQ(ceilings.seconds(1000, DType::bf16, 400, 0), 10);
}

}  // namespace
}  // namespace warpwright
