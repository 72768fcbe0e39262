// Divides a row among threads for the CUDA kernels. The result is a pure function of problem and device.
#pragma once

#include "ops/norm/norm.hpp"

namespace warpwright::ops::norm::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kOneWarpThreads = 128;  // of a block whose warps have one row each
inline constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp;  // of a block that has one row

// The owner of a row: a warp, the warps of a block, or those of a cluster of blocks.
enum class Share { warp, block, cluster };

// Each of `warps` warps in each of `blocks` blocks owns up to 32 · `packs` of a row's 16-byte packs. warps =
// 0: the row is too long or not made of whole packs.
struct RowShape {
  int packs = 0, warps = 0, blocks = 1;
  bool roomy = false;  // backward: few enough warps run that each thread may have more registers

  int threads() const { return warps == 1 ? kOneWarpThreads : kWarp * warps; }  // of a block
  Share share() const { return blocks > 1 ? Share::cluster : warps > 1 ? Share::block : Share::warp; }
};
std::string text_of(RowShape shape);  // "3 packs, 4 warps"
// The reason why the kernels of this share do not take rows of this shape.
Refusal refuse_shape(RowShape shape, Share share, bool aligned);

// If a block shares a row, forward's kernels with up to kFloatPacks packs per lane take rows of up to
// kMostFloatRow packs. This limits their number of warps.
inline constexpr int kFloatPacks = 5, kMostFloatRow = 1280;
constexpr int most_float_warps(int packs) {
  return (kMostFloatRow + kWarp * packs - 1) / (kWarp * packs);
}
// `few`: only a few kernels exist, as for 16-bit rows with fp32 parameters and for a residual. Otherwise only
// the last pack of a thread may lie after the row's end.
RowShape forward_shape(std::int64_t C, DType dtype, bool few);

// For the backward of rows of 6 to 7 packs per lane in one warp: a lane's packs, and the blocks on a
// multiprocessor.
inline constexpr int kWideWarpPacks = 7, kWideWarpBlocks = 2;
// Warps per multiprocessor in the backward kernels: in general, and if rows are roomy and a thread has three
// packs.
inline constexpr int kBackwardWarps = 16, kRoomyWarps = 12;
inline constexpr int kMostBlocks = 8, kMostClusterWarps = 11;  // of a cluster; of each of its blocks
// Rows that shared memory holds at once: in general, and in a cluster.
inline constexpr int kBackwardStages = 2, kClusterStages = 3;

// True if only a few kernels are compiled, because the case is rare: fp32 parameters for 16-bit rows, unless
// the backward is from the input and out has 16 bits, too.
constexpr bool few_backward_kernels(bool fp32_parameters, bool from_out, bool fp32_out) {
  return fp32_parameters && (from_out || fp32_out);
}

// Everything that determines the backward's launch.
struct BackwardTensors {
  std::int64_t N, C;
  DType dtype, out;  // dtypes of x and of out
  bool fp32_parameters, from_out, addend;

  explicit BackwardTensors(const NormBackwardProblem& p);
  explicit BackwardTensors(const NormBackward& args);
};
struct BackwardLaunch {
  RowShape shape;
  int parts;           // of dweight and dbias, one per block or cluster
  std::size_t shared;  // bytes per block
};
BackwardLaunch backward_launch(const BackwardTensors& tensors, const DeviceInfo& device);

// True if a kernel that moves this many bytes finds none of them in the second-level cache afterwards.
bool leaves_caches(std::size_t bytes, const DeviceInfo& device);

}  // namespace warpwright::ops::norm::cuda
