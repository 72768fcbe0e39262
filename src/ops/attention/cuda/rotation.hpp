// The backward of flash_sm90 with a rotation in it, for rotated_attention: dq and dk are rotated back while
// they are stored.
#pragma once

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention::cuda {

// Rotates each row by the angles of its position, as ops/rope says. No positions: no rotation.
struct RotationBack {
  const std::int32_t* positions = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // (P, HS/2)
  unsigned long long* wrong = nullptr;         // −1 is the largest number
  std::int64_t P = 0;
};

void flash_sm90_backward(const Context& context, const AttentionBackward& args, const RotationBack& rotation);
Refusal refuse_flash_sm90(const AttentionBackwardProblem& p, const DeviceInfo& device);
std::size_t flash_sm90_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device);

}  // namespace warpwright::ops::attention::cuda
