#include "model/llama_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/rope_fields.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

using json = nlohmann::json;

constexpr std::string_view kNames[] = {"llama", "mistral", "qwen2", "qwen3"};
constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                               "Qwen3ForCausalLM"};

// The fields that are read, and those that change no result: how the model was made or is stored, and what
// only other programs do with it.
constexpr std::string_view kKnown[] = {"attention_bias",
                                       "attention_dropout",
                                       "auto_map",
                                       "head_dim",
                                       "hidden_act",
                                       "hidden_size",
                                       "intermediate_size",
                                       "is_llama_config",
                                       "layer_types",
                                       "max_position_embeddings",
                                       "max_sequence_length",
                                       "max_window_layers",
                                       "mlp_bias",
                                       "num_attention_heads",
                                       "num_hidden_layers",
                                       "num_key_value_heads",
                                       "partial_rotary_factor",
                                       "pretraining_tp",
                                       "rms_norm_eps",
                                       "rope_interleaved",
                                       "rope_parameters",
                                       "rope_scaling",
                                       "rope_theta",
                                       "sliding_window",
                                       "transformers.js_config",
                                       "unsloth_fixed",
                                       "unsloth_version",
                                       "use_mrope",
                                       "use_sliding_window"};

ops::GateActivation activation_of(const json& config, const std::string& where) {
  const std::string name = config_string(config, "hidden_act", "silu", where);
  if (name == "silu" || name == "swish") return ops::GateActivation::silu;
  if (name == "gelu") return ops::GateActivation::gelu_erf;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return ops::GateActivation::gelu_tanh;
  refuse_value("hidden_act", config.at("hidden_act"), "only silu, gelu and gelu_pytorch_tanh are supported",
               where);
}
std::string_view name_in_json(ops::GateActivation activation) {
  switch (activation) {
    case ops::GateActivation::gelu_erf:
      return "gelu";
    case ops::GateActivation::gelu_tanh:
      return "gelu_pytorch_tanh";
    default:
      return "silu";
  }
}

// ---- Windows, as transformers reads them ----

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

bool has_window_switch(LlamaFamily family) {
  return family == LlamaFamily::qwen2 || family == LlamaFamily::qwen3;
}

std::int64_t window_of(LlamaFamily family, const json& config, const std::string& where) {
  if (has_window_switch(family) && !config_flag(config, "use_sliding_window", false, where)) return 0;
  constexpr std::int64_t kDefault = 4096;
  if (family != LlamaFamily::llama && !config.contains("sliding_window")) return kDefault;
  const auto window = optional_config_integer(config, "sliding_window", where);
  if (window && *window < 1)
    throw Error(fmt::format("\"sliding_window\" is {}", *window), where, "give a length, or null");
  return window.value_or(0);
}

// layer_types decides, if there is one.
std::vector<bool> window_layers_of(const LlamaConfig& c, const json& config, const std::string& where) {
  std::vector<bool> layers;
  const auto types = config.find("layer_types");
  if (types == config.end() || types->is_null()) {
    if (!has_window_switch(c.family)) return {};
    const std::int64_t first = optional_config_integer(config, "max_window_layers", where).value_or(28);
    for (std::int64_t l = 0; l < c.layers; ++l) layers.push_back(l >= first);
    return layers;
  }
  if (!types->is_array() || std::ssize(*types) != c.layers)
    refuse_value("layer_types", *types, fmt::format("not a list for {} layers", c.layers), where,
                 fmt::format("give one entry for each of the {} layers", c.layers));
  for (const json& type : *types) {
    if (type != kFull && type != kSliding)
      refuse_value("layer_types", *types, fmt::format("only {} and {} are supported", kFull, kSliding),
                   where);
    layers.push_back(type == kSliding);
  }
  if (c.window > 0 || std::ranges::count(layers, true) == 0) return layers;
  if (c.family == LlamaFamily::llama) {
    refuse_value("layer_types", *types, "and a llama has no windows", where,
                 "use a model_type that has them: mistral, qwen2 or qwen3");
  }
  if (has_window_switch(c.family) && !config_flag(config, "use_sliding_window", false, where)) {
    refuse_value("layer_types", *types, "and use_sliding_window is false", where,
                 "set it to true, or give full_attention for all layers");
  }
  refuse_value("layer_types", *types, "and there is no sliding_window", where,
               "give sliding_window, or full_attention for all layers");
}

