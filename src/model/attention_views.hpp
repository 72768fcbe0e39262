// Helpers that every network with attention uses.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/tensor.hpp"

namespace warpwright {

inline float attention_scale(std::int64_t head_size) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_size)));
}

// (N, NH, HS) of q, k or v
inline Tensor part(const Tensor& qkv, int index) {
  return qkv.select(1, index);
}

// (N, NH, HS) or (N, 3, NH, HS) as the matrix (N, …) that a linear layer reads or writes.
inline Tensor matrix(const Tensor& t) {
  return t.view({t.shape[0], t.shape[0] ? t.elements() / t.shape[0] : t.strides[0]});
}

}  // namespace warpwright
