// The description of a Llama, a Mistral, a Qwen2 or a Qwen3, and where it comes from: a name or a Hugging
// Face config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/boundary_tokens.hpp"
#include "model/transformer.hpp"

namespace warpwright {

// Which config.json it has. Mistral and Qwen2 fix the biases: Mistral has none, Qwen2 those of q, k and v.
// Qwen3 has QK norm.
enum class LlamaFamily : std::uint8_t { llama, mistral, qwen2, qwen3 };
std::string_view name_of(LlamaFamily family);

struct LlamaConfig {
  LlamaFamily family = LlamaFamily::llama;
  std::int64_t layers = 0, channels = 0;
  std::int64_t heads = 0, key_heads = 0, head_size = 0;
  std::int64_t hidden = 0;  // of the MLP
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // most positions in a sequence
  std::int64_t window = 0;   // the number of last keys that a query sees in layers with a window; 0: none
  std::vector<bool> window_layers = {};  // whether each layer has the window; empty: all of them
  float eps = 1e-6f;                     // of RMS normalization
  bool attention_bias = false, mlp_bias = false;
  bool tied_head = false;
  ops::RopeAngles rope;
  ops::GateActivation activation = ops::GateActivation::silu;

  bool operator==(const LlamaConfig&) const = default;

  TransformerDescription description() const;
  // The description's. A window as long as the context hides nothing and counts as none.
  std::vector<std::int64_t> windows() const;
  // Throws Error, naming the place the sizes come from, for sizes that cannot be.
  void validate(const std::string& where) const;

  // The sizes of a known model, "smollm2:135M"; nothing for a name that is not one of names().
  static std::optional<LlamaConfig> named(std::string_view name);
  static std::vector<std::string> names();
  // Fields that this version does not compute are refused by name and value, and so are unknown ones.
  static LlamaConfig from_json(LlamaFamily family, const nlohmann::json& json, const std::string& where);
  nlohmann::json to_json(const BoundaryTokens& tokens) const;
};

}  // namespace warpwright
