// The kernels that variants.cpp chooses from, here and in ops/rmsnorm.
#pragma once

#include "ops/layernorm/layernorm.hpp"

namespace warpwright::ops::layernorm {

// What the kernels get: not centered, it is a normalization by the root mean square.
struct NormForward : LayerNormForward {
  bool centered = true;
};
struct NormBackward : LayerNormBackward {
  bool centered = true;
};

// Checks of the arguments, for the operation of that name.
NormForwardProblem forward_problem(std::string_view operation, const NormForward& args);
NormBackwardProblem backward_problem(std::string_view operation, const NormBackward& args);
// Whether weight is fp32 beside x of 16 bits; an Error where it is neither that nor of x's dtype.
bool has_fp32_parameters(std::string_view operation, DType dtype, const Tensor& weight);
// The K of kept_columns; −1 without. x has that dtype.
std::int64_t kept_columns(std::string_view operation, std::int64_t N, DType dtype, const Tensor& columns,
                          const Tensor& kept);

void forward_reference(const Context& context, const NormForward& args);
void backward_reference(const Context& context, const NormBackward& args);

// Rows are cut into a number of parts that depends on N alone, so that the parameters' gradients have the
// same bits whatever the number of threads. Each part has a row of partial sums for dweight and one for dbias
// in the scratch.
inline constexpr std::int64_t kRowsPerPart = 32;
inline constexpr std::int64_t kMaxParts = 64;
std::int64_t backward_parts(std::int64_t N);

// Bytes of scratch of the CPU's backward: for each part its sums and dx of kept columns, and a row of
// 1/weight.
std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo& device);

// Writes kept_columns and kept, if there are any, from x: what is normalized. Before anything is written over
// it.
void keep_lost_columns(const NormForward& args, const Tensor& x);

namespace portable {
void forward(const Context& context, const NormForward& args);
void backward(const Context& context, const NormBackward& args);
}  // namespace portable

namespace avx2 {
void forward(const Context& context, const NormForward& args);
void backward(const Context& context, const NormBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const NormForward& args);
void backward(const Context& context, const NormBackward& args);
}  // namespace avx512

namespace cuda {

// Of a block whose warps have a row each.
inline constexpr int kOneWarpThreads = 128;
// What a lane has of the rows between 6 and 7 packs a lane that a warp has, and how many of backward's blocks
// a multiprocessor then has.
inline constexpr int kWideWarpPacks = 7, kWideWarpBlocks = 2;

// How a row of 16-byte packs is shared out: each of `warps` warps, in each of `blocks` blocks, has up to 32 ·
// `packs` of them. 0 warps: such a row does not fit, or is not made of whole packs.
struct RowShape {
  int packs = 0, warps = 0, blocks = 1;
  bool roomy = false;  // in backward: each thread has more registers, as few warps need them

  int threads() const { return warps == 1 ? kOneWarpThreads : 32 * warps; }  // of a block
};
// Where a block shares a row, forward's kernels of up to kFloatPacks packs a lane are for rows of up to
// kMostFloatRow packs, and so for so many warps.
inline constexpr int kFloatPacks = 5, kMostFloatRow = 1280;
constexpr int most_float_warps(int packs) {
  return (kMostFloatRow + 32 * packs - 1) / (32 * packs);
}
// `few`: among the few kernels that there are with fp32 parameters beside 16 bits, and with a sum. In the
// others no pack but a thread's last lies behind the row's end.
RowShape forward_shape(std::int64_t C, DType dtype, bool few);
// `few`: among the few kernels that there are with fp32 parameters beside 16 bits, but for a backward from
// the input whose out is 16 bits too.
constexpr bool few_backward_kernels(bool fp32_parameters, bool from_out, bool fp32_out) {
  return fp32_parameters && (from_out || fp32_out);
}
RowShape backward_shape(std::int64_t C, DType dtype, bool few, bool from_out, const DeviceInfo& device);

// What backward has of warps with a row each, or a part of one, on a multiprocessor; and what it has where
// rows are roomy, and a thread has three packs.
inline constexpr int kBackwardWarps = 16, kRoomyWarps = 12;
inline constexpr int kMostBlocks = 8, kMostClusterWarps = 11;  // of a cluster; of each of its blocks
// Rows for which there is room in shared memory: in backward, and where a cluster has them.
inline constexpr int kBackwardStages = 2, kClusterStages = 3;
// Shared memory in which its rows arrive; beside it, from the output, what it holds of each column.
struct BackwardStages {
  RowShape shape;
  DType dtype, out;  // of x and of out
  bool from_out, addend, fp32_parameters;
};
std::size_t backward_shared_bytes(const BackwardStages& stages);

// The parts of dweight and dbias, one for each block or chunk of rows: functions of problem and device alone,
// so that the sums always have the same bits.
int warp_row_parts(std::int64_t N, RowShape shape, const DeviceInfo& device);
int two_pass_chunks(std::int64_t N, std::int64_t C, const DeviceInfo& device);

// Whether a kernel that moves so much finds none of it in the second-level cache at its end.
bool leaves_caches(std::size_t bytes, const DeviceInfo& device);

void warp_row_forward(const Context& context, const NormForward& args);
void warp_row_backward(const Context& context, const NormBackward& args);
void warp_loop_forward(const Context& context, const NormForward& args);
void two_pass_backward(const Context& context, const NormBackward& args);

}  // namespace cuda

}  // namespace warpwright::ops::layernorm
