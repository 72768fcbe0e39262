// GPT-2 as a Decoder.
#pragma once

#include <nlohmann/json.hpp>

#include "model/gpt2_config.hpp"
#include "model/transformer_decoder.hpp"

namespace warpwright {

class GPT2Decoder final : public TransformerDecoder {
 public:
  explicit GPT2Decoder(const GPT2Config& config)
      : TransformerDecoder(config.description()), config_(config) {}

  const GPT2Config& sizes() const { return config_; }
  nlohmann::json config(const BoundaryTokens& tokens) const override { return config_.to_json(tokens); }
  void validate(const std::string& where) const override { config_.validate(where); }
  // Besides folders, llm.c's files.
  DType stored_dtype(const std::filesystem::path& source) const override;
  void load(const std::filesystem::path& source, const ParameterWriter& write) const override;

 private:
  GPT2Config config_;
};

}  // namespace warpwright
