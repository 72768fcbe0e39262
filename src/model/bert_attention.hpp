// The changes that a call may make to the attention of all layers: a bias, a mask for each pair, the
// temperature.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "model/bert_config.hpp"

namespace warpwright {

// Scores that fp16 holds stay finite in fp32 when they are divided by this.
inline constexpr float kLeastTemperature = 1e-30f;

// Query i of a sequence sees key j with the score q_i·k_j / (√HS · temperature) + bias_ij, unless mask_ij is
// 0. A query that sees no key gets 0. i and j count a sequence's tokens in the batch. L is at least the
// number of tokens of every sequence. Both tensors are on the encoder's device and stay as they are until the
// call's work is done. On a GPU, rows that begin at multiples of 16 bytes are faster.
struct BertAttention {
  Tensor bias{};  // (NH, L, L) for all sequences or (S, NH, L, L), of the weights' dtype; may be missing
  Tensor mask{};  // (S, 1, L, L), see ops/padding/mask.hpp; may be missing
  float temperature = 1;  // at least kLeastTemperature, and finite

  bool changes_anything() const { return bias || mask || temperature != 1; }
};

inline constexpr const char* kMaskArgument = "attention_mask";

// Throws Error if they do not fit S sequences of at most `longest` tokens.
void check_attention(const BertConfig& config, DType dtype, Device device, std::int64_t S,
                     std::int64_t longest, const BertAttention& attention);

// Throws Error if a bias in the host's memory holds NaN or +inf, with which no score is a number. −inf is the
// bias of a pair that is not seen.
void require_bias_values(const std::string& where, const Tensor& bias);

}  // namespace warpwright
