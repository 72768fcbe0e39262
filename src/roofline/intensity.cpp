#include "roofline/intensity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/error.hpp"

namespace warpwright::roofline {
namespace {

constexpr std::int64_t kLongestSide = 1 << 20;  // keeps products of three sides exact

double real(std::int64_t n) {
  return static_cast<double>(n);
}

double flops_of(const Mnk& s) {
  return 2 * real(s.m) * real(s.n) * real(s.k);
}

// Fills the fields of a Traffic that follow from operations and bytes.
template <class T>
T traffic(double flops, double bytes, double flops_per_clock) {
  T t;
  t.flops = flops;
  t.clocks = flops / flops_per_clock;
  t.bytes = bytes;
  t.intensity = flops / bytes;
  t.bytes_per_clock = bytes / t.clocks;
  return t;
}

}  // namespace

std::string text_of(const Mnk& shape) {
  return fmt::format("{}x{}x{}", shape.m, shape.n, shape.k);
}

Mnk mnk_named(std::string_view text, std::string_view flag) {
  Mnk shape;
  const char* at = text.data();
  const char* end = at + text.size();
  std::int64_t* sides[] = {&shape.m, &shape.n, &shape.k};
  for (int i = 0; i < 3; ++i) {
    const auto parsed = std::from_chars(at, end, *sides[i]);
    at = parsed.ptr;
    const bool separated = i == 2 ? at == end : at != end && *at == 'x';
    if (parsed.ec != std::errc() || !separated || *sides[i] < 1 || *sides[i] > kLongestSide) {
      throw UsageError(fmt::format("'{}' is not a shape", text), std::string(flag),
                       fmt::format("give MxNxK, each from 1 to {}, as in 128x256x64", kLongestSide));
    }
    if (i < 2) ++at;
  }
  return shape;
}

void require_tiling(const Machine& machine, const Tiling& tiling) {
  const Mnk& i = tiling.instruction;
  if (is_wgmma(machine, i) && (i.n % 8 != 0 || i.n > 256)) {
    throw UsageError(fmt::format("there is no wgmma instruction {}", text_of(i)), "--instruction",
                     "use a number of columns that is a multiple of 8, at most 256");
  }
  if (!machine.has_wgmma() && i.m == 64) {
    throw UsageError(
        fmt::format("{} is a wgmma instruction, which {} does not have", text_of(i), machine.name),
        "--instruction", "give an mma.sync instruction, such as 16x8x16");
  }
  const auto require = [](const Mnk& outer, const char* flag, const Mnk& inner, const char* inside) {
    if (outer.m % inner.m == 0 && outer.n % inner.n == 0 && outer.k % inner.k == 0) return;
    throw UsageError(fmt::format("{} is not a multiple of {} {}", text_of(outer), inside, text_of(inner)),
                     flag, "make each side a multiple of the inner side");
  };
  require(tiling.warp, "--warp", i, "the instruction");
  if (tiling.block.m > 0) require(tiling.block, "--tile", tiling.warp, "the warp tile");
}

bool is_wgmma(const Machine& machine, const Mnk& instruction) {
  return machine.has_wgmma() && instruction.m == 64;
}

InstructionTraffic instruction_level(const Machine& machine, Math math, const Mnk& i, const Mnk& w) {
  const bool from_shared = is_wgmma(machine, i);
  const double e = from_shared ? 0 : element_bytes(math);
  const double sums = 2 * kSumBytes * real(w.m) * real(w.n) * (real(w.k) / real(i.k));
  const double factors = e * real(w.k) * (real(w.m) + real(w.n));
  const double own_factors = e * real(w.m) * real(w.n) * real(w.k) * (1 / real(i.m) + 1 / real(i.n));
  auto t = traffic<InstructionTraffic>(flops_of(w), factors + sums, machine.flops_per_clock(math));
  t.bytes_per_clock_without_reuse = (own_factors + sums) / t.clocks;
  t.capacity = machine.register_bytes_per_clock();
  return t;
}

WarpTraffic warp_level(const Machine& machine, Math math, const Tiling& tiling) {
  const Mnk& c = tiling.block;
  const Mnk& reader = is_wgmma(machine, tiling.instruction) ? tiling.instruction : tiling.warp;
  const double e = element_bytes(math);
  const double reads = e * real(c.k) * real(c.m) * real(c.n) * (1 / real(reader.n) + 1 / real(reader.m));
  auto t = traffic<WarpTraffic>(flops_of(c), reads, machine.flops_per_clock(math));
  t.fill_per_clock = e * real(c.k) * (real(c.m) + real(c.n)) / t.clocks;
  t.capacity = machine.shared_bytes_per_clock;
  return t;
}

BlockTraffic block_level(const Machine& machine, Math math, const Mnk& c, const Mnk& cluster) {
  const double e = element_bytes(math);
  const double bytes = e * real(c.k) * (real(c.m) / real(cluster.n) + real(c.n) / real(cluster.m));
  auto t = traffic<BlockTraffic>(flops_of(c), bytes, machine.flops_per_clock(math));
  t.capacity = machine.l2_bytes_per_clock / machine.multiprocessors;
  return t;
}

std::vector<InstructionRow> default_instruction_rows() {
  const Mnk mma{16, 8, 16};
  std::vector<InstructionRow> rows;
  for (const Mnk& warp :
       {Mnk{16, 8, 16}, Mnk{64, 64, 32}, Mnk{32, 128, 32}, Mnk{16, 64, 32}, Mnk{16, 128, 32}, Mnk{32, 32, 32},
        Mnk{64, 64, 64}, Mnk{32, 32, 64}, Mnk{64, 32, 32}}) {
    rows.push_back({warp, mma});
  }
  return rows;
}

std::vector<WarpRow> default_warp_rows() {
  const Mnk mma{16, 8, 16};
  return {{{16, 8, 16}, mma, {16, 8, 16}},    {{64, 64, 32}, mma, {64, 128, 32}},
          {{64, 64, 32}, mma, {64, 256, 32}}, {{64, 64, 32}, mma, {128, 128, 32}},
          {{64, 64, 32}, mma, {128, 64, 32}}, {{32, 128, 32}, mma, {64, 128, 32}},
          {{16, 64, 32}, mma, {64, 64, 32}},  {{16, 128, 32}, mma, {64, 128, 32}},
          {{32, 32, 32}, mma, {64, 64, 32}},  {{64, 64, 64}, mma, {128, 128, 64}},
          {{32, 32, 64}, mma, {64, 64, 64}},  {{64, 32, 32}, mma, {128, 64, 32}},
          {{32, 64, 32}, mma, {64, 64, 32}}};
}

std::vector<WarpRow> wgmma_rows(Math math) {
  const auto depth = static_cast<std::int64_t>(32 / element_bytes(math));
  const std::int64_t k = 4 * depth;  // 128 bytes per row
  std::vector<WarpRow> rows;
  using Sides = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [m, n] :
       {Sides{64, 64}, {64, 128}, {64, 256}, {128, 128}, {128, 160}, {128, 192}, {128, 256}, {256, 128}}) {
    const std::int64_t warp_m = m == 256 ? 128 : 64;  // two warpgroups share the tile
    rows.push_back({{warp_m, n, k}, {64, n, depth}, {m, n, k}});
  }
  return rows;
}

