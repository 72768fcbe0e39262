// Checks two published tables of GEMM intensities ("the document") and the figures of their GPU. The
// document's own formulas reproduce the tables. docs/gemm.md says which figures are wrong.
#include <gtest/gtest.h>

#include <cmath>

#include "roofline/intensity.hpp"

namespace warpwright::roofline {
namespace {

double real(std::int64_t n) {
  return static_cast<double>(n);
}
double flops_of(const Mnk& s) {
  return 2 * real(s.m) * real(s.n) * real(s.k);
}

// The document's formulas, unchanged. Its intensities count elements as if they were bytes.
Traffic instruction_level_as_published(const Mnk& instruction, const Mnk& w, double flops_per_clock) {
  Traffic t;
  t.flops = flops_of(w);
  t.clocks = t.flops / flops_per_clock;
  t.bytes = real(w.m) * real(w.k) + real(w.k) * real(w.n) +
            2 * (real(w.k) / real(instruction.k)) * real(w.m) * real(w.n);
  t.bytes_per_clock = t.bytes / t.clocks;
  t.intensity = 1 / (1 / (2 * real(w.m)) + 1 / (2 * real(w.n)) + 1 / real(instruction.k));
  return t;
}

Traffic warp_level_as_published(const Mnk& w, const Mnk& c, double flops_per_clock) {
  Traffic t;
  t.flops = flops_of(c);
  t.clocks = t.flops / flops_per_clock;
  t.bytes =
      real(c.m) * real(w.k) + real(c.k) * real(c.n) + 2 * (real(c.k) / real(w.k)) * real(c.m) * real(c.n);
  t.bytes_per_clock = t.bytes / t.clocks;
  t.intensity = 1 / (1 / (2 * real(w.m)) + 1 / (2 * real(w.n)) + 1 / real(c.k));
  return t;
}

// A row as printed in the document, for an RTX 3090.
struct DocumentRow {
  Mnk warp, instruction, block;  // block is empty in the first table
  double intensity, bytes_per_clock, clocks;
};
constexpr Mnk kMma{16, 8, 16};
const std::vector<DocumentRow> kInstructionTable{
    {{16, 8, 16}, kMma, {}, 6.4, 80, 8},        {{64, 64, 32}, kMma, {}, 12.800, 40, 512},
    {{32, 128, 32}, kMma, {}, 12.190, 42, 512}, {{16, 64, 32}, kMma, {}, 9.846, 52, 128},
    {{16, 128, 32}, kMma, {}, 10.240, 50, 256}, {{32, 32, 32}, kMma, {}, 10.667, 48, 128},
    {{64, 64, 64}, kMma, {}, 12.800, 40, 1024}, {{32, 32, 64}, kMma, {}, 10.667, 48, 256},
    {{64, 32, 32}, kMma, {}, 11.636, 44, 256},
};

const std::vector<DocumentRow> kWarpTable{
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

// True if the computed values have the printed digits (three decimals, cut or rounded).
bool reproduced(const DocumentRow& row, const Traffic& computed) {
  const auto same_digits = [](double printed, double value) { return std::abs(printed - value) < 1e-3; };
  return same_digits(row.intensity, computed.intensity) &&
         same_digits(row.bytes_per_clock, computed.bytes_per_clock) &&
         same_digits(row.clocks, computed.clocks);
}

const Machine& rtx3090() {
  return published_machine("RTX 3090");
}

TEST(Document003, FirstTableAsPublished) {
  ASSERT_EQ(kInstructionTable.size(), 9u);
  for (const DocumentRow& row : kInstructionTable) {
    const Traffic t =
        instruction_level_as_published(row.instruction, row.warp, rtx3090().flops_per_clock(Math::f16));
    EXPECT_TRUE(reproduced(row, t)) << text_of(row.warp);
    EXPECT_NEAR(t.intensity, row.intensity, 1e-3);
    EXPECT_DOUBLE_EQ(t.bytes_per_clock, row.bytes_per_clock);
    EXPECT_DOUBLE_EQ(t.clocks, row.clocks);
    // In this table the document's columns agree with each other.
    EXPECT_NEAR(512 / t.intensity, t.bytes_per_clock, 1e-9);
  }
}

TEST(Document003, SecondTableAsPublished) {
  ASSERT_EQ(kWarpTable.size(), 13u);
  int disagree = 0;
  for (const DocumentRow& row : kWarpTable) {
    const Traffic t = warp_level_as_published(row.warp, row.block, rtx3090().flops_per_clock(Math::f16));
    EXPECT_TRUE(reproduced(row, t)) << text_of(row.warp) << " " << text_of(row.block);
    disagree += std::abs(512 / t.intensity - t.bytes_per_clock) > 0.5;
  }
  EXPECT_EQ(disagree, 12);  // every row but one: its intensity counts other bytes than its Bytes_per_clc
}

TEST(Document003, TheDefaultRowsAreItsRows) {
  const auto first = default_instruction_rows();
  ASSERT_EQ(first.size(), kInstructionTable.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].warp, kInstructionTable[i].warp);
  const auto second = default_warp_rows();
  ASSERT_EQ(second.size(), kWarpTable.size());
  for (std::size_t i = 0; i < second.size(); ++i) {
    EXPECT_EQ(second[i].warp, kWarpTable[i].warp);
    EXPECT_EQ(second[i].block, kWarpTable[i].block);
  }
}

TEST(Document003, DerivedFiguresOfItsGpu) {
  const Machine& m = rtx3090();
  EXPECT_DOUBLE_EQ(m.peak_flops(Math::f32), 35.581440e12);
  EXPECT_DOUBLE_EQ(m.flops_per_clock(Math::f32), 256);
  EXPECT_DOUBLE_EQ(m.flops_per_clock(Math::f16), 512);
  EXPECT_DOUBLE_EQ(m.flops_per_clock(Math::f16) / m.tensor_cores, 128);
  EXPECT_NEAR(m.peak_flops(Math::f16), 71e12, 0.2e12);
  EXPECT_NEAR(m.shared_bytes_per_second(Math::f16), 17.79e12, 0.005e12);  // the document prints 17.80e12
  EXPECT_EQ(m.l1_bytes * m.multiprocessors, 10496 << 10);                 // the document prints 10752 KB
  EXPECT_EQ(m.register_bytes * m.multiprocessors, 20992 << 10);
}

// The second table's bytes per clock, if they come from the same bytes as its intensities.
TEST(Document003, SecondTableCorrected) {
  constexpr double kBytesPerClock[] = {80, 24, 24, 24, 24, 26, 36, 34, 32, 16, 24, 28, 28};
  ASSERT_EQ(std::size(kBytesPerClock), kWarpTable.size());
  for (std::size_t i = 0; i < kWarpTable.size(); ++i) {
    const DocumentRow& row = kWarpTable[i];
    const Mnk &w = row.warp, &c = row.block;
    const double elements = real(c.n / w.n) * real(c.m) * real(c.k) +
                            real(c.m / w.m) * real(c.k) * real(c.n) + 2 * real(c.m) * real(c.n);
    EXPECT_DOUBLE_EQ(elements / row.clocks, kBytesPerClock[i]) << text_of(w) << " " << text_of(c);
    EXPECT_NEAR(512 / row.intensity, kBytesPerClock[i], 0.01);
    EXPECT_EQ(std::abs(row.bytes_per_clock - kBytesPerClock[i]) < 0.5, i == 0);
  }
}

// Factors have 2 bytes and sums 4, and sums stay in registers while a thread block works on a tile.
TEST(Document003, TablesInBytes) {
  const Traffic first = instruction_level(rtx3090(), Math::f16, kMma, {16, 8, 16});
  EXPECT_NEAR(first.intensity, 2.286, 5e-4);  // the document: 6.4
  const Traffic second = instruction_level(rtx3090(), Math::f16, kMma, {64, 64, 32});
  EXPECT_DOUBLE_EQ(second.bytes, 73728);
  EXPECT_NEAR(second.intensity, 3.556, 5e-4);  // the document: 12.8
  EXPECT_DOUBLE_EQ(second.bytes_per_clock, 144);
  const Traffic warps = warp_level(rtx3090(), Math::f16, {kMma, {64, 64, 32}, {64, 128, 32}});
  EXPECT_DOUBLE_EQ(warps.intensity, 32);  // the document: 21.333
  EXPECT_DOUBLE_EQ(warps.bytes_per_clock, 16);
}

// The text divides by 6,780 where the code divides by 512.
TEST(Document003, ClocksOfTheSecondTable) {
  EXPECT_EQ(4 * 1695, 6780);  // tensor cores times MHz
  for (const DocumentRow& row : kWarpTable) EXPECT_DOUBLE_EQ(flops_of(row.block) / 512, row.clocks);
}

}  // namespace
}  // namespace warpwright::roofline
