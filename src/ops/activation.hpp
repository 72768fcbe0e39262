// The activations of a transformer's layers. Matmul applies them in its epilogue; GELU is also an operation
// of its own (ops/gelu).
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright::ops {

// gelu_tanh: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), used by GPT-2.
// gelu_erf: 0.5·x·(1 + erf(x/√2)), used by BERT.
// Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.
// relu: max(x, 0); its gradient at 0 is 0.
// tanh: used by poolers.
enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf, relu, tanh };

constexpr bool is_gelu(Activation activation) {
  return activation == Activation::gelu_tanh || activation == Activation::gelu_erf;
}

constexpr std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::relu:
      return "relu";
    case Activation::tanh:
      return "tanh";
    default:
      return "none";
  }
}

}  // namespace warpwright::ops
