// Shared by the kernels of attention.
#pragma once

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention {

// Throws Error if the offsets do not meet the contract. Every CPU variant calls it first.
void check_sequences(std::string_view operation, const Tensor& cu_seqlens, std::int64_t elements);
void check_sequences(const AttentionForward& args);
void check_sequences(const AttentionBackward& args);

inline constexpr int kBlock = 64;         // queries, and keys, in a tile of scores
inline constexpr int kMaxHeadSize = 256;  // a thread's tiles then stay in a second-level cache of 2 MiB
inline constexpr int kSumRows = 16;  // rows of the fp32 sums of dk and dv are padded to a multiple of this
inline constexpr int kRowGroup = 8;  // rows of packed tiles are padded to a multiple of this

// Blocks of queries that share a tile of packed keys and values. The kernels of bf16 tiles need this because
// there packing is expensive compared with the products.
inline constexpr int kTileGroups = 4;

// Scratch of one thread for its packed tiles, in floats.
std::int64_t forward_scratch(std::int64_t HS);
std::int64_t backward_scratch(std::int64_t HS);
std::int64_t tiles_forward_scratch(std::int64_t HS);
std::int64_t tiles_backward_scratch(std::int64_t HS);
// The fp32 sums of dk and dv that one thread keeps, in floats. If there are more threads than key heads,
// each key head has its own sums instead.
std::int64_t gradient_sums(std::int64_t Nk, std::int64_t sequences, std::int64_t HS);

// Bytes of scratch that each CPU kernel needs for all threads.
std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device);
std::size_t tiles_forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device);
std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device);
std::size_t tiles_backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device);

Refusal refuse_large_heads(const AttentionForwardProblem& p, const DeviceInfo& device);
Refusal refuse_large_heads(const AttentionBackwardProblem& p, const DeviceInfo& device);
Refusal refuse_tiles(const AttentionForwardProblem& p, const DeviceInfo& device);
Refusal refuse_tiles(const AttentionBackwardProblem& p, const DeviceInfo& device);

// Places of the elements of bias or visible. A stride is 0 if the axis does not exist.
struct PairPlaces {
  std::int64_t sequence = 0, head = 0, row = 0, Lq = 0, Lk = 0;

  constexpr std::int64_t at(std::int64_t s, std::int64_t h, std::int64_t query, std::int64_t key) const {
    return s * sequence + h * head + query * row + key;
  }
};
PairPlaces places_of_bias(const Tensor& bias);
PairPlaces places_of_visible(const Tensor& visible);

// Refuses a bias and a mask for each sequence. Only a few kernels take them.
Refusal refuse_pairs(const AttentionForwardProblem& p);
Refusal refuse_pairs(const AttentionBackwardProblem& p);

// Refuses a window, for kernels whose queries see keys from the sequence's first on.
template <class Problem>
Refusal refuse_window(const Problem& p) {
  return p.window > 0 ? "takes no window" : "";
}

}  // namespace warpwright::ops::attention
