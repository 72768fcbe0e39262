#include "runtime/ceiling.hpp"

#include <omp.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "runtime/cpu/ceiling_kernels.hpp"
#include "runtime/cuda/backend.hpp"
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

// Kernels store their results here so that no compiler removes their work.
std::atomic<float> sink;

// CPU seconds of the calling thread: on a shared machine, time in which it was not running says nothing about
// what the machine can do.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs work(thread) on all threads at once. Returns the sum of what each does a second; one run is `amount`.
template <class F>
double total_rate(int threads, double amount, F&& work) {
  double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
  {
#pragma omp barrier
    const double start = thread_seconds();
    work(omp_get_thread_num());
    rate += amount / (thread_seconds() - start);
  }
  return rate;
}

// Runs work(thread) on all threads at once. Returns what they do together in a second of wall clock; each
// does `amount`. The threads share the memory: CPU seconds of threads that took turns would count it twice.
template <class F>
double shared_rate(int threads, double amount, F&& work) {
  const auto origin = Clock::now();
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  int team = 1;
#pragma omp parallel num_threads(threads) reduction(min : begin) reduction(max : end)
  {
#pragma omp barrier
#pragma omp single nowait
    team = omp_get_num_threads();
    begin = seconds_since(origin);
    work(omp_get_thread_num());
    end = seconds_since(origin);
  }
  return team * amount / (end - begin);
}

// The highest of the runs that fit into the budget, kMinRuns at least, after one to warm up.
template <class F>
double highest(double budget, F&& run) {
  constexpr int kMinRuns = 5;
  run();
  const auto start = Clock::now();
  double best = 0;
  for (int i = 0; i < kMinRuns || seconds_since(start) < budget; ++i) best = std::max(best, run());
  return best;
}

double peak_flops(int threads, double budget, float (*loop)(std::int64_t), double flops_per_iteration) {
  // Long enough (a millisecond in fp32 on a fast core, 0.1 ms in AMX tiles) that the time to read the
  // clock does not matter.
  constexpr double kFlops = 2e8;
  const auto iterations = static_cast<std::int64_t>(kFlops / flops_per_iteration) + 1;
  const double flops = flops_per_iteration * static_cast<double>(iterations);
  return highest(budget, [&] {
    return total_rate(threads, flops, [&](int) { sink.store(loop(iterations), std::memory_order_relaxed); });
  });
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

double measure_mma_flops(const DeviceInfo& device, DType dtype, double seconds) {
  return cuda::measure_mma_flops(device, dtype, seconds);
}

std::size_t bandwidth_footprint(const DeviceInfo& device) {
  if (device.device.kind == DeviceKind::cuda) return 4 * device.l2_bytes;
  return std::max(std::size_t{16} << 20, 4 * device.l2_bytes * static_cast<std::size_t>(device.threads));
}

PeakFlops measure_peak_flops(const DeviceInfo& device, double seconds) {
  if (device.device.kind == DeviceKind::cuda) return cuda::measure_peak_flops(device, seconds);
  const ceiling::Kernels kernels = kernels_of(device.cpu);
  PeakFlops peak;
  peak.fp32 = peak_flops(device.threads, seconds / 2, kernels.multiply_add, kernels.flops_per_iteration);
  peak.bf16 = peak.fp32;
  if (device.cpu.amx_bf16) {
    peak.bf16 = peak_flops(device.threads, seconds / 2, ceiling::amx_bf16::multiply_add,
                           ceiling::amx_bf16::flops_per_iteration());
  } else if (device.cpu.avx512_bf16) {
    peak.bf16 =
        std::max(peak.fp32, peak_flops(device.threads, seconds / 2, ceiling::avx512_bf16::multiply_add,
                                       ceiling::avx512_bf16::flops_per_iteration()));
  }
  return peak;
}

Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds) {
  if (device.device.kind == DeviceKind::cuda) return cuda::measure_bandwidth(device, working_set, seconds);
  const ceiling::StreamKernels kernel = kernels_of(device.cpu).stream;
  const auto threads = static_cast<std::size_t>(device.threads);
  // Each thread has a part of its own; a kernel with several arrays cuts the part into as many.
  const std::size_t part = (working_set / threads / sizeof(float) + 767) / 768 * 768;
  const Buffer buffer(part * threads * sizeof(float), device.device, "bandwidth measurement");
  const auto part_of = [&](int thread) {
    return reinterpret_cast<float*>(buffer.data()) + static_cast<std::size_t>(thread) * part;
  };
  // Each thread writes its part once: pages that were never written all map to one page of zeros, which the
  // caches hold.
#pragma omp parallel num_threads(device.threads)
  std::fill_n(part_of(omp_get_thread_num()), part, 0.5f);
  const auto n = static_cast<std::int64_t>(part);
  const double bytes = static_cast<double>(part * sizeof(float));
  const auto rate = [&](auto&& work) {
    return highest(seconds / 5, [&] { return shared_rate(device.threads, bytes, work); });
  };
  const auto copies = [&](auto copy) {
    return rate([&](int t) { copy(part_of(t), part_of(t) + n / 2, n / 2); });
  };
  const auto additions = [&](auto add) {
    return rate([&](int t) { add(part_of(t), part_of(t) + n / 3, part_of(t) + 2 * (n / 3), n / 3); });
  };

  Bandwidth bandwidth;
  bandwidth.copy = std::max(copies(kernel.copy), copies(kernel.copy_past_caches));
  bandwidth.mixed = std::max(additions(kernel.add), additions(kernel.add_past_caches));
  bandwidth.read = rate([&](int t) { sink.store(kernel.read(part_of(t), n), std::memory_order_relaxed); });
  return bandwidth;
}

void copy_by_all_threads(const DeviceInfo& device, const std::byte* from, std::byte* to, std::size_t bytes) {
  const ceiling::StreamKernels kernel = kernels_of(device.cpu).stream;
  const auto threads = static_cast<std::size_t>(device.threads);
  const auto copy = 2 * bytes > device.l2_bytes * threads ? kernel.copy_past_caches : kernel.copy;
  const std::size_t units = bytes / kAlignment;
#pragma omp parallel num_threads(device.threads)
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    const auto team = static_cast<std::size_t>(omp_get_num_threads());  // fewer if OpenMP is limited
    const std::size_t begin = units * thread / team * kAlignment,
                      end = units * (thread + 1) / team * kAlignment;
    copy(reinterpret_cast<const float*>(from + begin), reinterpret_cast<float*>(to + begin),
         static_cast<std::int64_t>((end - begin) / sizeof(float)));
  }
}

}  // namespace warpwright
