// config.json: what is refused before anything is allocated or read.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/bert_config.hpp"
#include "model/decoder_files.hpp"
#include "model/gpt2_files.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const json kGpt2 = {{"model_type", "gpt2"}, {"n_layer", 1},     {"n_head", 1},
                    {"n_embd", 4},          {"vocab_size", 10}, {"n_positions", 8}};
const json kBert = {
    {"model_type", "bert"},   {"num_hidden_layers", 1}, {"num_attention_heads", 1},    {"hidden_size", 4},
    {"intermediate_size", 8}, {"vocab_size", 10},       {"max_position_embeddings", 8}};

std::string gpt2_error(const std::string& key, const json& value) {
  json config = kGpt2;
  config[key] = value;
  return message_of([&] { GPT2Config::from_json(config, "config.json"); });
}
std::string bert_error(const std::string& key, const json& value) {
  json config = kBert;
  config[key] = value;
  return message_of([&] { BertConfig::from_json(config, "config.json"); });
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Config, SizesCannotOverflow) {
  EXPECT_EQ(gpt2_error("n_inner", 16), "no error");
  EXPECT_MENTIONS(gpt2_error("n_inner", 17), "\"n_inner\" is 17, only 16");
  for (const json& size :
       {json(INT64_MAX), json(INT64_MIN), json(UINT64_MAX), json(std::uint64_t{1} << 63)}) {
    for (const char* key : {"n_layer", "n_head", "n_embd", "vocab_size", "n_positions"}) {
      json config = kGpt2;
      config[key] = size;
      config["n_inner"] = size;
      EXPECT_MENTIONS(message_of([&] { GPT2Config::from_json(config, "config.json"); }), " is ");
    }
    for (const char* key :
         {"num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size",
          "max_position_embeddings", "type_vocab_size", "pad_token_id", "num_labels"}) {
      EXPECT_MENTIONS(bert_error(key, size), " is ");
    }
  }
  EXPECT_MENTIONS(gpt2_error("n_embd", UINT64_MAX), "\"n_embd\" is 18446744073709551615");
  EXPECT_MENTIONS(gpt2_error("layer_norm_epsilon", 1e300), "layer_norm_epsilon is 1e+300");
  EXPECT_MENTIONS(bert_error("layer_norm_eps", 1e300), "layer_norm_eps is 1e+300");
}

TEST(Config, FieldsOfAnotherTypeAreRefused) {
  for (const json& value : {json("x"), json(1.5), json::array(), json::object()}) {
    for (const char* key :
         {"is_decoder", "add_cross_attention", "layer_norm_eps", "num_labels", "pad_token_id"}) {
      EXPECT_MENTIONS(bert_error(key, value), key);
    }
  }
  for (const json& value : {json(3), json(true), json::array({"relative_key"}), json::object()}) {
    for (const char* key : {"hidden_act", "position_embedding_type"})
      EXPECT_MENTIONS(bert_error(key, value), key);
  }
  for (const char* key :
       {"is_decoder", "layer_norm_eps", "hidden_act", "position_embedding_type", "num_labels"}) {
    EXPECT_EQ(bert_error(key, nullptr), "no error") << key;
  }
  EXPECT_MENTIONS(bert_error("id2label", 7), "id2label");
}

TEST(Config, AnotherArchitectureIsReportedAsSuch) {
  const std::string llama = "config.json: model_type llama; this version runs gpt2, bert, roberta";
  EXPECT_EQ(gpt2_error("model_type", "llama").substr(0, llama.size()), llama);
  EXPECT_EQ(bert_error("model_type", "llama").substr(0, llama.size()), llama);
  EXPECT_MENTIONS(gpt2_error("model_type", "bert"), "model_type bert is an encoder; this command runs gpt2");
  EXPECT_MENTIONS(bert_error("model_type", "gpt2"), "model_type gpt2 is a decoder; this command runs bert");
  EXPECT_MENTIONS(gpt2_error("model_type", std::string(1 << 16, 'x')), "model_type \"xxx");
  EXPECT_LT(gpt2_error("model_type", std::string(1 << 16, 'x')).size(), 300u);
  EXPECT_MENTIONS(bert_error("model_type", 3), "not a string");
  EXPECT_EQ(gpt2_error("model_type", nullptr), "no error");
  EXPECT_MENTIONS(bert_error("model_type", nullptr), "missing");
}

// No weights are in these folders: nothing but config.json is looked at.
TEST_F(TestFolder, AnotherArchitectureIsReportedBeforeItsWeights) {
  put("config.json", R"({"model_type": "llama", "n_layer": 2})");
  EXPECT_MENTIONS(message_of([&] { stored_dtype(folder); }), "model_type llama");
  EXPECT_MENTIONS(message_of([&] { load_weights(folder, DType::f32); }), "model_type llama");
}

}  // namespace
}  // namespace warpwright
