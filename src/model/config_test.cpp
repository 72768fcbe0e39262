// config.json: what is refused before anything is allocated or read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/bert_config.hpp"
#include "model/config_fields.hpp"
#include "model/decoder_files.hpp"
#include "model/families.hpp"
#include "model/gpt2_config.hpp"
#include "model/llama_decoder.hpp"
#include "model/neox_config.hpp"
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

const json kLlama = {{"model_type", "llama"},    {"num_hidden_layers", 1},
                     {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                     {"hidden_size", 8},         {"intermediate_size", 12},
                     {"vocab_size", 10},         {"rms_norm_eps", 1e-5},
                     {"hidden_act", "silu"},     {"tie_word_embeddings", true},
                     {"rope_theta", 10000.0},    {"max_position_embeddings", 8}};

std::string error_of(json config, const std::string& key, const json& value) {
  config[key] = value;
  return message_of([&] { decoder_of_config(config, "config.json"); });
}
std::string gpt2_error(const std::string& key, const json& value) {
  return error_of(kGpt2, key, value);
}
std::string llama_error(const std::string& key, const json& value) {
  return error_of(kLlama, key, value);
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

// Every field that is read, with values that it cannot have.
TEST(Config, LlamaRefusesWhatItDoesNotComputeByNameAndValue) {
  EXPECT_EQ(llama_error("vocab_size", 11), "no error");
  for (const char* key : {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size",
                          "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const json& size : {json(0), json(-1), json(INT64_MAX), json(UINT64_MAX), json("4"), json(1.5)})
      EXPECT_MENTIONS(llama_error(key, size), key);
  }
  EXPECT_MENTIONS(llama_error("num_key_value_heads", 3), "3 key heads do not divide 4 heads");
  EXPECT_MENTIONS(llama_error("head_dim", 3), "head_dim is 3");
  EXPECT_MENTIONS(llama_error("hidden_act", "relu"), "\"hidden_act\" is \"relu\"");
  EXPECT_EQ(llama_error("partial_rotary_factor", 1.0), "no error");
  EXPECT_MENTIONS(llama_error("partial_rotary_factor", 0.99), "rotates 1 of 2 elements of a head");
  EXPECT_MENTIONS(llama_error("pretraining_tp", 2), "\"pretraining_tp\" is 2, only 1");
  EXPECT_MENTIONS(llama_error("num_local_experts", 8), "\"num_local_experts\" is 8");
  EXPECT_MENTIONS(llama_error("attn_logit_softcapping", 50.0), "\"attn_logit_softcapping\" is 50.0");
  EXPECT_MENTIONS(llama_error("quantization_config", {{"bits", 4}}), "quantization_config");
  EXPECT_MENTIONS(llama_error("rms_norm_eps", 0), "rms_norm_eps is 0");
  EXPECT_MENTIONS(llama_error("rms_norm_eps", 1e-60), "rms_norm_eps is 1e-60");  // 0 as a float
  EXPECT_MENTIONS(llama_error("use_mrope", true), "\"use_mrope\" is true, only false");
  EXPECT_EQ(llama_error("use_mrope", false), "no error");
  EXPECT_EQ(llama_error("quantization_config", nullptr), "no error");
  EXPECT_MENTIONS(llama_error("layer_types", {"full_attention", "full_attention"}),
                  "layer_types");  // of 1 layer
  EXPECT_MENTIONS(llama_error("model_type", nullptr), "\"model_type\" is missing");
  EXPECT_MENTIONS(llama_error("layer_types", {"full_attention", "sliding_attention"}), "layer_types");
}

TEST(Config, LlamaReadsEveryScalingAndRefusesOthers) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 4}};
  json config = kLlama;
  for (const json& scaling :
       {json(), json{{"rope_type", "default"}}, json{{"type", "linear"}, {"factor", 2.0}}, llama3,
        json{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4}}}) {
    config["rope_scaling"] = scaling;
    const LlamaConfig read = LlamaConfig::from_json(LlamaFamily::llama, config, "config.json");
    EXPECT_EQ(LlamaConfig::from_json(LlamaFamily::llama, read.to_json({}), "again"), read) << scaling;
  }
  // Transformers 5 puts theta there, too.
  json parameters = llama3;
  parameters["rope_theta"] = 77.0;
  config = kLlama;
  config["rope_parameters"] = parameters;
  EXPECT_EQ(LlamaConfig::from_json(LlamaFamily::llama, config, "config.json").rope.theta, 77.0);
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "longrope"}}), "\"rope_type\" is \"longrope\"");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta", 1}}),
                  "\"beta\" is 1, a field that rope_type linear does not have");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "linear"}, {"factor", "2"}}), "factor");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}), "factor");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "linear"}}), "\"factor\" is missing");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}),
                  "\"original_max_position_embeddings\" is missing");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "yarn"},
                                               {"factor", 2.0},
                                               {"original_max_position_embeddings", 4},
                                               {"truncate", nullptr}}),
                  "\"truncate\" is null");
  EXPECT_MENTIONS(llama_error("rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2.0}}),
                  "\"type\" is \"yarn\", and rope_type is \"linear\"");
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};  // and rope_parameters
  const std::string differ = message_of([&] { decoder_of_config(config, "config.json"); });
  EXPECT_MENTIONS(differ, "\"rope_scaling\" is {\"factor\":2.0,\"rope_type\":\"linear\"}");
  EXPECT_MENTIONS(differ, "\"rope_parameters\", which says something else, is {\"factor\":8.0,");
  config["rope_scaling"] = config["rope_parameters"];
  EXPECT_NO_THROW(decoder_of_config(config, "config.json"));
  EXPECT_MENTIONS(llama_error("rope_scaling", 3), "not an object");
  EXPECT_MENTIONS(llama_error("rope_theta", 0.5), "theta");
}

