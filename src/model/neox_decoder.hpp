// GPT-NeoX as a Decoder.
#pragma once

#include <nlohmann/json.hpp>

#include "model/neox_config.hpp"
#include "model/transformer_decoder.hpp"

namespace warpwright {

class NeoxDecoder final : public TransformerDecoder {
 public:
  explicit NeoxDecoder(const NeoxConfig& config)
      : TransformerDecoder(config.description()), config_(config) {}

  nlohmann::json config(const BoundaryTokens& tokens) const override { return config_.to_json(tokens); }
  void validate(const std::string& where) const override { config_.validate(where); }

 private:
  NeoxConfig config_;
};

}  // namespace warpwright
