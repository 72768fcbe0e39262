// Shared by the kernels of ops/layernorm, which also compute ops/rmsnorm, and by the operations that are
// fused with them.
#pragma once

#include "ops/layernorm/layernorm.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::ops::layernorm {

// The arguments as kernels take them. If it is not centered, it is a normalization by the root mean square.
struct NormForward : LayerNormForward {
  bool centered = true;
};
struct NormBackward : LayerNormBackward {
  bool centered = true;
};
NormForward as_norm(const LayerNormForward& args);
NormForward as_norm(const RMSNormForward& args);
NormBackward as_norm(const LayerNormBackward& args);
NormBackward as_norm(const RMSNormBackward& args);

// A kernel of these arguments as one of an operation's own.
template <auto kernel, class Args>
void run_as_norm(const Context& context, const Args& args) {
  kernel(context, as_norm(args));
}

// Checks of the arguments, for the operation of that name.
NormForwardProblem forward_problem(std::string_view operation, const NormForward& args);
NormBackwardProblem backward_problem(std::string_view operation, const NormBackward& args);
// True if weight is fp32 and x has 16 bits; an Error if it is neither that nor of x's dtype.
bool has_fp32_parameters(std::string_view operation, DType dtype, const Tensor& weight);
// The K of kept_columns; −1 without. x has that dtype.
std::int64_t kept_columns(std::string_view operation, std::int64_t N, DType dtype, const Tensor& columns,
                          const Tensor& kept);

// The oracle's forward, which those of the fused operations end with.
void forward_reference(const Context& context, const NormForward& args);

// The vector kernels of CPUs: AVX2 comes with the conversions of fp16 (F16C).
inline constexpr DTypes kVectorDTypes{DType::f32, DType::bf16, DType::f16};

// Rows are cut into a number of parts that depends on N alone, so that the parameters' gradients have the
// same bits for any number of threads. Each part has a row of partial sums for dweight and one for dbias in
// the scratch.
inline constexpr std::int64_t kRowsPerPart = 32;
inline constexpr std::int64_t kMaxParts = 64;
std::int64_t backward_parts(std::int64_t N);
std::string parts_text(std::int64_t N);  // "64 parts"

// The scratch of the CPU's backward holds the sums and dx of kept columns for each part, and a row of
// 1/weight.
std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo& device);
std::string cpu_backward_parts(const NormBackwardProblem& p, const DeviceInfo& device);

// Writes kept_columns and kept, if there are any, from x, which is normalized; before anything is written
// over it.
void keep_lost_columns(const NormForward& args, const Tensor& x);

namespace cuda {

inline constexpr int kOneWarpThreads = 128;  // of a block whose warps have a row each

// The way to share out a row of 16-byte packs: each of `warps` warps, in each of `blocks` blocks, has up to
// 32 · `packs` of them. 0 warps: such a row does not fit, or is not made of whole packs.
struct RowShape {
  int packs = 0, warps = 0, blocks = 1;
  bool roomy = false;  // in backward: each thread has more registers, as few warps need them

  int threads() const { return warps == 1 ? kOneWarpThreads : 32 * warps; }  // of a block
};
std::string text_of(RowShape shape);  // "3 packs, 4 warps"

// If a block shares a row, forward's kernels of up to kFloatPacks packs a lane are for rows of up to
// kMostFloatRow packs, and so for so many warps.
inline constexpr int kFloatPacks = 5, kMostFloatRow = 1280;
constexpr int most_float_warps(int packs) {
  return (kMostFloatRow + 32 * packs - 1) / (32 * packs);
}
// `few`: among the few kernels that there are with fp32 parameters for 16 bits, and with a sum. In the others
// no pack but a thread's last lies after the row's end.
RowShape forward_shape(std::int64_t C, DType dtype, bool few);
// Why no kernel takes packs of a row in that shape.
Refusal refuse_shape(RowShape shape, bool aligned);

// True if a kernel that moves so much finds none of it in the second-level cache at its end.
bool leaves_caches(std::size_t bytes, const DeviceInfo& device);

}  // namespace cuda

}  // namespace warpwright::ops::layernorm