// rope_scaling takes the theta outside it, as transformers does.
TEST(Config, RopeScalingAndRopeParametersMaySayTheSameInOtherWords) {
  const auto error_with = [](const json& scaling, const json& parameters, double theta) {
    json config = kLlama;
    config.update({{"rope_scaling", scaling}, {"rope_parameters", parameters}, {"rope_theta", theta}});
    return message_of([&] { decoder_of_config(config, "config.json"); });
  };
  const json old_linear = {{"type", "linear"}, {"factor", 2}};
  const json linear = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 500.0}};
  const json plain = {{"rope_theta", 500.0}, {"rope_type", "default"}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(error_with(old_linear, linear, 500), "no error");
  EXPECT_EQ(error_with(linear, old_linear, 500), "no error");
  EXPECT_EQ(error_with({{"rope_theta", 500}}, plain, 10000), "no error");
  EXPECT_EQ(error_with(json::object(), plain, 500), "no error");
  EXPECT_MENTIONS(error_with(old_linear, linear, 10000), "says something else");
  EXPECT_MENTIONS(error_with(old_linear, plain, 500), "says something else");
  EXPECT_MENTIONS(error_with(linear, {{"rope_type", "yarn"}}, 500), "\"factor\" is missing");
}

TEST(Config, OtherFamiliesGiveTheirKeyHeads) {
  EXPECT_EQ(llama_error("num_key_value_heads", nullptr), "no error");  // as many as query heads
  json config = kLlama;
  config.erase("num_key_value_heads");
  for (const char* family : {"mistral", "qwen2", "qwen3"})
    EXPECT_MENTIONS(error_of(config, "model_type", family), "\"num_key_value_heads\" is missing");
  json qwen2 = kLlama;
  qwen2["model_type"] = "qwen2";
  EXPECT_MENTIONS(error_of(qwen2, "attention_bias", false), "\"attention_bias\" is false, only true");
}

using Windows = std::vector<std::int64_t>;

// The windows of a config of three layers and a context of 8, which are also those of what is written.
Windows windows_with(const char* family, const json& changes) {
  json config = kLlama;
  config.update({{"model_type", family}, {"num_hidden_layers", 3}, {"head_dim", 2}});
  config.update(changes);
  const std::shared_ptr<const Decoder> decoder = decoder_of_config(config, "config.json");
  const auto windows_of = [](const Decoder& read) {
    return dynamic_cast<const LlamaDecoder&>(read).description().windows;
  };
  const json written = decoder->config({});
  const std::shared_ptr<const Decoder> again = decoder_of_config(written, "again");
  EXPECT_EQ(windows_of(*again), windows_of(*decoder)) << written;
  EXPECT_EQ(again->config({}), written);
  return windows_of(*decoder);
}

