// The activations of a transformer's feed-forward layer, as an operation of their own (ops/gelu) and as an
// epilogue of matmul.
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright::ops {

// gelu_tanh: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), GPT-2's; gelu_erf: 0.5·x·(1 + erf(x/√2)), BERT's.
// Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.
enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf };

constexpr std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    default:
      return "none";
  }
}

}  // namespace warpwright::ops