void read_windows(LlamaConfig& c, const json& config, const std::string& where) {
  optional_config_integer(config, "max_window_layers", where);  // checked although layer_types may replace it
  c.window = window_of(c.family, config, where);
  c.window_layers = window_layers_of(c, config, where);
  if (c.family == LlamaFamily::mistral) {
    const std::vector<std::int64_t> asked = c.windows();
    c.window_layers.clear();
    if (asked != c.windows())
      refuse_value("layer_types", config.at("layer_types"),
                   "and a mistral has its sliding_window in all layers", where);
  }
  if (c.family != LlamaFamily::llama) return;
  if (!c.windows().empty()) {
    throw Error(fmt::format("\"sliding_window\" is {}, below the {} of max_position_embeddings: a llama has "
                            "no windows",
                            c.window, c.context),
                where, "use a model_type that has them: mistral, qwen2 or qwen3");
  }
  c.window = 0;
  c.window_layers.clear();
}

json layer_types_json(const std::vector<std::int64_t>& windows) {
  json types = json::array();
  for (const std::int64_t window : windows) types.push_back(window > 0 ? kSliding : kFull);
  return types;
}

// Older programs read max_window_layers, which can say no more than that all layers from one on have windows.
void write_windows(const LlamaConfig& c, json& config) {
  const std::vector<std::int64_t> windows = c.windows();
  if (has_window_switch(c.family)) config["use_sliding_window"] = !windows.empty();
  if (c.family == LlamaFamily::mistral) config["sliding_window"] = nullptr;
  if (windows.empty()) return;
  config["sliding_window"] = c.window;
  if (!has_window_switch(c.family)) return;
  config["layer_types"] = layer_types_json(windows);
  const auto full = std::ranges::count(windows, std::int64_t{0});
  if (std::ranges::is_sorted(windows)) config["max_window_layers"] = full;
}

}  // namespace

std::string_view name_of(LlamaFamily family) {
  return kNames[static_cast<std::size_t>(family)];
}

TransformerDescription LlamaConfig::description() const {
  static constexpr TransformerNames kLlama = {.wte = "model.embed_tokens",
                                              .wpe = {},
                                              .block = "model.layers.{}.",
                                              .norm1 = "input_layernorm",
                                              .qkv = "self_attn.qkv_proj",
                                              .attproj = "self_attn.o_proj",
                                              .norm2 = "post_attention_layernorm",
                                              .fc = "mlp.gate_up_proj",
                                              .fcproj = "mlp.down_proj",
                                              .norm = "model.norm",
                                              .head = "lm_head",
                                              .prefix = "model.",
                                              .q = "self_attn.q_proj",
                                              .k = "self_attn.k_proj",
                                              .v = "self_attn.v_proj",
                                              .gate = "mlp.gate_proj",
                                              .up = "mlp.up_proj",
                                              .q_norm = "self_attn.q_norm",
                                              .k_norm = "self_attn.k_norm"};
  return {.names = &kLlama,
          .layers = layers,
          .channels = channels,
          .heads = heads,
          .key_heads = key_heads,
          .head_size = head_size,
          .hidden = hidden,
          .vocab = vocab,
          .context = context,
          .windows = windows(),
          .layer_norm = false,
          .eps = eps,
          .qkv_bias = attention_bias || family == LlamaFamily::qwen2,
          .attproj_bias = attention_bias,
          .mlp_bias = mlp_bias,
          .qk_norm = family == LlamaFamily::qwen3,
          .rope = rope,
          .gate = activation,
          .tied_head = tied_head};
}

std::vector<std::int64_t> LlamaConfig::windows() const {
  if (window == 0 || window >= context) return {};
  std::vector<std::int64_t> each(static_cast<std::size_t>(layers), window);
  for (std::size_t l = 0; l < window_layers.size(); ++l) {
    if (!window_layers[l]) each[l] = 0;
  }
  if (std::ranges::count(each, 0) == layers) return {};
  return each;
}