TEST(Config, MistralHasOneWindow) {
  const auto windows = [](const json& changes) { return windows_with("mistral", changes); };
  EXPECT_EQ(windows({{"sliding_window", nullptr}}), Windows());
  EXPECT_EQ(windows({{"sliding_window", 5}}), Windows({5, 5, 5}));
  for (const std::int64_t longer : {std::int64_t{8}, std::int64_t{9}, INT64_MAX})
    EXPECT_EQ(windows({{"sliding_window", longer}}), Windows());
  EXPECT_EQ(windows(json::object()), Windows());  // 4096
  EXPECT_EQ(windows({{"max_position_embeddings", 4097}}), Windows({4096, 4096, 4096}));
  const json sliding(3, "sliding_attention"), full(3, "full_attention");
  EXPECT_EQ(windows({{"sliding_window", 5}, {"layer_types", sliding}}), Windows({5, 5, 5}));
  EXPECT_EQ(windows({{"sliding_window", nullptr}, {"layer_types", full}}), Windows());
  EXPECT_EQ(windows({{"sliding_window", 9}, {"layer_types", full}}), Windows());
  const json written = named_decoder("mistral0.1:7B")->config({});
  EXPECT_EQ(written["sliding_window"], 4096);
  EXPECT_FALSE(written.contains("layer_types"));
  EXPECT_EQ(named_decoder("mistral0.1:7B", 0, 4096)->config({})["sliding_window"], nullptr);
  EXPECT_EQ(named_decoder("mistral:7B")->config({})["sliding_window"], nullptr);
}

TEST(Config, QwenHasWindowsInSomeLayers) {
  const json full = {"full_attention", "full_attention", "full_attention"};
  const json mixed = {"sliding_attention", "full_attention", "sliding_attention"};
  for (const char* family : {"qwen2", "qwen3"}) {
    const auto windows = [&](const json& changes) { return windows_with(family, changes); };
    EXPECT_EQ(windows({{"sliding_window", 5}, {"max_window_layers", 0}}), Windows());  // no switch
    EXPECT_EQ(windows({{"layer_types", full}, {"sliding_window", nullptr}}), Windows());
    const auto switched = [&](json changes) {
      changes.update({{"use_sliding_window", true}, {"sliding_window", 5}});
      return windows(changes);
    };
    EXPECT_EQ(switched({{"max_window_layers", 0}}), Windows({5, 5, 5}));
    EXPECT_EQ(switched({{"max_window_layers", 2}}), Windows({0, 0, 5}));
    EXPECT_EQ(switched({{"max_window_layers", 3}}), Windows());
    EXPECT_EQ(switched(json::object()), Windows());  // 28
    EXPECT_EQ(switched({{"layer_types", mixed}}), Windows({5, 0, 5}));
    EXPECT_EQ(switched({{"layer_types", mixed}, {"max_window_layers", 3}}), Windows({5, 0, 5}));
    EXPECT_EQ(switched({{"layer_types", full}, {"max_window_layers", 0}}), Windows());
    const json none = {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}};
    EXPECT_EQ(windows(none), Windows());
  }
}

