#include "runtime/ceiling.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "runtime/cpu/ceiling_kernels.hpp"
#include "runtime/memory.hpp"

namespace warpwright {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ceiling::Kernels kernels_of(const CpuFeatures& cpu) {
  if (cpu.avx512) return ceiling::avx512::kernels();
  return cpu.avx2 ? ceiling::avx2::kernels() : ceiling::sse2::kernels();
}

// Where kernels leave a result, so that no compiler removes their work.
std::atomic<float> sink;

// Seconds from the moment all threads are ready until the last has run work(thread).
template <class F>
double time_threads(int threads, F&& work) {
  Clock::time_point start;
  double seconds = 0;
#pragma omp parallel num_threads(threads)
  {
#pragma omp barrier
#pragma omp master
    start = Clock::now();
    work(omp_get_thread_num());
#pragma omp barrier
#pragma omp master
    seconds = seconds_since(start);
  }
  return seconds;
}

// The shortest of the runs that fit into the budget, one at least, after one to warm up.
template <class F>
double shortest(int threads, double budget, F&& work) {
  time_threads(threads, work);
  const auto start = Clock::now();
  double best = time_threads(threads, work);
  while (seconds_since(start) < budget) best = std::min(best, time_threads(threads, work));
  return best;
}

double peak_flops(int threads, double budget, float (*loop)(std::int64_t), double flops_per_iteration) {
  // Long enough (a millisecond or less on any machine) that starting the threads does not show.
  constexpr double kFlops = 5e7;
  const auto iterations = static_cast<std::int64_t>(kFlops / flops_per_iteration) + 1;
  const auto work = [&](int) { sink.store(loop(iterations), std::memory_order_relaxed); };
  const double flops = flops_per_iteration * static_cast<double>(iterations) * threads;
  return flops / shortest(threads, budget, work);
}

}  // namespace

double Bandwidth::at(double write_share) const {
  const auto between = [](double x, double x0, double y0, double x1, double y1) {
    return 1 / (1 / y0 + (1 / y1 - 1 / y0) * (x - x0) / (x1 - x0));
  };
  const double share = std::clamp(write_share, 0.0, 0.5);
  return share < 1.0 / 3 ? between(share, 0, read, 1.0 / 3, mixed)
                         : between(share, 1.0 / 3, mixed, 0.5, copy);
}

double Ceilings::seconds(double flop_count, DType dtype, double bytes, double write_share) const {
  return std::max(flop_count / flops.of(dtype), bytes / bandwidth.at(write_share));
}

std::size_t bandwidth_footprint(const DeviceInfo& device) {
  return std::max(std::size_t{16} << 20, 4 * device.l2_bytes * static_cast<std::size_t>(device.threads));
}

PeakFlops measure_peak_flops(const DeviceInfo& device, double seconds) {
  const ceiling::Kernels kernels = kernels_of(device.cpu);
  PeakFlops peak;
  peak.fp32 = peak_flops(device.threads, seconds / 2, kernels.multiply_add, kernels.flops_per_iteration);
  peak.bf16 = peak.fp32;
  if (device.cpu.amx_bf16) {
    peak.bf16 = peak_flops(device.threads, seconds / 2, ceiling::amx_bf16::multiply_add,
                           ceiling::amx_bf16::flops_per_iteration());
  }
  return peak;
}

Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds) {
  const ceiling::StreamKernels kernel = kernels_of(device.cpu).stream;
  const auto threads = static_cast<std::size_t>(device.threads);
  // Each thread has a part of its own; a kernel with several arrays cuts the part into as many.
  const std::size_t part = (working_set / threads / sizeof(float) + 767) / 768 * 768;
  const Buffer buffer(part * threads * sizeof(float), device.device, "bandwidth measurement");
  const auto part_of = [&](int thread) {
    return reinterpret_cast<float*>(buffer.data()) + static_cast<std::size_t>(thread) * part;
  };
  const auto n = static_cast<std::int64_t>(part);
  const double bytes = static_cast<double>(buffer.bytes());
  const auto rate = [&](auto&& work) { return bytes / shortest(device.threads, seconds / 4, work); };

  Bandwidth bandwidth;
  bandwidth.copy = rate([&](int t) { kernel.copy(part_of(t), part_of(t) + n / 2, n / 2); });
  bandwidth.copy = std::max(
      bandwidth.copy, rate([&](int t) { kernel.copy_past_caches(part_of(t), part_of(t) + n / 2, n / 2); }));
  bandwidth.mixed = rate([&](int t) {
    float* a = part_of(t);
    kernel.add(a, a + n / 3, a + 2 * (n / 3), n / 3);
  });
  bandwidth.read = rate([&](int t) { sink.store(kernel.read(part_of(t), n), std::memory_order_relaxed); });
  return bandwidth;
}

}  // namespace warpwright
