// The shape in which cuda.warp_row's backward (backward_rows.cuh) shares out a row, and its launch.
#include "ops/layernorm/cuda/warp_row_backward.cuh"

#include <algorithm>

namespace warpwright::ops {
namespace layernorm::cuda {
namespace {

constexpr int kWarp = gpu::kWarp;

// All that the launch derives from.
struct Rows {
  std::int64_t N, C;
  DType dtype, out;  // of x and of out
  bool fp32_parameters, from_out, addend;
};
Rows rows_of(const NormBackwardProblem& p) {
  return {
      p.N, p.C, p.dtype, p.out_dtype(), p.fp32_parameters, p.from_out, p.dsum || p.dx_store == Store::add};
}
Rows rows_of(const NormBackward& a) {
  return {a.dx.shape[0],
          a.dx.shape[1],
          a.dx.dtype,
          a.dout.dtype,
          a.weight && a.weight.dtype != a.dx.dtype,
          static_cast<bool>(a.out),
          a.dsum || a.dx_store == Store::add};
}

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

// True if as many blocks of so many warps fit at once with more registers for each thread. Five of
// three warps do not fit any better than four.
constexpr bool is_roomy(int warps) {
  return warps == 3 || kRoomyWarps / warps == kBackwardWarps / warps;
}

// The blocks of a multiprocessor.
int resident_blocks(RowShape shape) {
  if (shape.packs == kWideWarpPacks) return kWideWarpBlocks;
  const int warps = shape.roomy && shape.packs == 3 ? kRoomyWarps : kBackwardWarps;
  if (shape.warps == 1) return warps * kWarp / kOneWarpThreads;
  return shape.warps == 3 ? kRoomyWarps / 3 : std::max(warps / shape.warps, 1);
}

// As few blocks as have the registers for a row of so many packs; with up to `most_warps` each, or more in
// the largest cluster.
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

// Three packs a lane if a block shares a row: with two, more of the time goes to the exchange between
// warps, with four there are too few registers for as many warps. From the output two packs in four warps are
// faster than three in three.
RowShape shape_of(const Rows& rows, const DeviceInfo& device) {
  const std::int64_t C = rows.C;
  const DType dtype = rows.dtype;
  const bool from_out = rows.from_out;
  const bool few = few_backward_kernels(rows.fp32_parameters, from_out, rows.out != dtype);
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  const bool same_16_bits = lanes == 8 && !few;
  // A block has room for so much without a spill: longer rows are a cluster's. The longest of these are, too,
  // if the kernel has the registers, since few rows then keep more of the GPU busy.
  const std::int64_t of_block = lanes * kWarp * kMostWarps * (dtype == DType::f32 ? 4 : 3);
  const bool cluster = C > of_block || (C == of_block && same_16_bits && !from_out);
  if (cluster && C % lanes == 0 && device.gpu.at_least(9)) {
    constexpr int kWarpsWithTables = 7;  // with fp32 out and fp32 parameters in shared memory
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

// Shared memory in which rows arrive; from the output, also that of what it holds of each column.
std::size_t shared_bytes(const Rows& rows, RowShape shape) {
  const int threads = shape.threads();
  const int lanes = static_cast<int>(16 / size_of(rows.dtype)), wide = rows.out == rows.dtype ? 1 : 2;
  const int units = wide + (rows.from_out ? wide : 1) + (rows.addend ? 1 : 0);
  const int stages = shape.blocks > 1 ? kClusterStages : kBackwardStages;
  const int statistics = 2 * static_cast<int>(sizeof(float));
  const int row_threads = shape.warps == 1 ? kWarp : threads;
  // 1/weight, and bias if it is not in registers
  const int column = static_cast<int>(sizeof(float)) + static_cast<int>(rows.fp32_parameters ? sizeof(float)
                                                                        : shape.roomy        ? 0
                                                                                      : size_of(rows.dtype));
  const int columns = rows.from_out ? shape.packs * lanes * row_threads * column : 0;
  return static_cast<std::size_t>(stages * threads * (units * shape.packs * 16 + statistics) + columns);
}

// The parts of dweight and dbias, one for each block or cluster: a function of problem and device alone, so
// that the sums always have the same bits.
int parts_of(std::int64_t N, RowShape shape, const DeviceInfo& device) {
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

BackwardLaunch launch_of(const Rows& rows, const DeviceInfo& device) {
  const RowShape shape = shape_of(rows, device);
  return {shape, parts_of(rows.N, shape, device), shared_bytes(rows, shape)};
}

Refusal refuse(const NormBackwardProblem& p, const DeviceInfo& device) {
  const BackwardLaunch launch = launch_of(rows_of(p), device);
  if (Refusal refusal = refuse_shape(launch.shape, p.aligned)) return refusal;
  constexpr std::size_t kStatic = 3072;
  if (launch.shared + kStatic > device.gpu.shared_bytes_per_block) {
    return "the row is too long for shared memory";
  }
  return {};
}

std::size_t workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(launch_of(rows_of(p), device).parts * 2 * p.C) * sizeof(float);
}

std::string configuration(const NormBackwardProblem& p, const DeviceInfo& device) {
  const BackwardLaunch launch = launch_of(rows_of(p), device);
  return text_of(launch.shape) + ", " + std::to_string(launch.parts) + " parts";
}

void backward(const Context& context, const NormBackward& args) {
  const Rows rows = rows_of(args);
  const BackwardLaunch launch = launch_of(rows, context.device());
  if (rows.fp32_parameters) {
    warp_row_backward_mixed(context, args, launch);
  } else if (rows.dtype == DType::f32) {
    warp_row_backward_f32(context, args, launch);
  } else if (rows.dtype == DType::f16) {
    warp_row_backward_f16(context, args, launch);
  } else {
    warp_row_backward_bf16(context, args, launch);
  }
}

}  // namespace
}  // namespace layernorm::cuda

WARPWRIGHT_KERNEL(LayerNormBackward, "cuda.warp_row"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::backward>,
    .refuse = layernorm::cuda::refuse,
    .workspace = layernorm::cuda::workspace,
    .configuration = layernorm::cuda::configuration};
WARPWRIGHT_KERNEL(RMSNormBackward, "cuda.warp_row"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::backward>,
    .refuse = layernorm::cuda::refuse,
    .workspace = layernorm::cuda::workspace,
    .configuration = layernorm::cuda::configuration};

}  // namespace warpwright::ops