TEST(Config, WindowsAreRefusedByNameAndValue) {
  json mistral = kLlama, qwen2 = kLlama;
  mistral["model_type"] = "mistral";
  qwen2.update({{"model_type", "qwen2"}, {"use_sliding_window", true}, {"sliding_window", 4}});
  for (const json& config : {mistral, qwen2}) {
    EXPECT_MENTIONS(error_of(config, "sliding_window", 0), "\"sliding_window\" is 0");
    EXPECT_MENTIONS(error_of(config, "sliding_window", -4), "\"sliding_window\" is -4");
    EXPECT_MENTIONS(error_of(config, "sliding_window", "4"), "\"sliding_window\" is not a whole number");
    EXPECT_MENTIONS(error_of(config, "layer_types", json::array({"chunked_attention"})),
                    "\"layer_types\" is [\"chunked_attention\"], only full_attention and sliding_attention");
    EXPECT_MENTIONS(error_of(config, "layer_types", json::array()),
                    "not a list for 1 layers; give one entry for each of the 1 layers");
    EXPECT_MENTIONS(error_of(config, "layer_types", "sliding_attention"), "\"layer_types\" is \"sliding");
    EXPECT_MENTIONS(error_of(config, "layer_types", json::array({1})), "\"layer_types\" is [1]");
  }
  // AutoModel takes it for a Ministral, and MistralForCausalLM does not read it.
  mistral["sliding_window"] = 4;
  EXPECT_MENTIONS(
      error_of(mistral, "layer_types", json::array({"full_attention"})),
      "\"layer_types\" is [\"full_attention\"], and a mistral has its sliding_window in all layers");
  EXPECT_MENTIONS(error_of(qwen2, "use_sliding_window", 1), "use_sliding_window");
  EXPECT_MENTIONS(error_of(qwen2, "max_window_layers", "1"), "max_window_layers");
  qwen2["layer_types"] = json::array({"sliding_attention"});
  EXPECT_EQ(error_of(qwen2, "sliding_window", 4), "no error");
  EXPECT_MENTIONS(error_of(qwen2, "sliding_window", nullptr),
                  "and there is no sliding_window; give sliding_window, or full_attention for all layers");
  EXPECT_MENTIONS(error_of(qwen2, "use_sliding_window", false),
                  "and use_sliding_window is false; set it to true, or give full_attention for all layers");
  EXPECT_MENTIONS(llama_error("sliding_window", 7), "\"sliding_window\" is 7, below the 8");
  EXPECT_MENTIONS(llama_error("layer_types", json::array({"sliding_attention"})),
                  "\"layer_types\" is [\"sliding_attention\"], and a llama has no windows; use a model_type");
  EXPECT_EQ(llama_error("sliding_window", 8), "no error");
}

// Attention has 4 FLOPs per element of a query and key pair in the forward, and 8 in the backward.
TEST(Config, MaxWindowLayersIsANumberWhateverReplacesIt) {
  for (const char* type : {"llama", "mistral", "qwen2"}) {
    json config = kLlama;
    config.update({{"model_type", type}, {"layer_types", {"full_attention"}}, {"sliding_window", nullptr}});
    EXPECT_EQ(error_of(config, "max_window_layers", 1), "no error");
    for (const json& wrong : {json("1"), json(1.5), json::array()})
      EXPECT_MENTIONS(error_of(config, "max_window_layers", wrong), "\"max_window_layers\" is not a whole");
  }
}

TEST(Config, AWindowSavesFlops) {
  json mistral = kLlama;
  mistral.update({{"model_type", "mistral"}, {"max_position_embeddings", 100}});
  const auto decoder_with = [&](const json& window) {
    mistral["sliding_window"] = window;
    return decoder_of_config(mistral, "config.json");
  };
  const auto full = decoder_with(nullptr), windowed = decoder_with(10);
  EXPECT_EQ(windowed->flops_per_token(10), full->flops_per_token(10));
  const double elements = 8, hidden_pairs = 90.0 * 90 / 2;
  EXPECT_DOUBLE_EQ(full->flops_per_token(100) - windowed->flops_per_token(100),
                   12 * elements * hidden_pairs / 100);
  EXPECT_EQ(windowed->keys_seen(7), 7);
  EXPECT_EQ(windowed->keys_seen(70), 10);
  EXPECT_EQ(full->keys_seen(70), 70);
}

TEST(Config, Qwen3NamesItsHeads) {
  json qwen3 = kLlama;
  qwen3.update({{"model_type", "qwen3"}, {"head_dim", 6}});
  const auto error_with = [&](const std::string& key, const json& value) {
    return error_of(qwen3, key, value);
  };
  for (const bool bias : {false, true}) {
    qwen3["attention_bias"] = bias;
    const LlamaConfig read = LlamaConfig::from_json(LlamaFamily::qwen3, qwen3, "config.json");
    EXPECT_EQ(read.head_size, 6);
    EXPECT_EQ(read.attention_bias, bias);
    EXPECT_EQ(LlamaConfig::from_json(LlamaFamily::qwen3, read.to_json({}), "again"), read);
    const TransformerDescription d = read.description();
    EXPECT_TRUE(d.qk_norm);
    EXPECT_EQ(d.qkv_bias, bias);
    EXPECT_EQ(d.attproj_bias, bias);
  }
  EXPECT_MENTIONS(error_with("head_dim", nullptr), "\"head_dim\" is missing");
  EXPECT_EQ(error_with("num_key_value_heads", nullptr), "no error");  // as many as query heads
  EXPECT_MENTIONS(error_with("head_dim", 258), "head_dim is 258");
  EXPECT_MENTIONS(error_with("mlp_bias", true), "\"mlp_bias\" is true, only false");
  EXPECT_MENTIONS(error_with("attention_bias", 1), "attention_bias");
  EXPECT_MENTIONS(error_with("num_experts", 8), "\"num_experts\" is 8");
  EXPECT_MENTIONS(error_with("model_type", "qwen3_moe"), "model_type qwen3_moe");
}

