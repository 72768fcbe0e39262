// Measures the best this machine can do: the ceilings that benches and the trainer's progress line divide
// by.
// A CPU's arithmetic is measured in CPU seconds of its threads, so that neighbours on a shared machine do not
// lower it; its bandwidth, which the threads share, in wall-clock time.
#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "runtime/device.hpp"

namespace warpwright {

// FLOP a second of the whole device, a multiply-add counting two. bf16 is AMX's or the tensor cores' where
// the machine has them (which are as fast in fp16), else fp32's (bf16 is then widened before it is
// multiplied). fp32 is tf32's where the device may use that.
struct PeakFlops {
  double fp32 = 0, bf16 = 0;

  double of(DType dtype) const { return dtype == DType::bf16 || dtype == DType::f16 ? bf16 : fp32; }
};

// Bytes a second of the whole device, read and written bytes alike.
struct Bandwidth {
  double read = 0;   // Σa
  double mixed = 0;  // c = a + b: a third of the bytes is written
  double copy = 0;   // b = a: half

  // For work that writes this share of its bytes: between the measured points, linear in seconds a byte.
  double at(double write_share) const;
};

struct Ceilings {
  PeakFlops flops;
  Bandwidth bandwidth;

  // The least seconds for that work: what bounds it, arithmetic or memory.
  double seconds(double flop_count, DType dtype, double bytes, double write_share) const;
};

// The best of as many runs as `seconds` of wall clock allow, on the whole device at once. For a progress line
// 0.05 s will do.
PeakFlops measure_peak_flops(const DeviceInfo& device, double seconds);

// A working set that exceeds the L2 caches of a GPU or of all a CPU's threads, so that data comes from L3 or
// memory.
std::size_t bandwidth_footprint(const DeviceInfo& device);
// Of a working set of that many bytes (on a GPU 1 GiB at least). Throws Error where it cannot be allocated.
Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds);

// On a CPU: to = from by all of its threads, as a copy of so many bytes is fastest. `bytes` is a multiple of
// kAlignment, and so are both addresses.
void copy_by_all_threads(const DeviceInfo& device, const std::byte* from, std::byte* to, std::size_t bytes);

}  // namespace warpwright
