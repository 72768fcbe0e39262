#include "model/neox_config.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/rope_fields.hpp"

namespace warpwright {
namespace {

// The fields that are read, and those that change no result.
constexpr std::string_view kKnown[] = {"attention_bias",        "attention_dropout",
                                       "classifier_dropout",    "hidden_act",
                                       "hidden_dropout",        "hidden_size",
                                       "intermediate_size",     "is_decoder",
                                       "layer_norm_eps",        "max_position_embeddings",
                                       "num_attention_heads",   "num_hidden_layers",
                                       "partial_rotary_factor", "rope_parameters",
                                       "rope_scaling",          "rope_theta",
                                       "rotary_emb_base",       "rotary_pct",
                                       "use_parallel_residual"};

ops::Activation activation_of(const nlohmann::json& config, const std::string& where) {
  const std::string name = config_string(config, "hidden_act", "gelu", where);
  if (name == "gelu") return ops::Activation::gelu_erf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh")
    return ops::Activation::gelu_tanh;
  refuse_value("hidden_act", config.at("hidden_act"), "only gelu and gelu_new are supported", where);
}

double number_of(const nlohmann::json& config, const char* key, double otherwise, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (found->is_number()) return found->get<double>();
  throw Error(fmt::format("\"{}\" is not a number", key), where, "use the model's own config.json");
}

}  // namespace

TransformerDescription NeoxConfig::description() const {
  static constexpr TransformerNames kNames = {.wte = "gpt_neox.embed_in",
                                              .wpe = {},
                                              .block = "gpt_neox.layers.{}.",
                                              .norm1 = "input_layernorm",
                                              .qkv = "attention.query_key_value",
                                              .attproj = "attention.dense",
                                              .norm2 = "post_attention_layernorm",
                                              .fc = "mlp.dense_h_to_4h",
                                              .fcproj = "mlp.dense_4h_to_h",
                                              .norm = "gpt_neox.final_layer_norm",
                                              .head = "embed_out",
                                              .other_head = "lm_head",
                                              .prefix = "gpt_neox.",
                                              .q = "attention.query_key_value",
                                              .k = {},
                                              .v = {},
                                              .qkv_by_head = true,
                                              .gate = "mlp.dense_h_to_4h",
                                              .up = {}};
  return {.names = &kNames,
          .layers = layers,
          .channels = channels,
          .heads = heads,
          .key_heads = heads,
          .head_size = channels / heads,
          .hidden = hidden,
          .vocab = vocab,
          .context = context,
          .eps = eps,
          .qkv_bias = attention_bias,
          .attproj_bias = attention_bias,
          .rope = rope,
          .gate = {},
          .activation = activation,
          .parallel = parallel,
          .tied_head = tied_head};
}

void NeoxConfig::validate(const std::string& where) const {
  const auto check = [&](bool good, const std::string& what, const std::string& remedy) {
    if (!good) throw Error(what, where, remedy);
  };
  check_size("num_hidden_layers", layers, kMostLayers, where);
  check_size("hidden_size", channels, kMostChannels, where);
  check_size("num_attention_heads", heads, channels, where);
  check_size("intermediate_size", hidden, kMostChannels, where);
  check_size("vocab_size", vocab, kMostVocab, where);
  check_size("max_position_embeddings", context, kMostContext, where);
  check(channels % heads == 0, fmt::format("{} heads do not divide {} channels", heads, channels),
        "choose heads that divide the channels");
  check(channels / heads <= 256, fmt::format("the head size {}/{} is over 256", channels, heads),
        "use more heads");
  check_rope(rope, where);
}

NeoxConfig NeoxConfig::from_json(const nlohmann::json& json, const std::string& where) {
  refuse_unknown_fields(json, kKnown, where);
  require_value(json, "is_decoder", false, where);
  NeoxConfig c;
  c.layers = config_integer(json, "num_hidden_layers", where);
  c.channels = config_integer(json, "hidden_size", where);
  c.heads = config_integer(json, "num_attention_heads", where);
  c.hidden = config_integer(json, "intermediate_size", where);
  c.vocab = config_integer(json, "vocab_size", where);
  c.context = config_integer(json, "max_position_embeddings", where);
  c.eps = config_epsilon(json, "layer_norm_eps", c.eps, where);
  c.attention_bias = config_flag(json, "attention_bias", true, where);
  c.parallel = config_flag(json, "use_parallel_residual", true, where);
  c.tied_head = config_flag(json, "tie_word_embeddings", false, where);
  c.activation = activation_of(json, where);
  const double share =
      number_of(json, "partial_rotary_factor", number_of(json, "rotary_pct", 0.25, where), where);
  const bool divides = c.heads > 0 && c.channels > 0 && c.channels % c.heads == 0;
  c.rope = rope_of(json, divides ? c.channels / c.heads : 2, share, where);
  if (!json.contains("rope_theta") && !json.contains("rope_parameters"))
    c.rope.theta = number_of(json, "rotary_emb_base", 10000, where);
  c.validate(where);
  return c;
}

nlohmann::json NeoxConfig::to_json(const BoundaryTokens& tokens) const {
  const double share = static_cast<double>(rope.R) / static_cast<double>(channels / heads);
  nlohmann::json config = {{"architectures", {"GPTNeoXForCausalLM"}},
                           {"model_type", "gpt_neox"},
                           {"hidden_act", activation == ops::Activation::gelu_erf ? "gelu" : "gelu_new"},
                           {"hidden_size", channels},
                           {"intermediate_size", hidden},
                           {"num_hidden_layers", layers},
                           {"num_attention_heads", heads},
                           {"vocab_size", vocab},
                           {"max_position_embeddings", context},
                           {"layer_norm_eps", shortest_number(eps)},
                           {"attention_bias", attention_bias},
                           {"rotary_pct", share},
                           {"rotary_emb_base", rope.theta},
                           {"rope_scaling", rope_scaling_json(rope)},
                           {"use_parallel_residual", parallel},
                           {"attention_dropout", 0.0},
                           {"hidden_dropout", 0.0},
                           {"initializer_range", 0.02},
                           {"tie_word_embeddings", tied_head}};
  tokens.write_to(config);
  return config;
}

}  // namespace warpwright
