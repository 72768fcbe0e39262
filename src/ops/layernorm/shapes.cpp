// How the CUDA kernels share out a row, what scratch they take, and what they refuse.
#include <algorithm>
#include <array>

#include "ops/cuda/refuse.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/refuse.hpp"

namespace warpwright::ops::layernorm {
namespace cuda {
namespace {

constexpr int kMostWarps = 16, kWarp = 32;

// Among the packs a lane from `fewest` to `most`, those that leave the fewest lanes idle.
RowShape shape_of(std::int64_t C, DType dtype, int most_in_one_warp, int fewest, int most) {
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

// Whether as many blocks of so many warps fit beside each other with more registers for each thread. Five of
// three warps do not fit any better than four.
constexpr bool is_roomy(int warps) {
  return warps == 3 || kRoomyWarps / warps == kBackwardWarps / warps;
}

// Backward's blocks on a multiprocessor.
int resident_blocks(RowShape shape) {
  if (shape.packs == kWideWarpPacks) return kWideWarpBlocks;
  const int warps = shape.roomy && shape.packs == 3 ? kRoomyWarps : kBackwardWarps;
  if (shape.warps == 1) return warps * kWarp / kOneWarpThreads;
  return shape.warps == 3 ? kRoomyWarps / 3 : std::max(warps / shape.warps, 1);
}

// Of as few blocks as have the registers for a row of so many packs; with up to `warps` each, or more in the
// largest cluster.
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

RowShape shape_of_backward(const NormBackwardProblem& p, const DeviceInfo& device) {
  const bool few = few_backward_kernels(p.fp32_parameters, p.from_out, p.out_as_parameters);
  return backward_shape(p.C, p.dtype, few, p.from_out, device);
}

}  // namespace

// Rows of up to 7 packs a lane in one warp, which needs no barrier; longer ones in few warps, so that a
// multiprocessor has many of them at once: of 4 or 5 packs, or of 6 or 8.
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
  // The first of those that leave the fewest lanes idle, and none but in a thread's last pack.
  RowShape best;
  for (const int packs : floats ? std::array{5, 4} : std::array{6, 8}) {
    const int warps = warps_of(packs);
    // More warps of 6 packs wait longer for each other than fewer of 8 (16,384 columns: 75.4 beside 74.8 µs).
    const int most = packs == 6 ? 9 : kMostWarps;
    if (warps > most || kWarp * warps * (packs - 1) > in_row) continue;
    if (best.warps == 0 || packs * warps < best.packs * best.warps) best = {packs, warps};
  }
  return best;
}

// Three packs a lane where a block shares a row: with two, more of the time goes to the exchange between
// warps, with four there are too few registers for as many warps. From the output two packs in four warps are
// faster than three in three.
RowShape backward_shape(std::int64_t C, DType dtype, bool few, bool from_out, const DeviceInfo& device) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  const bool same_16_bits = lanes == 8 && !few;
  // What a block has room for without a spill: longer rows are a cluster's. The longest of these are, too,
  // where the kernel has the registers, since few rows then keep more of the GPU busy.
  const std::int64_t of_block = lanes * kWarp * kMostWarps * (dtype == DType::f32 ? 4 : 3);
  const bool cluster = C > of_block || (C == of_block && same_16_bits && !from_out);
  if (cluster && C % lanes == 0 && device.gpu.at_least(9)) {
    constexpr int kWarpsWithTables = 7;  // beside fp32 out and fp32 parameters in shared memory
    RowShape shape = cluster_shape(C / lanes, few && from_out ? kWarpsWithTables : kMostClusterWarps);
    shape.roomy = shape.warps > 0 && !few && is_roomy(shape.warps);
    return shape;
  }
  if (few) {
    RowShape shape = shape_of(C, dtype, 3, 3, 3);
    if (shape.warps == 1) shape.packs = 3;  // the only kernel there is
    return shape;
  }
  const std::int64_t of_warp = lanes * kWarp * kWideWarpPacks;
  if (same_16_bits && !from_out && C % lanes == 0 && C > of_warp - lanes * kWarp && C <= of_warp) {
    return {kWideWarpPacks, 1};
  }
  RowShape shape = shape_of(C, dtype, 3, 2, 2);
  const bool of_four = shape.warps == 4 && same_16_bits && from_out;
  if (shape.warps != 1 && shape.warps != 2 && !of_four) shape = shape_of(C, dtype, 3, 3, 3);
  if (shape.warps == 0) return shape_of(C, dtype, 4, 4, 4);
  // Two packs a lane need no more registers; rows of 16 bits in one warp or two gain more than they lose by
  // fewer of them.
  shape.roomy = shape.packs == 2 ? shape.warps > 1
                                 : shape.packs == 3 && (shape.warps > 2 ? is_roomy(shape.warps) : lanes == 8);
  return shape;
}

std::size_t backward_shared_bytes(const BackwardStages& s) {
  const int threads = s.shape.threads();
  const int lanes = static_cast<int>(16 / size_of(s.dtype)), wide = s.out == s.dtype ? 1 : 2;
  const int units = wide + (s.from_out ? wide : 1) + (s.addend ? 1 : 0);
  const int stages = s.shape.blocks > 1 ? kClusterStages : kBackwardStages;
  const int statistics = 2 * static_cast<int>(sizeof(float));
  const int row_threads = s.shape.warps == 1 ? kWarp : threads;
  // 1/weight, and bias where it is not in registers
  const int column = static_cast<int>(sizeof(float)) + static_cast<int>(s.fp32_parameters ? sizeof(float)
                                                                        : s.shape.roomy   ? 0
                                                                                          : size_of(s.dtype));
  const int columns = s.from_out ? s.shape.packs * lanes * row_threads * column : 0;
  return static_cast<std::size_t>(stages * threads * (units * s.shape.packs * 16 + statistics) + columns);
}

int warp_row_parts(std::int64_t N, RowShape shape, const DeviceInfo& device) {
  if (shape.warps == 0) return 0;
  const bool one_warp = shape.warps == 1, cluster = shape.blocks > 1;
  const std::int64_t groups = one_warp ? kOneWarpThreads / kWarp : 1;
  const std::int64_t least_rows = cluster ? 8 : 4;  // of a group: the parts are to be less than the tensors
  const std::int64_t resident = resident_blocks(shape);
  // Clusters of more than two blocks do not find a place on every multiprocessor.
  const std::int64_t multiprocessors = device.gpu.multiprocessors;
  const std::int64_t places = shape.blocks > 2 ? multiprocessors - multiprocessors / 12 : multiprocessors;
  const std::int64_t wanted = (N + groups * least_rows - 1) / (groups * least_rows);
  std::int64_t most = std::max<std::int64_t>(resident * places / shape.blocks, 1);
  if (shape.warps == kMostWarps) {  // few long rows: as few blocks as take the same number of turns
    const std::int64_t turns = std::max<std::int64_t>((N + most - 1) / most, 1);
    most = (N + turns - 1) / turns;
  }
  return static_cast<int>(std::min(wanted, most));
}

int two_pass_chunks(std::int64_t N, std::int64_t C, const DeviceInfo& device) {
  constexpr std::int64_t kLeastRows = 32, kBlocksOfMultiprocessor = 16;
  const std::int64_t columns = (C + kWarp - 1) / kWarp;
  const std::int64_t most =
      std::max<std::int64_t>(kBlocksOfMultiprocessor * device.gpu.multiprocessors / columns, 1);
  return static_cast<int>(std::min((N + kLeastRows - 1) / kLeastRows, most));
}

bool leaves_caches(std::size_t bytes, const DeviceInfo& device) {
  return bytes > device.l2_bytes;
}

std::string refuse_any_row(const NormProblem& p, const DeviceInfo& device) {
  // fp64 is a dtype like any other to these kernels.
  return refuse_without_gpu(p.dtype == DType::f64 ? DType::f32 : p.dtype, device);
}

std::string refuse_row(RowShape shape, DType dtype, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(dtype, device); !reason.empty()) return reason;
  return shape.warps > 0 ? "" : "the row is too long or not made of 16-byte packs";
}

