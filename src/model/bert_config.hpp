// The shape of a BERT-family encoder and of what follows it, from a Hugging Face folder: config.json, and
// sentence-transformers' modules.json with the folders it names.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ops/activation.hpp"
#include "ops/pooling/pooling.hpp"

namespace warpwright {

struct BertConfig {
  // roberta: RoBERTa, XLM-RoBERTa and CamemBERT, whose positions begin after the padding's.
  enum class Family : std::uint8_t { bert, roberta };

  Family family = Family::bert;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocab = 0;
  std::int64_t positions = 512;  // rows of the position embedding
  std::int64_t types = 2;        // rows of the token-type embedding
  std::int64_t padding_token = 0;
  std::int64_t labels = 2;  // of the classification head, if the folder has one
  ops::Activation activation = ops::Activation::gelu_erf;
  float eps = 1e-12f;

  std::int64_t head_size() const { return hidden / heads; }
  // The first token's row of the position embedding.
  std::int64_t first_position() const { return family == Family::roberta ? padding_token + 1 : 0; }
  // Tokens in a sequence.
  std::int64_t max_length() const { return positions - first_position(); }
  double flops(const std::vector<std::int64_t>& lengths) const;  // of a batch of such sequences

  // Throws Error, naming `where`, for what no encoder has.
  void validate(const std::string& where) const;
  static BertConfig from_json(const nlohmann::json& json, const std::string& where);
  // "bert-base", "bert-large" or "minilm" (all-MiniLM-L6-v2); UsageError for anything else.
  static BertConfig named(std::string_view name);
  bool operator==(const BertConfig&) const = default;
};

// A linear layer after the pooling.
struct BertDense {
  std::filesystem::path folder;
  std::int64_t in = 0, out = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::tanh;
};

// From the last hidden states to a vector.
struct BertPooling {
  ops::Pooling kind = ops::Pooling::mean;
  std::vector<BertDense> dense;
  bool normalize = false;
  bool include_prompt = true;   // false: a prompt's tokens are left out of the pooling
  std::int64_t max_length = 0;  // tokens in a text, special ones included; 0: not stated
};

BertConfig read_bert_config(const std::filesystem::path& folder);
// Mean pooling if the folder does not say.
BertPooling read_bert_pooling(const std::filesystem::path& folder, const BertConfig& config);

}  // namespace warpwright
