#include "ops/norm/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace warpwright::ops::norm::cuda {

std::string text_of(RowShape shape) {
  std::string text = fmt::format("{} packs, {} warps", shape.packs, shape.warps);
  if (shape.blocks > 1) text += fmt::format(", {} blocks", shape.blocks);
  return shape.roomy ? text + ", roomy" : text;
}

// Rows of up to 7 packs per lane belong to one warp, which needs no barrier. Longer rows belong to a few
// warps, so that many rows fit on a multiprocessor: 4 or 5 packs per lane, or 6 or 8.
RowShape forward_shape(std::int64_t C, DType dtype, bool few) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C / lanes > kMostWarps * kWarp * 8) return {};
  const auto in_row = static_cast<int>(C / lanes);
  for (const int packs : {1, 2, 3, 4, 5, 6, 7}) {
    if ((!few || (packs != 5 && packs < 7)) && in_row <= kWarp * packs) return {packs, 1};
  }
  const auto warps_of = [&](int packs) { return (in_row + kWarp * packs - 1) / (kWarp * packs); };
  const bool floats = in_row <= kMostFloatRow;
  if (few) return floats ? RowShape{4, warps_of(4)} : RowShape{8, warps_of(8)};
  // Takes the first shape that leaves the fewest lanes idle. Only a thread's last pack may be idle.
  RowShape best;
  for (const int packs : floats ? std::array{5, 4} : std::array{6, 8}) {
    const int warps = warps_of(packs);
    // Many warps of 6 packs wait longer for each other than fewer warps of 8, which costs more than idle
    // lanes.
    const int most = packs == 6 ? 9 : kMostWarps;
    if (warps > most || kWarp * warps * (packs - 1) > in_row) continue;
    if (best.warps == 0 || packs * warps < best.packs * best.warps) best = {packs, warps};
  }
  return best;
}

Refusal refuse_shape(RowShape shape, Share share, bool aligned) {
  if (shape.warps == 0) return "the row is too long or not made of 16-byte packs";
  constexpr const char* kOwners[] = {"the row goes to a warp", "the row goes to a block",
                                     "the row goes to a cluster of blocks"};
  if (shape.share() != share) return kOwners[static_cast<int>(shape.share())];
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes";
  return {};
}

namespace {

// Returns the number of packs per lane, from `fewest` to `most`, that leaves the fewest lanes idle.
RowShape block_shape(std::int64_t C, DType dtype, int most_in_one_warp, int fewest, int most) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C / lanes > std::int64_t{kMostWarps} * kWarp * most) return {};
  const int in_row = static_cast<int>(C / lanes);
  if (in_row <= kWarp * most_in_one_warp) return {(in_row + kWarp - 1) / kWarp, 1};
  RowShape best;
  for (int packs = fewest; packs <= most; ++packs) {
    const int warps = (in_row + kWarp * packs - 1) / (kWarp * packs);
    if (warps <= kMostWarps && (best.warps == 0 || warps * packs <= best.warps * best.packs)) {
      best = {packs, warps};
    }
  }
  return best;
}

// True if more registers per thread leave room for as many blocks of this many warps. Blocks of three warps
// qualify, too: five of them are not faster than four.
constexpr bool is_roomy(int warps) {
  return warps == 3 || kRoomyWarps / warps == kBackwardWarps / warps;
}

// The number of blocks on a multiprocessor.
int resident_blocks(RowShape shape) {
  if (shape.packs == kWideWarpPacks) return kWideWarpBlocks;
  const int warps = shape.roomy && shape.packs == 3 ? kRoomyWarps : kBackwardWarps;
  if (shape.warps == 1) return warps * kWarp / kOneWarpThreads;
  return shape.warps == 3 ? kRoomyWarps / 3 : std::max(warps / shape.warps, 1);
}

// Returns the smallest cluster whose registers hold such a row. Each block has up to `most_warps` warps; the
// largest cluster may have more.
RowShape cluster_shape(std::int64_t in_row, int most_warps) {
  constexpr int kPacks = 3;
  for (int blocks = 2; blocks <= kMostBlocks; blocks *= 2) {
    const std::int64_t lanes = std::int64_t{kWarp} * kPacks * blocks, warps = (in_row + lanes - 1) / lanes;
    if (warps <= (blocks < kMostBlocks ? most_warps : kMostClusterWarps)) {
      return {kPacks, static_cast<int>(warps), blocks};
    }
  }
  return {};
}