namespace {

struct Size {
  std::string_view name;
  LlamaFamily family;
  std::int64_t layers, channels, hidden, heads, key_heads, head_size, vocab, context;
  double theta, eps;
  bool tied;
  double llama3_factor = 1;  // 1: no scaling
  std::int64_t window = 0;
};
// Source: the config.json of each model on huggingface.co.
constexpr Size kSizes[] = {
    {"smollm2:135M", LlamaFamily::llama, 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, 1e-5, true},
    {"smollm2:360M", LlamaFamily::llama, 32, 960, 2560, 15, 5, 64, 49152, 8192, 1e5, 1e-5, true},
    {"smollm2:1.7B", LlamaFamily::llama, 24, 2048, 8192, 32, 32, 64, 49152, 8192, 1.3e5, 1e-5, true},
    {"tinyllama:1.1B", LlamaFamily::llama, 22, 2048, 5632, 32, 4, 64, 32000, 2048, 1e4, 1e-5, false},
    {"llama3.2:1B", LlamaFamily::llama, 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, 1e-5, true, 32},
    {"llama3.2:3B", LlamaFamily::llama, 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5, 1e-5, true, 32},
    {"llama3.1:8B", LlamaFamily::llama, 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5, 1e-5, false, 8},
    {"mistral0.1:7B", LlamaFamily::mistral, 32, 4096, 14336, 32, 8, 128, 32000, 32768, 1e4, 1e-5, false, 1,
     4096},
    {"mistral:7B", LlamaFamily::mistral, 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6, 1e-5, false},
    {"qwen2.5:0.5B", LlamaFamily::qwen2, 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6, 1e-6, true},
    {"qwen2.5:1.5B", LlamaFamily::qwen2, 28, 1536, 8960, 12, 2, 128, 151936, 131072, 1e6, 1e-6, true},
    {"qwen2.5:3B", LlamaFamily::qwen2, 36, 2048, 11008, 16, 2, 128, 151936, 32768, 1e6, 1e-6, true},
    {"qwen2.5:7B", LlamaFamily::qwen2, 28, 3584, 18944, 28, 4, 128, 152064, 131072, 1e6, 1e-6, false},
    {"qwen3:0.6B", LlamaFamily::qwen3, 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true},
    {"qwen3:1.7B", LlamaFamily::qwen3, 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true}};

}  // namespace

std::optional<LlamaConfig> LlamaConfig::named(std::string_view name) {
  const auto* size = std::ranges::find(kSizes, name, &Size::name);
  if (size == std::end(kSizes)) return std::nullopt;
  LlamaConfig c{.family = size->family,
                .layers = size->layers,
                .channels = size->channels,
                .heads = size->heads,
                .key_heads = size->key_heads,
                .head_size = size->head_size,
                .hidden = size->hidden,
                .vocab = size->vocab,
                .context = size->context,
                .window = size->window,
                .eps = static_cast<float>(size->eps),
                .tied_head = size->tied,
                .rope = {.theta = size->theta, .R = size->head_size}};
  if (size->llama3_factor > 1) {
    c.rope.scaling = ops::RopeScaling::llama3;
    c.rope.factor = size->llama3_factor;
    c.rope.original_positions = 8192;
  }
  return c;
}

std::vector<std::string> LlamaConfig::names() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