std::string refuse_warp_row_forward(const NormForwardProblem& p, const DeviceInfo& device) {
  return refuse_row(forward_shape(p.C, p.dtype, p.fp32_parameters), p.dtype, device);
}

std::string refuse_warp_row_backward(const NormBackwardProblem& p, const DeviceInfo& device) {
  const RowShape shape = shape_of_backward(p, device);
  if (std::string reason = refuse_row(shape, p.dtype, device); !reason.empty()) return reason;
  const bool addend = p.dsum || p.dx_store == Store::add;
  constexpr std::size_t kStatic = 3072;
  const std::size_t bytes =
      backward_shared_bytes({shape, p.dtype, p.out_dtype(), p.from_out, addend, p.fp32_parameters}) + kStatic;
  return bytes <= device.gpu.shared_bytes_per_block ? "" : "the row is too long for shared memory";
}

std::size_t two_pass_workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  const std::int64_t elements = two_pass_chunks(p.N, p.C, device) * 2 * p.C + 2 * p.N;
  return static_cast<std::size_t>(elements) * size_of(accumulation_dtype(p.dtype));
}

// With tensors that begin between packs it falls back on two_pass.
std::size_t warp_row_workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  const RowShape shape = shape_of_backward(p, device);
  const int parts = warp_row_parts(p.N, shape, device);
  return std::max(static_cast<std::size_t>(parts * 2 * p.C) * sizeof(float), two_pass_workspace(p, device));
}

}  // namespace cuda
}  // namespace warpwright::ops::layernorm