TEST(Config, SeveralTokensMayEndAText) {
  const auto written = [](const json& bos, const json& eos) {
    json config;
    BoundaryTokens::from_json({{"bos_token_id", bos}, {"eos_token_id", eos}}, "config.json").write_to(config);
    return config;
  };
  for (const json& eos : {json(), json(2), json({2, 7})})
    EXPECT_EQ(written(1, eos), json({{"bos_token_id", 1}, {"eos_token_id", eos}}));
  for (const json& eos : {json("2"), json(1.5), json({2, "7"}), json::object()})
    EXPECT_MENTIONS(message_of([&] { written(1, eos); }), "\"eos_token_id\" is ");
  EXPECT_MENTIONS(message_of([&] { written({1, 2}, 2); }), "\"bos_token_id\" is [1,2]");
  EXPECT_MENTIONS(message_of([&] { written(1, UINT64_MAX); }),
                  "\"eos_token_id\" is 18446744073709551615, not");
  EXPECT_MENTIONS(message_of([&] { written(UINT64_MAX, 1); }),
                  "\"bos_token_id\" is 18446744073709551615, not");
  const BoundaryTokens llama = BoundaryTokens::from_json({{"bos_token_id", 1}, {"eos_token_id", 2}}, "");
  EXPECT_EQ(llama.with_eos(5).bos, 1);
  EXPECT_EQ(BoundaryTokens(2).with_eos(5).bos, 5);  // one token for both
  EXPECT_EQ(BoundaryTokens().with_eos(5).bos, 5);
  EXPECT_EQ(llama.with_eos(5).eos, (std::vector<std::int64_t>{5}));
  const BoundaryTokens chat = BoundaryTokens::from_json({{"eos_token_id", {2, 7, 9}}}, "");
  EXPECT_EQ(chat.with_eos(5).eos, (std::vector<std::int64_t>{5, 2, 7, 9}));
  EXPECT_EQ(chat.with_eos(7).eos, (std::vector<std::int64_t>{7, 2, 9}));
}