// If a block shares a row, a lane has three packs. With two, the exchange between warps takes a larger share
// of the time; with four, the registers do not suffice for as many warps. From the output, two packs in four
// warps are faster than three packs in three.
RowShape backward_shape(const BackwardTensors& t, const DeviceInfo& device) {
  const std::int64_t C = t.C;
  const DType dtype = t.dtype;
  const bool from_out = t.from_out;
  const bool few = few_backward_kernels(t.fp32_parameters, from_out, t.out != dtype);
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  const bool same_16_bits = lanes == 8 && !few;
  // A block holds rows of up to this length without a spill. Longer rows go to a cluster. Rows of exactly
  // this length do, too, if the kernel has the registers: a few rows then keep more of the GPU busy.
  const std::int64_t of_block = lanes * kWarp * kMostWarps * (dtype == DType::f32 ? 4 : 3);
  const bool cluster = C > of_block || (C == of_block && same_16_bits && !from_out);
  if (cluster && C % lanes == 0 && device.gpu.runs_hopper_code()) {
    constexpr int kWarpsWithTables = 7;  // with fp32 out and fp32 parameters in shared memory
    RowShape shape = cluster_shape(C / lanes, few && from_out ? kWarpsWithTables : kMostClusterWarps);
    shape.roomy = shape.warps > 0 && !few && is_roomy(shape.warps);
    return shape;
  }
  if (few) {
    RowShape shape = block_shape(C, dtype, 3, 3, 3);
    if (shape.warps == 1) shape.packs = 3;  // the only kernel in this case
    return shape;
  }
  const std::int64_t of_warp = lanes * kWarp * kWideWarpPacks;
  if (same_16_bits && !from_out && C % lanes == 0 && C > of_warp - lanes * kWarp && C <= of_warp) {
    return {kWideWarpPacks, 1};
  }
  RowShape shape = block_shape(C, dtype, 3, 2, 2);
  const bool of_four = shape.warps == 4 && same_16_bits && from_out;
  if (shape.warps != 1 && shape.warps != 2 && !of_four) shape = block_shape(C, dtype, 3, 3, 3);
  if (shape.warps == 0) return block_shape(C, dtype, 4, 4, 4);
  // Two packs per lane do not need more registers. For 16-bit rows in one or two warps, more registers gain
  // more than fewer warps lose.
  shape.roomy = shape.packs == 2 ? shape.warps > 1
                                 : shape.packs == 3 && (shape.warps > 2 ? is_roomy(shape.warps) : lanes == 8);
  return shape;
}

// The shared memory into which rows are copied. From the output, it also holds 1/weight and the bias per
// column.
std::size_t shared_bytes(const BackwardTensors& t, RowShape shape) {
  const int threads = shape.threads();
  const int lanes = static_cast<int>(16 / size_of(t.dtype)), wide = t.out == t.dtype ? 1 : 2;
  const int units = wide + (t.from_out ? wide : 1) + (t.addend ? 1 : 0);
  const int stages = shape.blocks > 1 ? kClusterStages : kBackwardStages;
  const int statistics = 2 * static_cast<int>(sizeof(float));
  const int row_threads = shape.warps == 1 ? kWarp : threads;
  // 1/weight, and bias if it is not in registers
  const int column = static_cast<int>(sizeof(float)) + static_cast<int>(t.fp32_parameters ? sizeof(float)
                                                                        : shape.roomy     ? 0
                                                                                          : size_of(t.dtype));
  const int columns = t.from_out ? shape.packs * lanes * row_threads * column : 0;
  return static_cast<std::size_t>(stages * threads * (units * shape.packs * 16 + statistics) + columns);
}

// The number of parts of dweight and dbias, one per block or cluster. It depends only on problem and device,
// so that the sums always have the same bits.
int parts_of(std::int64_t N, RowShape shape, const DeviceInfo& device) {
  if (shape.warps == 0) return 0;
  const bool one_warp = shape.warps == 1, cluster = shape.blocks > 1;
  const std::int64_t groups = one_warp ? kOneWarpThreads / kWarp : 1;
  // Each group has at least this many rows, so that the parts are smaller than the tensors.
  const std::int64_t least_rows = cluster ? 8 : 4;
  const std::int64_t resident = resident_blocks(shape);
  // Clusters of more than two blocks do not fit on every multiprocessor.
  const std::int64_t multiprocessors = device.gpu.multiprocessors;
  const std::int64_t places = shape.blocks > 2 ? multiprocessors - multiprocessors / 12 : multiprocessors;
  const std::int64_t wanted = (N + groups * least_rows - 1) / (groups * least_rows);
  std::int64_t most = std::max<std::int64_t>(resident * places / shape.blocks, 1);
  if (shape.warps == kMostWarps) {  // few long rows: the fewest blocks that need the same number of turns
    const std::int64_t turns = std::max<std::int64_t>((N + most - 1) / most, 1);
    most = (N + turns - 1) / turns;
  }
  return static_cast<int>(std::min(wanted, most));
}

}  // namespace

BackwardTensors::BackwardTensors(const NormBackwardProblem& p)
    : N(p.N),
      C(p.C),
      dtype(p.dtype),
      out(p.out_dtype()),
      fp32_parameters(p.fp32_parameters),
      from_out(p.from_out),
      addend(p.dsum || p.dx_store == Store::add) {}
BackwardTensors::BackwardTensors(const NormBackward& a)
    : N(a.dx.shape[0]),
      C(a.dx.shape[1]),
      dtype(a.dx.dtype),
      out(a.dout.dtype),
      fp32_parameters(a.weight && a.weight.dtype != a.dx.dtype),
      from_out(static_cast<bool>(a.out)),
      addend(a.dsum || a.dx_store == Store::add) {}

BackwardLaunch backward_launch(const BackwardTensors& tensors, const DeviceInfo& device) {
  const RowShape shape = backward_shape(tensors, device);
  return {shape, parts_of(tensors.N, shape, device), shared_bytes(tensors, shape)};
}

bool leaves_caches(std::size_t bytes, const DeviceInfo& device) {
  return bytes > device.l2_bytes;
}

}  // namespace warpwright::ops::norm::cuda
