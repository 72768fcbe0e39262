// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention {

void forward_reference(const Context& context, const AttentionForward& args);
void backward_reference(const Context& context, const AttentionBackward& args);

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

namespace avx2 {
void forward(const Context& context, const AttentionForward& args);
void backward(const Context& context, const AttentionBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const AttentionForward& args);
void backward(const Context& context, const AttentionBackward& args);
}  // namespace avx512

namespace amx_bf16 {
void forward(const Context& context, const AttentionForward& args);
void backward(const Context& context, const AttentionBackward& args);
}  // namespace amx_bf16

namespace cuda {

// Shared memory that a block of the variant's kernels takes; 0 where there is none for the head size.
std::size_t flash_shared_bytes(std::int64_t HS, bool backward);
std::size_t flash_short_shared_bytes(std::int64_t HS, bool backward);
std::size_t flash_tf32_shared_bytes(std::int64_t HS, bool backward);
std::size_t flash_fma_shared_bytes(std::int64_t HS, bool backward);

// Whether this build has the code of flash_sm90, which takes head sizes 64 and 128; its workspace.
bool flash_sm90_is_built();
std::size_t flash_sm90_forward_workspace();
std::size_t flash_sm90_backward_workspace(std::int64_t Nq, std::int64_t NH, std::int64_t sequences);

void flash_sm90_forward(const Context& context, const AttentionForward& args);
void flash_packed_forward(const Context& context, const AttentionForward& args);
void flash_sm90_backward(const Context& context, const AttentionBackward& args);
void flash_forward(const Context& context, const AttentionForward& args);
void flash_short_forward(const Context& context, const AttentionForward& args);
void flash_backward(const Context& context, const AttentionBackward& args);
void flash_tf32_forward(const Context& context, const AttentionForward& args);
void flash_tf32_backward(const Context& context, const AttentionBackward& args);
void flash_fma_forward(const Context& context, const AttentionForward& args);
void flash_fma_backward(const Context& context, const AttentionBackward& args);

// Of the variants that store the scores: keys in a row of them, and scratch.
inline constexpr std::int64_t kMostKeysInRegisters = 1024;
std::int64_t most_keys(const AttentionForwardProblem& p);
std::int64_t most_keys(const AttentionBackwardProblem& p);
std::size_t staged_forward_bytes(const AttentionForwardProblem& p);
std::size_t staged_backward_bytes(const AttentionBackwardProblem& p);

void staged_forward(const Context& context, const AttentionForward& args);
void staged_registers_forward(const Context& context, const AttentionForward& args);
void staged_shared_forward(const Context& context, const AttentionForward& args);
void staged_backward(const Context& context, const AttentionBackward& args);

}  // namespace cuda

}  // namespace warpwright::ops::attention