TEST(Config, NamedSizesAreThoseOfTheModels) {
  for (const std::string& name : LlamaConfig::names()) {
    const auto decoder = named_decoder(name);
    EXPECT_NO_THROW(decoder->validate(name));
    EXPECT_EQ(decoder_of_config(decoder->config({}), name)->config({}), decoder->config({})) << name;
  }
  // As their model cards count them.
  EXPECT_EQ(named_decoder("smollm2:135M")->parameter_count(), 134'515'008);
  EXPECT_EQ(named_decoder("tinyllama:1.1B")->parameter_count(), 1'100'048'384);
  EXPECT_EQ(named_decoder("llama3.2:1B")->parameter_count(), 1'235'814'400);
  EXPECT_EQ(named_decoder("llama3.1:8B")->parameter_count(), 8'030'261'248);
  EXPECT_EQ(named_decoder("mistral0.1:7B")->parameter_count(), 7'241'732'096);
  EXPECT_EQ(named_decoder("mistral:7B")->parameter_count(), 7'248'023'552);
  EXPECT_EQ(named_decoder("qwen2.5:0.5B")->parameter_count(), 494'032'768);
  EXPECT_EQ(named_decoder("qwen2.5:7B")->parameter_count(), 7'615'616'512);
  EXPECT_EQ(named_decoder("qwen3:0.6B")->parameter_count(), 596'049'920);
  EXPECT_EQ(named_decoder("qwen3:1.7B")->parameter_count(), 1'720'574'976);
  EXPECT_EQ(named_decoder("gpt2:124M")->parameter_count(), 124'439'808);
  EXPECT_EQ(named_decoder("pythia:70M")->parameter_count(), 70'426'624);
  EXPECT_EQ(named_decoder("pythia:160M")->parameter_count(), 162'322'944);
  EXPECT_EQ(named_decoder("pythia:1B")->parameter_count(), 1'011'781'632);
  EXPECT_EQ(named_decoder("pythia:6.9B")->parameter_count(), 6'857'302'016);
  EXPECT_EQ(named_decoder("smollm2:135M", 100, 64)->context(), 64);
  EXPECT_EQ(named_decoder("smollm2:135M", 100, 64)->vocab(), 100);
  EXPECT_MENTIONS(message_of([] { named_decoder("smollm2:1B"); }), "no model is called 'smollm2:1B'");
}

// A program that multiplies the head size by rotary_pct and truncates gets the same number.
TEST(Config, NeoxKeepsTheRotatedElementsOfEveryHeadSize) {
  for (std::int64_t head_size = 2; head_size <= 256; ++head_size) {
    for (std::int64_t R = 2; R <= head_size; R += 2) {
      NeoxConfig config = *NeoxConfig::named("pythia:70M");
      config.channels = head_size, config.heads = 1, config.rope.R = R;
      const json written = config.to_json({});
      const double share = written["rotary_pct"].get<double>();
      EXPECT_EQ(static_cast<std::int64_t>(static_cast<double>(head_size) * share), R) << head_size;
      EXPECT_EQ(NeoxConfig::from_json(written, "config.json").rope.R, R) << head_size;
    }
  }
}

TEST(Config, NeoxReadsRotaryFieldsAsTransformersDoes) {
  NeoxConfig plain = *NeoxConfig::named("pythia:70M");
  plain.channels = 16, plain.heads = 1, plain.rope = {.theta = 50, .R = 8};
  const auto with = [&](const json& changes) {
    json config = plain.to_json({});
    config.update(changes);
    return config;
  };
  const auto error_with = [&](const json& changes) {
    return message_of([&] { NeoxConfig::from_json(with(changes), "config.json"); });
  };
  const json sames[] = {json::object(),
                        {{"rope_parameters", nullptr}},
                        {{"rope_theta", nullptr}},
                        {{"rope_parameters", {{"rope_type", "default"}}}},
                        {{"rope_theta", 50.0}, {"partial_rotary_factor", 0.5}}};
  for (const json& same : sames) {
    const ops::RopeAngles rope = NeoxConfig::from_json(with(same), "config.json").rope;
    EXPECT_EQ(rope.theta, 50) << same;
    EXPECT_EQ(rope.R, 8) << same;
  }
  const json parameters = {{"rope_theta", 70.0}, {"partial_rotary_factor", 0.25}};
  const ops::RopeAngles other =
      NeoxConfig::from_json(with({{"rope_parameters", parameters}}), "config.json").rope;
  EXPECT_EQ(other.theta, 70);
  EXPECT_EQ(other.R, 4);
  EXPECT_MENTIONS(error_with({{"rotary_pct", nullptr}}), "\"rotary_pct\" is null, not a number");
  EXPECT_MENTIONS(error_with({{"rotary_emb_base", nullptr}}), "\"rotary_emb_base\" is null, not a number");
  EXPECT_MENTIONS(error_with({{"rope_theta", 10000.0}}), "\"rope_theta\" is 10000.0, and rotary_emb_base");
  EXPECT_MENTIONS(error_with({{"partial_rotary_factor", 1.0}}),
                  "\"partial_rotary_factor\" is 1.0, and rotary_pct");
  EXPECT_MENTIONS(error_with({{"rotary_pct", 0.2}}), "rotary_pct rotates 3 of 16 elements of a head");
  EXPECT_EQ(error_with({{"hidden_dropout_prob", 0}, {"attention_probs_dropout_prob", 0}}), "no error");
}

TEST(Config, LlamaRotatesWholeHeads) {
  const auto error_of_share = [](double share) {
    return llama_error("rope_parameters", {{"rope_theta", 10000.0}, {"partial_rotary_factor", share}});
  };
  EXPECT_EQ(error_of_share(1), "no error");
  EXPECT_MENTIONS(error_of_share(0.99), "partial_rotary_factor rotates 1 of 2 elements of a head");
}

TEST(Config, GPT2RefusesFieldsThatItDoesNotKnow) {
  EXPECT_MENTIONS(gpt2_error("hidden_size", 8),
                  "\"hidden_size\" is 8, a field that this version does not know");
  EXPECT_MENTIONS(gpt2_error("quantization_config", {{"bits", 4}}),
                  "\"quantization_config\" is {\"bits\":4}");
  EXPECT_MENTIONS(gpt2_error("add_cross_attention", true), "only false");
  EXPECT_EQ(gpt2_error("quantization_config", nullptr), "no error");
  // Fields of gpt2, gpt2-medium, gpt2-xl and distilgpt2 as published.
  json config = kGpt2;
  config.update({{"architectures", {"GPT2LMHeadModel"}},
                 {"attn_pdrop", 0.1},
                 {"bos_token_id", 3},
                 {"embd_pdrop", 0.1},
                 {"eos_token_id", 3},
                 {"initializer_range", 0.02},
                 {"n_special", 0},
                 {"output_past", true},
                 {"predict_special_tokens", true},
                 {"resid_pdrop", 0.1},
                 {"summary_activation", nullptr},
                 {"summary_first_dropout", 0.1},
                 {"summary_proj_to_labels", true},
                 {"summary_type", "cls_index"},
                 {"summary_use_proj", true},
                 {"task_specific_params", {{"text-generation", {{"do_sample", true}}}}},
                 {"_num_labels", 1},
                 {"id2label", {{"0", "LABEL_0"}}},
                 {"label2id", {{"LABEL_0", 0}}}});
  EXPECT_EQ(message_of([&] { decoder_of_config(config, "config.json"); }), "no error");
}

// A type in the list of those that run, whose family decoder_of_config() lacks, would have another's fields.
TEST(Config, EveryDecodersTypeHasItsFamily) {
  for (const std::string_view type : model_types(Network::decoder)) {
    const std::string error = gpt2_error("model_type", type);
    EXPECT_EQ(error == "no error", type == "gpt2") << error;
    if (type == "gpt2") continue;
    EXPECT_MENTIONS(error, "\"n_embd\" is 4, a field that this version does not know");
  }
}

TEST(Config, TokensThatAreNoIdsAreRefusedWithTheConfig) {
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    EXPECT_MENTIONS(gpt2_error(key, "x"), fmt::format("\"{}\" is \"x\", not a token's id", key));
    EXPECT_MENTIONS(llama_error(key, "x"), fmt::format("\"{}\" is \"x\", not a token's id", key));
    EXPECT_EQ(llama_error(key, nullptr), "no error");
  }
}

TEST(Config, AnotherArchitectureIsReportedAsSuch) {
  const std::string mamba =
      "config.json: model_type mamba; this version runs gpt2, llama, mistral, qwen2, qwen3, gpt_neox, bert, "
      "roberta";
  EXPECT_EQ(gpt2_error("model_type", "mamba").substr(0, mamba.size()), mamba);
  EXPECT_EQ(bert_error("model_type", "mamba").substr(0, mamba.size()), mamba);
  EXPECT_MENTIONS(gpt2_error("model_type", "bert"), "model_type bert is an encoder; use a decoder: gpt2");
  EXPECT_MENTIONS(bert_error("model_type", "gpt2"), "model_type gpt2 is a decoder; use an encoder: bert");
  EXPECT_MENTIONS(gpt2_error("model_type", std::string(1 << 16, 'x')), "model_type \"xxx");
  EXPECT_LT(gpt2_error("model_type", std::string(1 << 16, 'x')).size(), 300u);
  EXPECT_MENTIONS(bert_error("model_type", 3), "not a string");
  EXPECT_EQ(gpt2_error("model_type", nullptr), "no error");
  EXPECT_MENTIONS(bert_error("model_type", nullptr), "missing");
}

// No weights are in these folders: nothing but config.json is looked at.
TEST_F(TestFolder, AnotherArchitectureIsReportedBeforeItsWeights) {
  put("config.json", R"({"model_type": "mamba", "n_layer": 2})");
  EXPECT_MENTIONS(message_of([&] { stored_dtype(folder); }), "model_type mamba");
  EXPECT_MENTIONS(message_of([&] { load_weights(folder, DType::f32); }), "model_type mamba");
}

}  // namespace
}  // namespace warpwright
