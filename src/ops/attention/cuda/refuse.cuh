// Why the kernels of a GPU do not run a problem, and which of them it is worth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {

// `bytes`: of shared memory for a block; 0 where there is no kernel for the head size.
inline Refusal refuse_shared(std::size_t bytes, std::int64_t HS, const DeviceInfo& device) {
  if (bytes == 0) return "no kernel for head size " + std::to_string(HS);
  return bytes <= device.gpu.shared_bytes_per_block ? ""
                                                    : "needs more shared memory than a block may ask for";
}

// Kernels on tensor cores copy tiles 16 bytes at a time, and take the largest product for the largest score.
template <class Problem>
Refusal refuse_tiles(const Problem& p) {
  if (!p.positive_scale) return "the scale is not positive";
  if (!p.layout.aligned) return "a row or a head does not begin at a multiple of 16 bytes";
  return refuse_pairs(p);
}

// What the tensor copy engine of Hopper cannot read.
template <class Problem>
Refusal refuse_boxes(const Problem& p) {
  if (Refusal refusal = refuse_tiles(p)) return refusal;
  if (p.Nq == 0 || p.Nk == 0) return "there are no queries or no keys";
  if (!p.layout.distinct) return "the stride of a row or a head is not positive";
  return flash_sm90_is_built() ? "" : "the build has no code for sm_90a";
}

// Queries of all heads for each multiprocessor, and whether sequences have fewer rows than `mean`: these
// decide between kernels with few large tiles and those with many small ones.
inline std::int64_t queries_each(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return p.Nq * p.NH / std::max(device.gpu.multiprocessors, 1);
}
inline bool shorter_than(const AttentionForwardProblem& p, std::int64_t mean) {
  return std::max(p.Nq, p.Nk) <= mean * p.sequences;
}
inline constexpr std::int64_t kLargeTile = 192;  // queries of flash_sm90's

// Two floats a query and head for the backward: its lse and D.
inline std::size_t statistics_bytes(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return 2 * sizeof(float) * static_cast<std::size_t>(p.NH * p.Nq);
}

}  // namespace warpwright::ops::attention::cuda
