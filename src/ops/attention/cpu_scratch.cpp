// Refusals and scratch of the CPU's kernels. This file is compiled for every x86.
#include <fmt/format.h>

#include <algorithm>

#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention {
namespace {

std::int64_t padded_head(std::int64_t HS) {  // to a multiple of the longest vector
  return (HS + 15) / 16 * 16;
}

std::size_t floats(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(float);
}

// The sums of all threads, or of all key heads if there are fewer of these.
std::int64_t all_gradient_sums(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return std::min<std::int64_t>(device.threads, p.KH) * gradient_sums(p.Nk, p.sequences, p.HS);
}

Refusal head_refusal(std::int64_t HS) {
  if (HS <= kMaxHeadSize) return "";
  return fmt::format("head size above {}", kMaxHeadSize);
}

}  // namespace

Refusal refuse_large_heads(const AttentionForwardProblem& p, const DeviceInfo&) {
  return head_refusal(p.HS);
}
Refusal refuse_large_heads(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return head_refusal(p.HS);
}

Refusal refuse_tiles(const AttentionForwardProblem& p, const DeviceInfo& device) {
  if (p.HS % 32 != 0) return "head size is not a multiple of 32";
  if (Refusal refusal = refuse_pairs(p)) return refusal;
  return refuse_large_heads(p, device);
}
Refusal refuse_tiles(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return p.HS % 32 == 0 ? refuse_large_heads(p, device) : "head size is not a multiple of 32";
}

std::int64_t forward_scratch(std::int64_t HS) {
  return 4 * kBlock * padded_head(HS) + kBlock * kBlock + 3 * kBlock;
}
std::int64_t backward_scratch(std::int64_t HS) {
  return 7 * kBlock * padded_head(HS) + 2 * kBlock * kBlock + 2 * kBlock;
}
std::int64_t tiles_forward_scratch(std::int64_t HS) {
  const std::int64_t packed = HS / 2 * kBlock;  // bf16 elements of a block, in floats
  return kTileGroups * (3 * packed + 2 * kBlock) + 3 * packed + kBlock * kBlock + kBlock * kBlock / 2;
}
std::int64_t tiles_backward_scratch(std::int64_t HS) {
  const std::int64_t packed = HS / 2 * kBlock;
  return kTileGroups * (6 * packed + 2 * kBlock) + 4 * packed + 2 * kBlock * kBlock +
         3 * (kBlock * kBlock / 2);
}
std::int64_t gradient_sums(std::int64_t Nk, std::int64_t sequences, std::int64_t HS) {
  return 2 * (Nk + kSumRows * sequences) * padded_head(HS);
}

std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return floats(device.threads * forward_scratch(p.HS));
}
std::size_t tiles_forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return floats(device.threads * tiles_forward_scratch(p.HS));
}
std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return floats(device.threads * backward_scratch(p.HS) + all_gradient_sums(p, device));
}
std::size_t tiles_backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  return floats(device.threads * tiles_backward_scratch(p.HS) + all_gradient_sums(p, device));
}

}  // namespace warpwright::ops::attention
