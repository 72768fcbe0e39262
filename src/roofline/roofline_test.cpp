// The intensities by hand, the machines' figures, and the laws of the model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "core/error.hpp"
#include "roofline/gemm.hpp"
#include "roofline/occupancy.hpp"

namespace warpwright::roofline {
namespace {

const Machine& rtx3090() {
  return published_machine("RTX 3090");
}
const Machine& h200() {
  return published_machine("H200");
}

// Computed by hand for the RTX 3090 with 2-byte operands and 4-byte sums.
TEST(Intensity, InstructionLevelInBytes) {
  const auto one = instruction_level(rtx3090(), Math::f16, {16, 8, 16}, {16, 8, 16});
  EXPECT_DOUBLE_EQ(one.bytes, 2 * 16 * (16 + 8) + 8 * 16 * 8);  // 1,792
  EXPECT_DOUBLE_EQ(one.intensity, 4096.0 / 1792);
  EXPECT_DOUBLE_EQ(one.clocks, 8);
  EXPECT_DOUBLE_EQ(one.bytes_per_clock, 224);
  EXPECT_DOUBLE_EQ(one.bytes_per_clock_without_reuse, 224);
  const auto warp = instruction_level(rtx3090(), Math::f16, {16, 8, 16}, {64, 64, 32});
  EXPECT_DOUBLE_EQ(warp.bytes, 2 * 32 * 128 + 8 * 64 * 64 * 2);  // 73,728
  EXPECT_DOUBLE_EQ(warp.bytes_per_clock, 144);
  EXPECT_DOUBLE_EQ(warp.bytes_per_clock_without_reuse, 224);
  EXPECT_DOUBLE_EQ(warp.capacity, 2048);
}

TEST(Intensity, WarpLevelInBytes) {
  const struct {
    Mnk warp, block;
    double intensity, read, fill;
  } rows[] = {
      {{16, 8, 16}, {16, 8, 16}, 16.0 / 3, 96, 96},      {{64, 64, 32}, {64, 128, 32}, 32, 16, 12},
      {{64, 64, 32}, {64, 256, 32}, 32, 16, 10},         {{64, 64, 32}, {128, 128, 32}, 32, 16, 8},
      {{32, 128, 32}, {64, 128, 32}, 25.6, 20, 12},      {{16, 64, 32}, {64, 64, 32}, 12.8, 40, 16},
      {{16, 128, 32}, {64, 128, 32}, 128.0 / 9, 36, 12}, {{32, 32, 32}, {64, 64, 32}, 16, 32, 16},
      {{64, 64, 64}, {128, 128, 64}, 32, 16, 8},         {{64, 32, 32}, {128, 64, 32}, 64.0 / 3, 24, 12}};
  for (const auto& row : rows) {
    const auto t = warp_level(rtx3090(), Math::f16, {{16, 8, 16}, row.warp, row.block});
    EXPECT_DOUBLE_EQ(t.intensity, row.intensity) << text_of(row.warp);
    EXPECT_DOUBLE_EQ(t.bytes_per_clock, row.read) << text_of(row.warp);
    EXPECT_DOUBLE_EQ(t.fill_per_clock, row.fill) << text_of(row.block);
    EXPECT_EQ(t.share() > 1, row.warp.m == 16 && row.warp.n == 8);
  }
}

// wgmma reads both operands from shared memory. A 128 × 256 tile just stays below shared memory's 128 bytes
// per clock, a 128 × 128 tile does not.
TEST(Intensity, Wgmma) {
  const auto wide = warp_level(h200(), Math::bf16, default_tiling(h200(), Math::bf16, {128, 256, 64}));
  EXPECT_DOUBLE_EQ(wide.clocks, 1024);
  EXPECT_DOUBLE_EQ(wide.bytes_per_clock, 80);
  EXPECT_DOUBLE_EQ(wide.fill_per_clock, 48);
  EXPECT_DOUBLE_EQ(wide.share(), 1);
  const auto square = warp_level(h200(), Math::bf16, default_tiling(h200(), Math::bf16, {128, 128, 64}));
  EXPECT_DOUBLE_EQ(square.bytes_per_clock, 96);
  EXPECT_DOUBLE_EQ(square.fill_per_clock, 64);
  const auto sums = instruction_level(h200(), Math::bf16, {64, 256, 16}, {64, 256, 64});
  EXPECT_DOUBLE_EQ(sums.bytes_per_clock, 1024);
  EXPECT_EQ(default_tiling(h200(), Math::bf16, {128, 256, 64}).instruction, (Mnk{64, 256, 16}));
  EXPECT_EQ(default_tiling(h200(), Math::bf16, {128, 384, 64}).instruction, (Mnk{64, 192, 16}));
  EXPECT_EQ(default_tiling(h200(), Math::bf16, {32, 64, 64}).instruction, (Mnk{16, 8, 16}));
  EXPECT_EQ(default_tiling(h200(), Math::tf32, {128, 128, 32}).instruction, (Mnk{64, 128, 8}));
  EXPECT_EQ(default_tiling(rtx3090(), Math::bf16, {128, 256, 32}).instruction, (Mnk{16, 8, 16}));
  EXPECT_EQ(default_tiling(h200(), Math::f32, {128, 128, 32}).instruction, (Mnk{1, 1, 1}));
}

TEST(Intensity, TheClosedFormsAreTheQuotients) {
  std::mt19937 random(2);
  const auto times = [&](std::int64_t side) { return side * static_cast<std::int64_t>(1 + random() % 8); };
  for (int i = 0; i < 1000; ++i) {
    const Math math = i % 2 ? Math::bf16 : Math::tf32;
    const double e = element_bytes(math);
    Tiling t;
    t.instruction = {16, 8, math == Math::bf16 ? 16 : 8};
    t.warp = {times(16), times(8), times(t.instruction.k)};
    t.block = {times(t.warp.m), times(t.warp.n), times(t.warp.k)};
    require_tiling(rtx3090(), t);
    const auto real = [](std::int64_t n) { return static_cast<double>(n); };
    const auto a = instruction_level(rtx3090(), math, t.instruction, t.warp);
    EXPECT_NEAR(a.intensity * (e / 2 * (1 / real(t.warp.m) + 1 / real(t.warp.n)) + 4 / real(t.instruction.k)),
                1, 1e-12);
    EXPECT_NEAR(a.intensity, a.flops / a.bytes, 1e-9);
    EXPECT_LE(a.bytes_per_clock, a.bytes_per_clock_without_reuse * (1 + 1e-12));
    const auto b = warp_level(rtx3090(), math, t);
    EXPECT_NEAR(b.intensity * e / 2 * (1 / real(t.warp.m) + 1 / real(t.warp.n)), 1, 1e-12);
    EXPECT_NEAR(b.bytes_per_clock * b.intensity, rtx3090().flops_per_clock(math), 1e-6);
    const auto c = block_level(rtx3090(), math, t.block, {1, 1, 1});
    EXPECT_NEAR(c.bytes_per_clock, b.fill_per_clock, 1e-9);  // shared memory receives what L2 sends
    EXPECT_LE(block_level(rtx3090(), math, t.block, {2, 1, 1}).bytes, c.bytes);
  }
}

TEST(Intensity, NonsenseShapesAreRefused) {
  for (const char* text : {"", "128", "128x256", "128x256x", "128x256x64x2", "0x8x16", "-16x8x16", "16x8xk",
                           "16 x8x16", "99999999999999999999x8x16", "2000000x8x16"}) {
    EXPECT_THROW(mnk_named(text, "--tile"), UsageError) << text;
  }
  EXPECT_EQ(mnk_named("128x256x64", "--tile"), (Mnk{128, 256, 64}));
  const Mnk mma{16, 8, 16};
  EXPECT_THROW(require_tiling(rtx3090(), {mma, {24, 8, 16}, {}}), UsageError);
  EXPECT_THROW(require_tiling(rtx3090(), {mma, {64, 12, 16}, {}}), UsageError);
  EXPECT_THROW(require_tiling(rtx3090(), {mma, {64, 64, 24}, {}}), UsageError);
  EXPECT_THROW(require_tiling(rtx3090(), {mma, {64, 64, 32}, {96, 64, 32}}), UsageError);
  EXPECT_THROW(require_tiling(h200(), {{64, 264, 16}, {64, 264, 64}, {}}), UsageError);
  EXPECT_THROW(require_tiling(h200(), {{64, 12, 16}, {64, 12, 64}, {}}), UsageError);
  EXPECT_NO_THROW(require_tiling(rtx3090(), {mma, {64, 64, 32}, {128, 64, 64}}));
}

TEST(Machines, PeaksFollowFromClocks) {
  EXPECT_EQ(published_machines().size(), 9u);
  for (const Machine& m : published_machines()) {
    EXPECT_NEAR(m.peak_flops(Math::bf16) / m.published_matrix_flops, 1, 0.005) << m.name;
    EXPECT_NEAR(m.peak_flops(Math::f32) / m.published_fp32_flops, 1, 0.005) << m.name;
    EXPECT_FALSE(m.source.empty());
    EXPECT_GT(m.peak_flops(Math::bf16), m.peak_flops(Math::tf32));
    EXPECT_GT(m.register_bytes_per_clock(), m.shared_bytes_per_clock);
    EXPECT_LE(m.shared_bytes_per_block, m.shared_bytes);
    EXPECT_LE(m.shared_bytes, m.l1_bytes);
    EXPECT_EQ(&published_machine(m.name), &published_machine(m.name));
    EXPECT_NE(known_names().find(m.name), std::string::npos);
  }
}

TEST(Machines, ByAnySpelling) {
  const std::pair<const char*, const char*> names[] = {{"rtx-3090", "RTX 3090"},
                                                       {"NVIDIA GeForce RTX 3090", "RTX 3090"},
                                                       {"a100", "A100 SXM 40GB"},
                                                       {"NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"},
                                                       {"NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"},
                                                       {"NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"},
                                                       {"h100", "H100 SXM"},
                                                       {"NVIDIA H100 80GB HBM3", "H100 SXM"},
                                                       {"NVIDIA H100 PCIe", "H100 PCIe"},
                                                       {"NVIDIA H200", "H200"}};
  for (const auto& [name, found] : names) EXPECT_EQ(published_machine(name).name, found) << name;
  for (const char* name : {"", "H20", "309", "nvidia", "V100"}) {
    try {
      published_machine(name);
      FAIL() << name;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("RTX 3090"), std::string::npos);
    }
  }
}

// Computed by hand from the limits in the CUDA C++ Programming Guide, "Compute Capabilities".
TEST(Occupancy, IsTheLeastOfThreeLimits) {
  const Machine small = published_machine("RTX 3090"), large = published_machine("A100");
  const Occupancy by_shared =
      occupancy_of(small, {.threads = 128, .registers = 128, .shared_bytes = 48 << 10});
  EXPECT_EQ(by_shared.by_registers, 4);
  EXPECT_EQ(by_shared.by_shared, 2);  // 2 × 49 of 100 KB
  EXPECT_EQ(by_shared.by_warps, 12);
  EXPECT_EQ(by_shared.blocks, 2);
  EXPECT_DOUBLE_EQ(by_shared.warps, 8.0 / 48);
  EXPECT_EQ(by_shared.limit, "shared memory");
  EXPECT_EQ(occupancy_of(large, {.threads = 128, .registers = 128, .shared_bytes = 48 << 10}).by_shared, 3);
  const Occupancy by_registers = occupancy_of(large, {.threads = 256, .registers = 255, .shared_bytes = 0});
  EXPECT_EQ(by_registers.blocks, 1);
  EXPECT_EQ(by_registers.limit, "registers");
  EXPECT_EQ(occupancy_of(small, {.threads = 1024, .registers = 16, .shared_bytes = 0}).blocks, 1);
  EXPECT_EQ(occupancy_of(small, {.threads = 32, .registers = 16, .shared_bytes = 100 << 10}).blocks, 0);
}

TEST(Machines, Measured) {
  Measured seen{"NVIDIA H200", 9, 0, 132, 60 << 20, 228 << 10, 227 << 10, 930e12, 66e12, 4.6e12};
  const Machine m = measured_machine(seen);
  EXPECT_NEAR(m.peak_flops(Math::bf16), 930e12, 1);
  EXPECT_NEAR(m.peak_flops(Math::f32), 66e12, 1);
  EXPECT_EQ(m.memory_bytes_per_second, 4.6e12);
  EXPECT_LT(m.shared_bytes_per_second(Math::bf16), h200().shared_bytes_per_second(Math::bf16));
  seen.name = "NVIDIA A40", seen.major = 8, seen.minor = 6, seen.multiprocessors = 84;
  EXPECT_EQ(measured_machine(seen).flops_per_clock(Math::bf16), 1024);  // an A40 is not a GeForce card
  seen.name = "NVIDIA L4", seen.minor = 9, seen.multiprocessors = 58;
  EXPECT_EQ(measured_machine(seen).flops_per_clock(Math::bf16), 1024);
  seen.major = 12;
  EXPECT_THROW(measured_machine(seen), Error);
  const Machine held = held_to(h200(), Math::bf16, 700e12, 4e12);
  EXPECT_NEAR(held.peak_flops(Math::bf16), 700e12, 1);
  EXPECT_EQ(held.memory_bytes_per_second, 4e12);
}

Options tile(const Machine& machine, const Mnk& block) {
  Options options;
  options.tiling = default_tiling(machine, Math::bf16, block);
  options.cluster = default_cluster(machine, Math::bf16);
  return options;
}

// A machine whose L2 is exhausted if all multiprocessors are busy.
Machine narrow_l2() {
  Machine machine = h200();
  machine.l2_bytes_per_clock = 1024;
  return machine;
}

TEST(Gemm, ProductsOfALinearLayer) {
  const Product forward = product_of(Direction::forward, 6, 10, 14, Math::bf16);
  EXPECT_EQ(forward.rows * 10000 + forward.cols * 100 + forward.depth, 61014);
  const Product dx = product_of(Direction::dx, 6, 10, 14, Math::bf16);
  EXPECT_EQ(dx.rows * 10000 + dx.cols * 100 + dx.depth, 61410);
  const Product dw = product_of(Direction::dw, 6, 10, 14, Math::bf16);
  EXPECT_EQ(dw.rows * 10000 + dw.cols * 100 + dw.depth, 101406);
  for (const Product& p : {forward, dx, dw}) EXPECT_DOUBLE_EQ(p.flops(), 2.0 * 6 * 10 * 14);
  EXPECT_DOUBLE_EQ(forward.compulsory_bytes(), 2.0 * (6 * 14 + 10 * 14 + 6 * 10));
  EXPECT_DOUBLE_EQ(dw.compulsory_bytes(), 2.0 * (6 * 14 + 6 * 10) + 8.0 * 10 * 14);
}

TEST(Gemm, TilesAndEdges) {
  const Product p = product_of(Direction::forward, 129, 257, 65, Math::bf16);
  const Tiles t = tiles_of(h200(), p, tile(h200(), {128, 256, 64}));
  EXPECT_EQ(t.rows, 1);  // each covers two thread blocks' tiles
  EXPECT_EQ(t.cols, 2);
  EXPECT_EQ(t.iterations, 2);
  EXPECT_DOUBLE_EQ(t.edge, 129.0 * 257 * 65 / (256.0 * 512 * 128));
  EXPECT_EQ(t.group_rows * t.group_cols, 2);
}

TEST(Gemm, LevelsOfALargeProduct) {
  const Product p = product_of(Direction::forward, 8192, 8192, 8192, Math::bf16);
  const auto found = levels(h200(), p, tile(h200(), {128, 256, 64}));
  ASSERT_EQ(found.size(), 5u);
  const double peak = h200().peak_flops(Math::bf16);
  for (const LevelBound& level : found) {
    EXPECT_NEAR(level.attainable, std::min(peak, level.intensity * level.bytes_per_second), 1);
    EXPECT_EQ(level.bounds, level.attainable < peak);
  }
  EXPECT_DOUBLE_EQ(found[2].intensity,
                   1 / (1 / 256.0 + 1 / 256.0));  // B's tile is copied once for two thread blocks
  EXPECT_FALSE(found[3].bounds || found[4].bounds);
  EXPECT_LE(found[3].intensity, found[4].intensity);
  // Device memory bounds a product of one row: it does less than one FLOP per byte of the weights.
  const auto skinny =
      levels(h200(), product_of(Direction::forward, 1, 50304, 768, Math::bf16), tile(h200(), {64, 256, 64}));
  EXPECT_TRUE(skinny[4].bounds);
  EXPECT_LT(skinny[4].intensity, 1);
}

TEST(Gemm, NoPredictionBeatsTheMachine) {
  std::mt19937 random(3);
  const auto side = [&] { return static_cast<std::int64_t>(1) << random() % 15; };
  for (int i = 0; i < 400; ++i) {
    const Machine& machine = published_machines()[random() % published_machines().size()];
    const auto direction = static_cast<Direction>(random() % 3);
    const Product p = product_of(direction, side() + random() % 7, side(), side() + random() % 3, Math::bf16);
    const auto tiles = candidate_tiles(machine, Math::bf16);
    const Options options = tile(machine, tiles[random() % tiles.size()]);
    ASSERT_GE(device_bytes(machine, p, options), p.compulsory_bytes() * (1 - 1e-12));
    double block = 0;
    for (const Schedule schedule : kSchedules) {
      const Prediction q = predict(machine, p, options, schedule);
      ASSERT_GE(q.seconds, p.flops() / machine.peak_flops(Math::bf16));
      ASSERT_GE(q.seconds, p.compulsory_bytes() / machine.memory_bytes_per_second * (1 - 1e-12));
      ASSERT_LE(q.share_of_peak, 1);
      ASSERT_LE(q.split.utilization, 1);
      if (schedule == Schedule::stream_k) {
        ASSERT_LE(q.split.most_iterations - q.split.fewest_iterations,
                  tiles_of(machine, p, options).work().iterations);
      }
      if (schedule == Schedule::block) block = q.seconds;
      if (schedule == Schedule::persistent) {
        ASSERT_LE(q.seconds, block * (1 + 1e-12));
      }
      ASSERT_LE(predict_best(machine, p, options, schedule).seconds, q.seconds * (1 + 1e-12));
    }
  }
}

// dW of GPT-2 124M's attention projection at 64 × 1,024 tokens has only 18 tiles of 128 × 256 for 132
// multiprocessors.
TEST(Gemm, StreamKWinsWhereFewTilesAreDeep) {
  const Product p = product_of(Direction::dw, 65536, 768, 768, Math::bf16);
  const Options options = tile(h200(), {128, 256, 64});
  const Prediction block = predict(h200(), p, options, Schedule::block);
  EXPECT_EQ(block.split.ctas, 9);  // 18 tiles in clusters of two
  EXPECT_NEAR(block.split.utilization, 18.0 / 132, 1e-12);
  // A busy multiprocessor gets a larger share of L2 if most others are idle.
  EXPECT_GT(iteration_of(narrow_l2(), p, options, 132).seconds,
            iteration_of(narrow_l2(), p, options, 18).seconds);
  const Prediction stream = predict(h200(), p, options, Schedule::stream_k);
  EXPECT_GT(stream.split.utilization, 0.9);
  EXPECT_GT(block.seconds / stream.seconds, 4);
  const auto cells = map_of(h200(), p, options, {768}, {768}, true);
  ASSERT_EQ(cells.size(), 1u);
  EXPECT_EQ(cells[0].winner, Schedule::stream_k);
  // A product of whole waves has no tile to cut.
  const Product even = product_of(Direction::forward, 128 * 132, 256 * 4, 4096, Math::bf16);
  EXPECT_EQ(predict(h200(), even, options, Schedule::stream_k).split.shared_tiles, 0);
}

}  // namespace
}  // namespace warpwright::roofline
