// A GPU as a roofline sees it: what a multiprocessor does in a clock, the clocks, and the bytes each level of
// the memory moves. Figures are the vendor's, or measured on the device present; what is derived says from
// what.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace warpwright::roofline {

// The format that a product multiplies in. Sums are fp32 in all of them; fp32 runs on the ordinary units.
enum class Math : std::uint8_t { bf16, f16, tf32, f32 };
std::string_view name_of(Math math);
Math math_named(std::string_view name);  // "bf16", "fp16", "tf32", "fp32"; else UsageError
double element_bytes(Math math);         // of a factor

inline constexpr double kSumBytes = 4;  // of an accumulator

struct Machine {
  std::string name;    // "H200"
  std::string source;  // where the figures stand, or how they were measured
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int fp32_lanes = 0;                   // of a multiprocessor, a multiply-add each a clock
  int tensor_cores = 4;                 // of a multiprocessor
  double matrix_flops_per_clock = 0;    // of a multiprocessor, bf16 or fp16, dense, fp32 sums
  double tf32_flops_per_clock = 0;      // likewise
  double matrix_hz = 0;                 // the clock that the peaks of products hold for
  double fp32_hz = 0;                   // and that of the ordinary units
  double memory_bytes_per_second = 0;   // device memory
  double l2_bytes_per_clock = 0;        // of all multiprocessors together; 0: not known
  bool l2_assumed = false;              // not published for this GPU but for its forerunner
  double l2_port_bytes_per_clock = 64;  // into a multiprocessor; an assumption, published for none
  double shared_bytes_per_clock = 128;  // of a multiprocessor: 32 banks of 4 bytes
  std::int64_t l1_bytes = 0;            // of a multiprocessor: L1 and shared memory together
  std::int64_t shared_bytes = 0, shared_bytes_per_block = 0;  // of it, the most that can be shared memory
  std::int64_t register_bytes = 256 << 10;                    // of a multiprocessor
  std::int64_t l2_bytes = 0;
  double published_matrix_flops = 0, published_fp32_flops = 0;  // 0: measured, nothing to compare with

  double flops_per_clock(Math math) const;  // of a multiprocessor
  double hz(Math math) const { return math == Math::f32 ? fp32_hz : matrix_hz; }
  double peak_flops(Math math) const;
  // A multiply-add of the ordinary units reads three registers and writes one, so at fp32's peak the register
  // file moves at least that much. Its real width is published nowhere.
  double register_bytes_per_clock() const { return 16.0 * fp32_lanes; }
  double register_bytes_per_second(Math math) const;
  double shared_bytes_per_second(Math math) const;
  double l2_bytes_per_second(Math math) const;  // 0: not known
  bool has_wgmma() const { return major == 9; }
};

// The same machine held to what it was seen to reach: the clock of this math becomes the one that gives
// `flops` at its peak, which slows everything on the chip alike. 0 leaves a figure as it is.
Machine held_to(Machine machine, Math math, double flops, double memory_bytes_per_second);

std::span<const Machine> published_machines();
std::string known_names();  // "RTX 3090, A100 SXM 40GB, …"
// By name, however it is spelled ("rtx-3090", "NVIDIA A100-SXM4-80GB"); UsageError, which lists the known,
// for any other.
const Machine& published_machine(std::string_view name);

// The device that is present: the published machine of that name or, if it is not published, another of its
// compute capability, with the given number of multiprocessors and sizes and the measured peaks. Throws Error
// if nothing is known of that compute capability.
struct Measured {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::int64_t l2_bytes = 0, shared_bytes = 0, shared_bytes_per_block = 0;
  double matrix_flops = 0, fp32_flops = 0, memory_bytes_per_second = 0;
};
Machine measured_machine(const Measured& measured);

}  // namespace warpwright::roofline