void LlamaConfig::validate(const std::string& where) const {
  const auto check = [&](bool good, const std::string& what, const std::string& remedy) {
    if (!good) throw Error(what, where, remedy);
  };
  check_size("num_hidden_layers", layers, kMostLayers, where);
  check_size("hidden_size", channels, kMostChannels, where);
  check_size("num_attention_heads", heads, kMostChannels, where);
  check_size("num_key_value_heads", key_heads, heads, where);
  check_size("head_dim", head_size, 256, where);
  check_size("intermediate_size", hidden, kMostChannels, where);
  check_size("vocab_size", vocab, kMostVocab, where);
  check_size("max_position_embeddings", context, kMostContext, where);
  check(heads * head_size <= kMostChannels, fmt::format("{} heads of {} elements", heads, head_size),
        fmt::format("give at most {} elements in all", kMostChannels));
  check(heads % key_heads == 0, fmt::format("{} key heads do not divide {} heads", key_heads, heads),
        "choose num_key_value_heads that divide num_attention_heads");
  check(head_size % 2 == 0, fmt::format("head_dim is {}, and rotary positions need pairs", head_size),
        "use an even head_dim");
  check(rope.R == head_size,
        fmt::format("partial_rotary_factor rotates {} of {} elements of a head", rope.R, head_size),
        "use a model that rotates whole heads");
  check_rope(rope, where);
}

LlamaConfig LlamaConfig::from_json(LlamaFamily family, const json& json, const std::string& where) {
  refuse_unknown_fields(json, kKnown, where);
  require_value(json, "pretraining_tp", 1, where);
  require_value(json, "rope_interleaved", false, where);
  require_value(json, "use_mrope", false, where);
  LlamaConfig c;
  c.family = family;
  c.layers = config_integer(json, "num_hidden_layers", where);
  c.channels = config_integer(json, "hidden_size", where);
  c.heads = config_integer(json, "num_attention_heads", where);
  // A missing field is an error if its default does not follow from the other sizes.
  if (family != LlamaFamily::llama && !json.contains("num_key_value_heads"))
    throw Error("\"num_key_value_heads\" is missing", where, "give it, as transformers writes it");
  c.key_heads = optional_config_integer(json, "num_key_value_heads", where).value_or(c.heads);
  c.head_size = family == LlamaFamily::qwen3
                    ? config_integer(json, "head_dim", where)
                    : optional_config_integer(json, "head_dim", where)
                          .value_or(c.heads > 0 && c.channels % c.heads == 0 ? c.channels / c.heads : 0);
  c.hidden = config_integer(json, "intermediate_size", where);
  c.vocab = config_integer(json, "vocab_size", where);
  c.context = config_integer(json, "max_position_embeddings", where);
  c.eps = config_epsilon(json, "rms_norm_eps", c.eps, where);
  if (family == LlamaFamily::llama || family == LlamaFamily::qwen3) {
    c.attention_bias = config_flag(json, "attention_bias", false, where);
  } else {
    require_value(json, "attention_bias", family == LlamaFamily::qwen2, where);
  }
  if (family == LlamaFamily::llama) {
    c.mlp_bias = config_flag(json, "mlp_bias", false, where);
  } else {
    require_value(json, "mlp_bias", false, where);
  }
  c.tied_head = config_flag(json, "tie_word_embeddings", false, where);
  c.rope = rope_of(json, c.head_size,
                   {.theta = config_number(json, "rope_theta", 10000, where),
                    .share = config_number(json, "partial_rotary_factor", 1, where)},
                   where);
  c.activation = activation_of(json, where);
  c.validate(where);
  read_windows(c, json, where);
  return c;
}

nlohmann::json LlamaConfig::to_json(const BoundaryTokens& tokens) const {
  const auto index = static_cast<std::size_t>(family);
  json config = {{"architectures", {kArchitectures[index]}},
                 {"model_type", kNames[index]},
                 {"hidden_act", name_in_json(activation)},
                 {"hidden_size", channels},
                 {"intermediate_size", hidden},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", key_heads},
                 {"head_dim", head_size},
                 {"vocab_size", vocab},
                 {"max_position_embeddings", context},
                 {"rms_norm_eps", shortest_number(eps)},
                 {"rope_theta", rope.theta},
                 {"rope_scaling", rope_scaling_json(rope)},
                 {"attention_dropout", 0.0},
                 {"initializer_range", 0.02},
                 {"tie_word_embeddings", tied_head}};
  tokens.write_to(config);
  if (family == LlamaFamily::llama || family == LlamaFamily::qwen3) config["attention_bias"] = attention_bias;
  if (family == LlamaFamily::llama) config["mlp_bias"] = mlp_bias;
  write_windows(*this, config);
  return config;
}

}  // namespace warpwright
