// Measures the best that this machine can do. Benches and the trainer's progress line show speeds as shares
// of these ceilings. A CPU's arithmetic is measured in CPU seconds of its threads, so that neighbours on a
// shared machine do not lower it; its bandwidth, which the threads share, in wall-clock time.
#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "runtime/device.hpp"

namespace warpwright {

// FLOP a second of the whole device; a multiply-add counts as two. bf16 is the speed of AMX or of the tensor
// cores (which are as fast in fp16), if the machine has them, else that of vdpbf16ps, if it is faster than
// fp32, else that of fp32, to which bf16 is then widened. fp32 is the speed of tf32 if the device may use it.
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

// The same for mma.sync alone, from registers, on a GPU of compute capability 8.0 or later: the ceiling of
// kernels without wgmma. fp32 is rounded to tf32; bf16 and fp16 are equally fast.
double measure_mma_flops(const DeviceInfo& device, DType dtype, double seconds);

// A working set that exceeds the L2 caches of a GPU or of all a CPU's threads, so that data comes from L3 or
// memory.
std::size_t bandwidth_footprint(const DeviceInfo& device);
// For a working set of that many bytes (on a GPU at least 1 GiB). Throws Error if it cannot be allocated.
Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds);

// On a CPU: to = from, on all of its threads, in the fastest way for this many bytes. `bytes` and both
// addresses are multiples of kAlignment.
void copy_by_all_threads(const DeviceInfo& device, const std::byte* from, std::byte* to, std::size_t bytes);

}  // namespace warpwright
