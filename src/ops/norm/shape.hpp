// How the CUDA kernels share out a row: a pure function of problem and device.
#pragma once

#include "ops/norm/norm.hpp"

namespace warpwright::ops::norm::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kOneWarpThreads = 128;  // of a block whose warps have a row each
inline constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp;  // of a block with one row

// Who has a row: a warp, the warps of a block, or those of a cluster of blocks.
enum class Share { warp, block, cluster };

// Each of `warps` warps, in each of `blocks` blocks, has up to 32 · `packs` of a row's 16-byte packs. 0
// warps: such a row does not fit, or is not made of whole packs.
struct RowShape {
  int packs = 0, warps = 0, blocks = 1;
  bool roomy = false;  // in backward: each thread has more registers, as few warps need them

  int threads() const { return warps == 1 ? kOneWarpThreads : kWarp * warps; }  // of a block
  Share share() const { return blocks > 1 ? Share::cluster : warps > 1 ? Share::block : Share::warp; }
};
std::string text_of(RowShape shape);  // "3 packs, 4 warps"
// Why the kernels of that share do not take packs of a row in this shape.
Refusal refuse_shape(RowShape shape, Share share, bool aligned);

// If a block shares a row, forward's kernels of up to kFloatPacks packs a lane are for rows of up to
// kMostFloatRow packs, and so for so many warps.
inline constexpr int kFloatPacks = 5, kMostFloatRow = 1280;
constexpr int most_float_warps(int packs) {
  return (kMostFloatRow + kWarp * packs - 1) / (kWarp * packs);
}
// `few`: among the few kernels that there are with fp32 parameters for 16 bits, and with a residual. In the
// others no pack but a thread's last lies after the row's end.
RowShape forward_shape(std::int64_t C, DType dtype, bool few);

// Of the backward's rows of between 6 and 7 packs a lane in one warp: a lane's packs, and the blocks of a
// multiprocessor.
inline constexpr int kWideWarpPacks = 7, kWideWarpBlocks = 2;
// The warps of a multiprocessor that have a row each, or a part of one; and those if rows are roomy, and a
// thread has three packs.
inline constexpr int kBackwardWarps = 16, kRoomyWarps = 12;
inline constexpr int kMostBlocks = 8, kMostClusterWarps = 11;  // of a cluster; of each of its blocks
// Rows for which there is room in shared memory: in general, and if a cluster has them.
inline constexpr int kBackwardStages = 2, kClusterStages = 3;

// True where there are few kernels, as they are seldom used: with fp32 parameters for 16 bits, but for a
// backward from the input whose out is 16 bits too.
constexpr bool few_backward_kernels(bool fp32_parameters, bool from_out, bool fp32_out) {
  return fp32_parameters && (from_out || fp32_out);
}

// All that the backward's launch derives from.
struct BackwardTensors {
  std::int64_t N, C;
  DType dtype, out;  // of x and of out
  bool fp32_parameters, from_out, addend;

  explicit BackwardTensors(const NormBackwardProblem& p);
  explicit BackwardTensors(const NormBackward& args);
};
struct BackwardLaunch {
  RowShape shape;
  int parts;           // of dweight and dbias: one for each block or cluster
  std::size_t shared;  // bytes of a block
};
BackwardLaunch backward_launch(const BackwardTensors& tensors, const DeviceInfo& device);

// True if a kernel that moves so much finds none of it in the second-level cache at its end.
bool leaves_caches(std::size_t bytes, const DeviceInfo& device);

}  // namespace warpwright::ops::norm::cuda
