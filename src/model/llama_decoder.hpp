// Llama, Mistral, Qwen2 and Qwen3 as Decoders.
#pragma once

#include <nlohmann/json.hpp>

#include "model/llama_config.hpp"
#include "model/transformer_decoder.hpp"

namespace warpwright {

class LlamaDecoder final : public TransformerDecoder {
 public:
  explicit LlamaDecoder(const LlamaConfig& config)
      : TransformerDecoder(config.description()), config_(config) {}

  const LlamaConfig& sizes() const { return config_; }
  nlohmann::json config(const BoundaryTokens& tokens) const override { return config_.to_json(tokens); }
  void validate(const std::string& where) const override { config_.validate(where); }

 private:
  LlamaConfig config_;
};

}  // namespace warpwright
