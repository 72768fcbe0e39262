// What the kernels of attention share.
#pragma once

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention {

// Throws where cu_seqlens are not what the contract says; every CPU variant begins with it.
void check_sequences(std::string_view operation, const Tensor& cu_seqlens, std::int64_t elements);
void check_sequences(const AttentionForward& args);
void check_sequences(const AttentionBackward& args);

inline constexpr int kBlock = 64;         // queries, and keys, of a tile of scores
inline constexpr int kMaxHeadSize = 256;  // a thread's tiles stay in a 2 MiB second-level cache
inline constexpr int kSumRows = 16;  // rows of the fp32 sums of dk and dv are padded to a multiple of this
inline constexpr int kRowGroup = 8;  // rows of packed tiles are padded to a multiple of this

// Blocks of queries that share a tile of packed keys and values where packing is dear beside the products.
inline constexpr int kAmxGroups = 4;

// Scratch, in floats, of one thread: its packed tiles.
std::int64_t forward_scratch(std::int64_t HS);
std::int64_t backward_scratch(std::int64_t HS);
std::int64_t amx_forward_scratch(std::int64_t HS);
std::int64_t amx_backward_scratch(std::int64_t HS);
// The sums of dk and dv that a thread (or, where there are more threads than heads, a head) keeps in fp32.
std::int64_t gradient_sums(std::int64_t Nk, std::int64_t sequences, std::int64_t HS);

// What each CPU kernel needs for all threads.
std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device);
std::size_t amx_forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device);
std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device);
std::size_t amx_backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device);

Refusal refuse_large_heads(const AttentionForwardProblem& p, const DeviceInfo& device);
Refusal refuse_large_heads(const AttentionBackwardProblem& p, const DeviceInfo& device);
Refusal refuse_amx(const AttentionForwardProblem& p, const DeviceInfo& device);
Refusal refuse_amx(const AttentionBackwardProblem& p, const DeviceInfo& device);

// Refused by all but a few kernels: a bias and a mask for each sequence.
Refusal refuse_pairs(const AttentionForwardProblem& p);
Refusal refuse_pairs(const AttentionBackwardProblem& p);

namespace cuda {

// Whether this build has code for sm_90a.
bool flash_sm90_is_built();

}  // namespace cuda

}  // namespace warpwright::ops::attention
