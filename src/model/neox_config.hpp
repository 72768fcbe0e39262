// The description of a GPT-NeoX, such as Pythia, from a Hugging Face config.json.
// Source: S. Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", arXiv:2204.06745.
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

struct NeoxConfig {
  std::int64_t layers = 0, channels = 0, heads = 0;
  std::int64_t hidden = 0;  // of the MLP
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // most positions in a sequence
  float eps = 1e-5f;         // of layer normalization
  bool attention_bias = true;
  bool parallel = true;  // attention and MLP read the same input
  bool tied_head = false;
  ops::RopeAngles rope;
  ops::Activation activation = ops::Activation::gelu_erf;

  // A size of Pythia, such as "pythia:70M"; nothing if there is none.
  static std::optional<NeoxConfig> named(std::string_view name);
  static std::vector<std::string> names();

  TransformerDescription description() const;
  // Throws Error, naming the place the sizes come from, for sizes that cannot be.
  void validate(const std::string& where) const;

  // Fields that this version does not compute are refused by name and value, and so are unknown ones.
  static NeoxConfig from_json(const nlohmann::json& json, const std::string& where);
  nlohmann::json to_json(const BoundaryTokens& tokens) const;
};

}  // namespace warpwright
