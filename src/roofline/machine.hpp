// A GPU's figures for a roofline: a multiprocessor's work per clock, the clocks, and the bandwidth of each
// level of memory. The figures are the vendor's, or measured on the present device. A derived figure names
// its source.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace warpwright::roofline {

// The format of a product's operands. Sums are fp32 in all of them. fp32 runs on the ordinary units, not on
// the tensor cores.
enum class Math : std::uint8_t { bf16, f16, tf32, f32 };
std::string_view name_of(Math math);
Math math_named(std::string_view name);  // "bf16", "fp16", "tf32" or "fp32"; throws UsageError otherwise
double element_bytes(Math math);         // of an operand

inline constexpr double kSumBytes = 4;  // of an accumulator

struct Machine {
  std::string name;    // "H200"
  std::string source;  // the document that states the figures, or how they were measured
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int fp32_lanes = 0;                  // per multiprocessor; each does one multiply-add per clock
  int warps = 64;                      // that a multiprocessor holds at once
  int tensor_cores = 4;                // per multiprocessor
  double matrix_flops_per_clock = 0;   // per multiprocessor: bf16 or fp16, dense, fp32 sums
  double tf32_flops_per_clock = 0;     // per multiprocessor
  double matrix_hz = 0;                // the clock of the tensor cores' published peak
  double fp32_hz = 0;                  // the clock of the ordinary units' published peak
  double memory_bytes_per_second = 0;  // device memory
  double l2_bytes_per_clock = 0;       // all multiprocessors together; 0: unknown
  bool l2_assumed = false;  // the figure is published for the previous generation, not for this GPU
  double l2_port_bytes_per_clock = 64;  // into one multiprocessor; an assumption, not published for any GPU
  double shared_bytes_per_clock = 128;  // per multiprocessor: 32 banks of 4 bytes
  std::int64_t l1_bytes = 0;            // per multiprocessor: L1 and shared memory together
  // The most of l1_bytes that can be shared memory.
  std::int64_t shared_bytes = 0, shared_bytes_per_block = 0;
  std::int64_t register_bytes = 256 << 10;  // per multiprocessor
  std::int64_t l2_bytes = 0;
  double published_matrix_flops = 0, published_fp32_flops = 0;  // 0: the figures are measured

  double flops_per_clock(Math math) const;  // per multiprocessor
  double hz(Math math) const { return math == Math::f32 ? fp32_hz : matrix_hz; }
  double peak_flops(Math math) const;
  // A multiply-add of the ordinary units reads three registers and writes one. So the register file moves at
  // least this many bytes at fp32's peak. Its real width is not published.
  double register_bytes_per_clock() const { return 16.0 * fp32_lanes; }
  double register_bytes_per_second(Math math) const;
  double shared_bytes_per_second(Math math) const;
  double l2_bytes_per_second(Math math) const;  // 0: unknown
  bool has_wgmma() const { return major == 9; }
};

// Scales the machine to measured rates. The clock of this math becomes the one at which the peak equals
// `flops`, which slows every on-chip level alike. A rate of 0 changes nothing.
Machine held_to(Machine machine, Math math, double flops, double memory_bytes_per_second);

std::span<const Machine> published_machines();
std::string known_names();  // "RTX 3090, A100 SXM 40GB, …"
// Finds a machine by name in any spelling ("rtx-3090", "NVIDIA A100-SXM4-80GB"). Throws a UsageError that
// lists the known names.
const Machine& published_machine(std::string_view name);

// The present device. It starts from the published machine of that name, or else from one of the same compute
// capability. The device's own sizes and measured peaks replace the published ones. Throws Error if no
// published machine has that compute capability.
struct Measured {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::int64_t l2_bytes = 0, shared_bytes = 0, shared_bytes_per_block = 0;
  double matrix_flops = 0, fp32_flops = 0, memory_bytes_per_second = 0;
};
Machine measured_machine(const Measured& measured);

}  // namespace warpwright::roofline
