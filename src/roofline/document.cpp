#include "roofline/document.hpp"

#include <fmt/format.h>

#include <cmath>

namespace warpwright::roofline {
namespace {

constexpr Mnk kMma{16, 8, 16};

bool same_digits(double printed, double computed) {
  return std::abs(printed - computed) < 1e-3;
}

int reproduced_rows(const std::vector<DocumentRow>& table) {
  const double rate = published_machine("RTX 3090").flops_per_clock(Math::f16);
  int count = 0;
  for (const DocumentRow& row : table) {
    count += reproduced(row, row.block.m == 0 ? published::instruction_level(row.instruction, row.warp, rate)
                                              : published::warp_level(row.warp, row.block, rate));
  }
  return count;
}

}  // namespace

const std::vector<DocumentRow>& document_instruction_table() {
  static const std::vector<DocumentRow> table{
      {{16, 8, 16}, kMma, {}, 6.4, 80, 8},        {{64, 64, 32}, kMma, {}, 12.800, 40, 512},
      {{32, 128, 32}, kMma, {}, 12.190, 42, 512}, {{16, 64, 32}, kMma, {}, 9.846, 52, 128},
      {{16, 128, 32}, kMma, {}, 10.240, 50, 256}, {{32, 32, 32}, kMma, {}, 10.667, 48, 128},
      {{64, 64, 64}, kMma, {}, 12.800, 40, 1024}, {{32, 32, 64}, kMma, {}, 10.667, 48, 256},
      {{64, 32, 32}, kMma, {}, 11.636, 44, 256},
  };
  return table;
}

const std::vector<DocumentRow>& document_warp_table() {
  static const std::vector<DocumentRow> table{
      {{16, 8, 16}, kMma, {16, 8, 16}, 6.4, 80, 8},
      {{64, 64, 32}, kMma, {64, 128, 32}, 21.333, 22, 1024},
      {{64, 64, 32}, kMma, {64, 256, 32}, 21.333, 21, 2048},
      {{64, 64, 32}, kMma, {128, 128, 32}, 21.333, 20, 2048},
      {{64, 64, 32}, kMma, {128, 64, 32}, 21.333, 22, 1024},
      {{32, 128, 32}, kMma, {64, 128, 32}, 19.692, 22, 1024},
      {{16, 64, 32}, kMma, {64, 64, 32}, 14.222, 24, 512},
      {{16, 128, 32}, kMma, {64, 128, 32}, 15.059, 22, 1024},
      {{32, 32, 32}, kMma, {64, 64, 32}, 16.000, 24, 512},
      {{64, 64, 64}, kMma, {128, 128, 64}, 32.000, 12, 4096},
      {{32, 32, 64}, kMma, {64, 64, 64}, 21.333, 16, 1024},
      {{64, 32, 32}, kMma, {128, 64, 32}, 18.286, 22, 1024},
      {{32, 64, 32}, kMma, {64, 64, 32}, 18.286, 24, 512},
  };
  return table;
}

bool reproduced(const DocumentRow& row, const Traffic& computed) {
  return same_digits(row.intensity, computed.intensity) &&
         same_digits(row.bytes_per_clock, computed.bytes_per_clock) &&
         same_digits(row.clocks, computed.clocks);
}

std::vector<Finding> document_findings() {
  const Machine& m = published_machine("RTX 3090");
  const auto tera = [](double x) { return fmt::format("{:.3f}e12", x * 1e-12); };
  const auto count = [](const auto& table) {
    return fmt::format("{} of {} rows come out of its own formulas", reproduced_rows(table), table.size());
  };
  return {
      {"memory bandwidth", fmt::format("936 GB/s; 384 bit × 19.5 Gbit/s / 8 = {:g}", 384 * 19.5 / 8), ""},
      {"fp32 peak", fmt::format("2 × 1695e6 × 10496 = {}", tera(m.peak_flops(Math::f32))), ""},
      {"products' peak", fmt::format("71e12; 512 × 82 × 1695e6 = {}", tera(m.peak_flops(Math::f16))), ""},
      {"peaks per SM and clock", "256 and 512, called TFLOPS and FLOPS", "FLOP a clock"},
      {"per tensor core and clock",
       fmt::format("128; 512 / 4 = {:g}", m.matrix_flops_per_clock / m.tensor_cores), ""},
      {"cores", fmt::format("10496 and 328; 82 × 128 = {}, 82 × 4 = {}", 82 * 128, 82 * 4), ""},
      {"register file", fmt::format("20992 KB; 82 × 256 = {}", 82 * 256), ""},
      {"shared memory per SM", "10752 KB / 82 = 131.122 KB",
       "10752 KB are the full chip's 84 × 128; 82 × 128 = 10496 KB, 128 KB each, of which 100 can be shared "
       "memory"},
      {"shared memory bandwidth", "128 × 1695e6 × 82 = 17.80e12, no unit",
       fmt::format("{:.4f}e12 bytes a second", m.shared_bytes_per_second(Math::f16) * 1e-12)},
      {"register file bandwidth", "not found, about ten times shared memory's",
       fmt::format("at fp32's peak {:g} bytes a clock are read and written: at least {:g} times",
                   m.register_bytes_per_clock(), m.register_bytes_per_clock() / m.shared_bytes_per_clock)},
      {"first table", count(document_instruction_table()), ""},
      {"first table, units", "intensity in FLOP a byte, Bytes_per_clc",
       "both count elements; factors have 2 bytes, sums 4: intensity 1/(1/WM + 1/WN + 4/k)"},
      {"first table, shapes", "WarpShape = (num·MmaM, num, num)", "(num·MmaM, num·MmaN, num·MmaK)"},
      {"first table, bytes", "… + 2·num_MmaK·WarpTileM·MmaN in one line, …·WarpTileN in the next",
       "WarpTileN"},
      {"second table", count(document_warp_table()), ""},
      {"second table, clocks", "FLOPs / 6780 in the text, FLOPs / 512 in code and table", "FLOPs / 512"},
      {"second table, bytes",
       "Bytes_per_SM reads each factor once, the intensity reads them once for each row and column of warps",
       "the latter: CN/WN·CM·CK + CM/WM·CK·CN"},
      {"second table, sums",
       "through shared memory: 2·CM·CN for each k group in Bytes_per_SM, for each K iteration in the "
       "intensity",
       "none: sums stay in registers"},
      {"second table, code", "CtaTileM·WarpTileK",
       "CtaTileM·CtaTileK (the same in every row: WarpTileK = CtaTileK)"},
      {"second table, bytes per clock", "512 / (FLOPs / intensity)", "512 / intensity"},
      {"second table, units", "elements", "bytes: intensity 1/(1/WM + 1/WN)"},
  };
}

}  // namespace warpwright::roofline
