// Refusals of the GPU's kernels, and conditions for their costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {

// `bytes`: shared memory per block; 0 if there is no kernel for the head size.
inline Refusal refuse_shared(std::size_t bytes, std::int64_t HS, const DeviceInfo& device) {
  if (bytes == 0) return "no kernel for head size " + std::to_string(HS);
  return bytes <= device.gpu.shared_bytes_per_block ? ""
                                                    : "needs more shared memory than a block may ask for";
}

// For kernels in which a query head sees the key head of its own number.
template <class Problem>
Refusal refuse_groups(const Problem& p) {
  return p.KH == p.NH ? "" : "takes only as many key heads as query heads";
}

// The tensor-core kernels copy tiles 16 bytes at a time, and they assume that the largest product gives the
// largest score.
template <class Problem>
Refusal refuse_tiles(const Problem& p) {
  if (!p.positive_scale) return "the scale is not positive";
  if (!p.layout.aligned) return "a row or a head does not begin at a multiple of 16 bytes";
  return refuse_pairs(p);
}

// Refuses tensors that Hopper's tensor copy engine cannot read.
template <class Problem>
Refusal refuse_boxes(const Problem& p) {
  if (Refusal refusal = refuse_tiles(p)) return refusal;
  if (p.Nq == 0 || p.Nk == 0) return "there are no queries or no keys";
  return p.layout.distinct ? "" : "the stride of a row or a head is not positive";
}

// The number of queries of all heads per multiprocessor, and whether sequences have at most `mean` rows on
// average. These decide between kernels with few large tiles and kernels with many small ones.
inline std::int64_t queries_each(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return p.Nq * p.NH / std::max(device.gpu.multiprocessors, 1);
}
inline bool shorter_than(const AttentionForwardProblem& p, std::int64_t mean) {
  return std::max(p.Nq, p.Nk) <= mean * p.sequences;
}
inline constexpr std::int64_t kLargeTile = 192;  // queries in a tile of flash_sm90

// Two floats per query and head for the backward: lse and D.
inline std::size_t statistics_bytes(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return 2 * sizeof(float) * static_cast<std::size_t>(p.NH * p.Nq);
}

}  // namespace warpwright::ops::attention::cuda
