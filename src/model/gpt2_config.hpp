// The shape of a GPT-2 and where it comes from: a name, flags, or a Hugging Face config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "model/boundary_tokens.hpp"
#include "model/transformer.hpp"
#include "ops/activation.hpp"

namespace warpwright {

struct GPT2Config {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  std::int64_t vocab = 50257;
  std::int64_t context = 1024;  // most positions in a sequence
  ops::Activation activation = ops::Activation::gelu_tanh;
  float eps = 1e-5f;  // of layer normalization

  bool operator==(const GPT2Config&) const = default;

  std::int64_t head_size() const { return channels / heads; }
  TransformerDescription description() const;

  // Throws Error, naming the place the sizes come from, for sizes that cannot be.
  void validate(const std::string& where) const;

  // "124M", "355M", "774M", "1558M" (GPT-2's four sizes) or "dN" (N layers: GPT-2's width where it has that
  // depth, else 64·N channels in N heads).
  static GPT2Config named(std::string_view name);
  static GPT2Config from_json(const nlohmann::json& json, const std::string& where);
  nlohmann::json to_json(const BoundaryTokens& tokens) const;
};

}  // namespace warpwright
