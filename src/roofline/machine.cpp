#include "roofline/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.hpp"

namespace warpwright::roofline {
namespace {

constexpr std::int64_t kKiB = 1024;

// GA102: 128 KB of L1 and shared memory per multiprocessor, at most 100 KB of it shared memory. Per clock, a
// tensor core of a GeForce card does 64 multiply-adds of fp16 with fp32 sums, or 32 of tf32.
Machine rtx_3090() {
  Machine m;
  m.name = "RTX 3090";
  m.source = "NVIDIA Ampere GA102 GPU Architecture (whitepaper), GeForce RTX 3090";
  m.major = 8, m.minor = 6;
  m.multiprocessors = 82, m.fp32_lanes = 128, m.warps = 48;
  m.matrix_flops_per_clock = 512, m.tf32_flops_per_clock = 256;
  m.matrix_hz = m.fp32_hz = 1695e6;
  m.memory_bytes_per_second = 936e9;
  m.l1_bytes = 128 * kKiB, m.shared_bytes = 100 * kKiB, m.shared_bytes_per_block = 99 * kKiB;
  m.l2_bytes = 6144 * kKiB;
  m.published_matrix_flops = 71e12, m.published_fp32_flops = 35.6e12;
  return m;
}

// AD102: per multiprocessor as GA102, with a much larger L2.
Machine rtx_4090() {
  Machine m = rtx_3090();
  m.name = "RTX 4090";
  m.source = "NVIDIA Ada GPU Architecture (whitepaper), GeForce RTX 4090";
  m.minor = 9;
  m.multiprocessors = 128;
  m.matrix_hz = m.fp32_hz = 2520e6;
  m.memory_bytes_per_second = 1008e9;
  m.l2_bytes = 73728 * kKiB;
  m.published_matrix_flops = 165.2e12, m.published_fp32_flops = 82.6e12;
  return m;
}

// GA100: a tensor core does 256 multiply-adds of fp16 per clock. The whitepaper states L2's 5,120 bytes per
// clock.
Machine a100(std::string form, double bytes_per_second, std::string source) {
  Machine m;
  m.name = "A100 " + form;
  m.source = std::move(source);
  m.major = 8, m.minor = 0;
  m.multiprocessors = 108, m.fp32_lanes = 64;
  m.matrix_flops_per_clock = 2048, m.tf32_flops_per_clock = 1024;
  m.matrix_hz = m.fp32_hz = 1410e6;
  m.memory_bytes_per_second = bytes_per_second;
  m.l2_bytes_per_clock = 5120;
  m.l1_bytes = 192 * kKiB, m.shared_bytes = 164 * kKiB, m.shared_bytes_per_block = 163 * kKiB;
  m.l2_bytes = 40960 * kKiB;
  m.published_matrix_flops = 312e12, m.published_fp32_flops = 19.5e12;
  return m;
}

// GH100: a tensor core does 512 multiply-adds of fp16 per clock. The published peak of the tensor cores
// assumes a lower clock than that of the ordinary units.
Machine hopper(std::string name, int multiprocessors, double matrix_hz, double fp32_hz,
               double bytes_per_second, double matrix_flops, double fp32_flops, std::string source) {
  Machine m;
  m.name = std::move(name);
  m.source = std::move(source);
  m.major = 9, m.minor = 0;
  m.multiprocessors = multiprocessors, m.fp32_lanes = 128;
  m.matrix_flops_per_clock = 4096, m.tf32_flops_per_clock = 2048;
  m.matrix_hz = matrix_hz, m.fp32_hz = fp32_hz;
  m.memory_bytes_per_second = bytes_per_second;
  m.l2_bytes_per_clock = 5120, m.l2_assumed = true;
  m.l1_bytes = 256 * kKiB, m.shared_bytes = 228 * kKiB, m.shared_bytes_per_block = 227 * kKiB;
  m.l2_bytes = 51200 * kKiB;
  m.published_matrix_flops = matrix_flops, m.published_fp32_flops = fp32_flops;
  return m;
}

struct Known {
  Machine machine;
  std::vector<std::string> names;  // in canonical()'s form
};

const std::vector<Known>& known() {
  static const std::string a100_paper = "NVIDIA A100 Tensor Core GPU Architecture (whitepaper)";
  static const std::string a100_sheet = "NVIDIA A100 Tensor Core GPU (datasheet)";
  static const std::string h100_paper = "NVIDIA H100 Tensor Core GPU Architecture (whitepaper)";
  static const std::vector<Known> list{
      {rtx_3090(), {"rtx3090", "3090"}},
      {rtx_4090(), {"rtx4090", "4090"}},
      {a100("SXM 40GB", 1555e9, a100_paper), {"a100sxm40", "a100", "a100sxm", "a10040"}},
      {a100("SXM 80GB", 2039e9, a100_sheet), {"a100sxm80", "a10080"}},
      {a100("PCIe 40GB", 1555e9, a100_sheet), {"a100pcie40", "a100pcie"}},
      {a100("PCIe 80GB", 1935e9, a100_sheet), {"a100pcie80", "a10080pcie"}},
      {hopper("H100 SXM", 132, 1830e6, 1980e6, 3350e9, 989.4e12, 66.9e12, h100_paper),
       {"h100sxm", "h100", "h10080hbm3", "h100sxm80"}},
      {hopper("H100 PCIe", 114, 1620e6, 1755e6, 2039e9, 756e12, 51.2e12, h100_paper),
       {"h100pcie", "h100pcie80"}},
      {hopper("H200", 132, 1830e6, 1980e6, 4800e9, 989e12, 67e12,
              "NVIDIA H200 Tensor Core GPU (datasheet), SXM"),
       {"h200", "h200sxm", "h200sxm141", "h200141"}},
  };
  return list;
}

// "NVIDIA A100-SXM4-80GB" → "a100sxm80": keeps letters and digits, drops the vendor's words and units.
std::string canonical(std::string_view name) {
  std::string text, word;
  const auto end_word = [&] {
    if (word == "sxm4" || word == "sxm5") word = "sxm";
    if (word.size() > 2 && word.substr(word.size() - 2) == "gb") word.resize(word.size() - 2);
    static constexpr std::array<std::string_view, 5> left_out = {"nvidia", "geforce", "tensor", "core",
                                                                 "gpu"};
    if (std::find(left_out.begin(), left_out.end(), word) == left_out.end()) text += word;
    word.clear();
  };
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') {
      word += static_cast<char>(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return text;
}

const Machine* find(std::string_view name) {
  const std::string wanted = canonical(name);
  for (const Known& entry : known()) {
    if (std::find(entry.names.begin(), entry.names.end(), wanted) != entry.names.end()) return &entry.machine;
  }
  return nullptr;
}

constexpr std::array kMath{Math::bf16, Math::f16, Math::tf32, Math::f32};

}  // namespace

std::string_view name_of(Math math) {
  static constexpr std::string_view names[] = {"bf16", "fp16", "tf32", "fp32"};
  return names[static_cast<int>(math)];
}

Math math_named(std::string_view name) {
  for (const Math math : kMath) {
    if (name == name_of(math)) return math;
  }
  throw UsageError(fmt::format("'{}' is not a format of products", name), "--dtype",
                   "use bf16, fp16, tf32 or fp32");
}

double element_bytes(Math math) {
  return math == Math::bf16 || math == Math::f16 ? 2 : 4;
}

double Machine::flops_per_clock(Math math) const {
  if (math == Math::f32) return 2.0 * fp32_lanes;
  return math == Math::tf32 ? tf32_flops_per_clock : matrix_flops_per_clock;
}

double Machine::peak_flops(Math math) const {
  return flops_per_clock(math) * multiprocessors * hz(math);
}

double Machine::register_bytes_per_second(Math math) const {
  return register_bytes_per_clock() * multiprocessors * hz(math);
}

double Machine::shared_bytes_per_second(Math math) const {
  return shared_bytes_per_clock * multiprocessors * hz(math);
}

double Machine::l2_bytes_per_second(Math math) const {
  return l2_bytes_per_clock * hz(math);
}

Machine held_to(Machine machine, Math math, double flops, double memory_bytes_per_second) {
  if (flops > 0) {
    const double hz = flops / (machine.flops_per_clock(math) * machine.multiprocessors);
    (math == Math::f32 ? machine.fp32_hz : machine.matrix_hz) = hz;
  }
  if (memory_bytes_per_second > 0) machine.memory_bytes_per_second = memory_bytes_per_second;
  return machine;
}

std::span<const Machine> published_machines() {
  static const std::vector<Machine> list = [] {
    std::vector<Machine> machines;
    for (const Known& entry : known()) machines.push_back(entry.machine);
    return machines;
  }();
  return list;
}

std::string known_names() {
  std::string names;
  for (const Machine& machine : published_machines()) names += (names.empty() ? "" : ", ") + machine.name;
  return names;
}

const Machine& published_machine(std::string_view name) {
  if (const Machine* machine = find(name)) return *machine;
  throw UsageError(fmt::format("the figures of '{}' are unknown", name), "--gpu",
                   fmt::format("use one of {}, or --device cuda for the present GPU", known_names()));
}

Machine measured_machine(const Measured& measured) {
  const Machine* base = find(measured.name);
  for (const Machine& machine : published_machines()) {
    if (!base && machine.major == measured.major && machine.minor == measured.minor) base = &machine;
  }
  if (!base) {
    throw Error(fmt::format("no figures per clock are known for {}, compute capability {}.{}", measured.name,
                            measured.major, measured.minor),
                "--device", fmt::format("use --gpu with one of {}", known_names()));
  }
  Machine machine = *base;
  machine.name = measured.name;
  machine.source = fmt::format("measured on this machine; figures per clock from {}", base->name);
  machine.multiprocessors = measured.multiprocessors;
  machine.l2_bytes = measured.l2_bytes;
  machine.shared_bytes = measured.shared_bytes;
  machine.shared_bytes_per_block = measured.shared_bytes_per_block;
  machine.published_matrix_flops = machine.published_fp32_flops = 0;
  const bool halves = measured.major == 8 && (measured.minor == 6 || measured.minor == 9);
  if (halves && measured.name.find("GeForce") == std::string::npos) {
    machine.matrix_flops_per_clock *= 2;  // products with fp32 sums have half the rate only on GeForce cards
    machine.tf32_flops_per_clock *= 2;
  }
  machine = held_to(std::move(machine), Math::f32, measured.fp32_flops, 0);
  return held_to(std::move(machine), Math::bf16, measured.matrix_flops, measured.memory_bytes_per_second);
}

}  // namespace warpwright::roofline