Mnk default_instruction(const Machine& machine, Math math, std::int64_t columns) {
  if (math == Math::f32) return {1, 1, 1};
  const auto depth = static_cast<std::int64_t>(32 / element_bytes(math));
  if (machine.has_wgmma() && columns % 8 == 0) {
    std::int64_t n = std::min<std::int64_t>(columns, 256);
    while (columns % n != 0) n -= 8;
    return {64, n, depth};
  }
  return {16, 8, depth};
}

Tiling default_tiling(const Machine& machine, Math math, const Mnk& block) {
  Tiling t;
  t.block = block;
  t.instruction = default_instruction(machine, math, block.n);
  if (is_wgmma(machine, t.instruction) && block.m % 64 != 0) t.instruction = {16, 8, t.instruction.k};
  if (is_wgmma(machine, t.instruction)) {
    t.warp = {block.m % 128 == 0 ? block.m / 2 : 64, block.n, block.k};
  } else {
    t.warp = {std::gcd<std::int64_t>(block.m, 64), std::gcd<std::int64_t>(block.n, 64), block.k};
  }
  return t;
}

Mnk default_cluster(const Machine& machine, Math math) {
  return {machine.has_wgmma() && math != Math::f32 ? 2 : 1, 1, 1};
}

}  // namespace warpwright::roofline
