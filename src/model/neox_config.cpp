#include "model/neox_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/rope_fields.hpp"

namespace warpwright {
namespace {

// The fields that are read, and those that change no result.
constexpr std::string_view kKnown[] = {"attention_bias",
                                       "attention_probs_dropout_prob",
                                       "attention_dropout",
                                       "classifier_dropout",
                                       "hidden_act",
                                       "hidden_dropout",
                                       "hidden_dropout_prob",
                                       "hidden_size",
                                       "intermediate_size",
                                       "is_decoder",
                                       "layer_norm_eps",
                                       "max_position_embeddings",
                                       "num_attention_heads",
                                       "num_hidden_layers",
                                       "partial_rotary_factor",
                                       "rope_parameters",
                                       "rope_scaling",
                                       "rope_theta",
                                       "rotary_emb_base",
                                       "rotary_pct",
                                       "use_parallel_residual"};

ops::Activation activation_of(const nlohmann::json& config, const std::string& where) {
  const std::string name = config_string(config, "hidden_act", "gelu", where);
  if (name == "gelu" || name == "gelu_python") return ops::Activation::gelu_erf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh")
    return ops::Activation::gelu_tanh;
  refuse_value("hidden_act", config.at("hidden_act"),
               "only gelu, gelu_python, gelu_new, gelu_fast and gelu_pytorch_tanh are supported", where);
}

// The smallest share of a head of which a program that multiplies and truncates rotates R elements.
double share_of(std::int64_t R, std::int64_t head_size) {
  const auto elements = static_cast<double>(head_size);
  double share = static_cast<double>(R) / elements;
  while (static_cast<std::int64_t>(elements * share) < R) share = std::nextafter(share, 2.0);
  return share;
}

// rotary_emb_base and rotary_pct count, and rope_parameters before them. Other names of the two must agree.
ops::RopeAngles read_rope(const nlohmann::json& config, std::int64_t head_size, const std::string& where) {
  for (const char* key : {"rotary_emb_base", "rotary_pct"}) {
    if (const auto found = config.find(key); found != config.end() && found->is_null())
      refuse_value(key, *found, "not a number", where);
  }
  const RopeDefaults defaults{.theta = config_number(config, "rotary_emb_base", 10000, where),
                              .share = config_number(config, "rotary_pct", 0.25, where)};
  const ops::RopeAngles angles = rope_of(config, head_size, defaults, where);
  if (config_number(config, "rope_theta", angles.theta, where) != angles.theta)
    refuse_value("rope_theta", config.at("rope_theta"), "and rotary_emb_base or rope_parameters differ",
                 where);
  const double share = config_number(config, "partial_rotary_factor", share_of(angles.R, head_size), where);
  if (static_cast<std::int64_t>(static_cast<double>(head_size) * share) != angles.R)
    refuse_value("partial_rotary_factor", config.at("partial_rotary_factor"),
                 "and rotary_pct or rope_parameters differ", where);
  return angles;
}

struct Size {
  std::string_view name;
  std::int64_t layers, channels, heads, vocab;
};
// Source: the config.json of each model on huggingface.co. The MLP has four times the channels.
constexpr Size kSizes[] = {{"pythia:70M", 6, 512, 8, 50304},     {"pythia:160M", 12, 768, 12, 50304},
                           {"pythia:410M", 24, 1024, 16, 50304}, {"pythia:1B", 16, 2048, 8, 50304},
                           {"pythia:1.4B", 24, 2048, 16, 50304}, {"pythia:2.8B", 32, 2560, 32, 50304},
                           {"pythia:6.9B", 32, 4096, 32, 50432}, {"pythia:12B", 36, 5120, 40, 50688}};

}  // namespace

std::optional<NeoxConfig> NeoxConfig::named(std::string_view name) {
  const auto* size = std::ranges::find(kSizes, name, &Size::name);
  if (size == std::end(kSizes)) return std::nullopt;
  return NeoxConfig{.layers = size->layers,
                    .channels = size->channels,
                    .heads = size->heads,
                    .hidden = 4 * size->channels,
                    .vocab = size->vocab,
                    .context = 2048,
                    .rope = {.R = size->channels / size->heads / 4}};
}

std::vector<std::string> NeoxConfig::names() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

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
  check(rope.R >= 2 && rope.R % 2 == 0,
        fmt::format("rotary_pct rotates {} of {} elements of a head", rope.R, channels / heads),
        "give a share that rotates an even number of them");
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
  const bool divides = c.heads > 0 && c.channels > 0 && c.channels % c.heads == 0;
  c.rope = read_rope(json, divides ? c.channels / c.heads : 2, where);
  c.validate(where);
  return c;
}

nlohmann::json NeoxConfig::to_json(const BoundaryTokens& tokens) const {
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
                           {"rotary_pct", share_of(rope.R, channels / heads)},
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
