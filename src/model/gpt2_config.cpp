#include "model/gpt2_config.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/config_fields.hpp"

namespace warpwright {
namespace {

constexpr std::string_view kKnown[] = {
    "_num_labels",
    "activation_function",
    "add_cross_attention",
    "attn_pdrop",
    "embd_pdrop",
    "id2label",
    "label2id",
    "layer_norm_epsilon",
    "n_ctx",
    "n_embd",
    "n_head",
    "n_inner",
    "n_layer",
    "n_positions",
    "n_special",
    "num_labels",
    "output_past",
    "predict_special_tokens",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
};

ops::Activation activation_of(const nlohmann::json& json, const std::string& where) {
  const auto found = json.find("activation_function");
  const std::string name = found == json.end()  ? "gelu_new"
                           : found->is_string() ? found->get<std::string>()
                                                : found->dump();
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return ops::Activation::gelu_tanh;
  if (name == "gelu") return ops::Activation::gelu_erf;
  throw Error(fmt::format("\"activation_function\" is \"{}\"", name), where, "use gelu_new or gelu");
}

}  // namespace

TransformerDescription GPT2Config::description() const {
  static constexpr TransformerNames kNames = {.wte = "wte",
                                              .wpe = "wpe",
                                              .block = "h.{}.",
                                              .norm1 = "ln_1",
                                              .qkv = "attn.c_attn",
                                              .attproj = "attn.c_proj",
                                              .norm2 = "ln_2",
                                              .fc = "mlp.c_fc",
                                              .fcproj = "mlp.c_proj",
                                              .norm = "ln_f",
                                              .head = "lm_head",
                                              .prefix = "transformer.",
                                              .q = "attn.c_attn",
                                              .k = {},
                                              .v = {},
                                              .gate = "mlp.c_fc",
                                              .up = {},
                                              .transposed = true};
  return {.names = &kNames,
          .layers = layers,
          .channels = channels,
          .heads = heads,
          .key_heads = heads,
          .head_size = head_size(),
          .hidden = 4 * channels,
          .vocab = vocab,
          .context = context,
          .eps = eps,
          .rope = {},
          .gate = {},
          .activation = activation};
}

void GPT2Config::validate(const std::string& where) const {
  const auto check = [&](bool good, const std::string& what, const char* remedy) {
    if (!good) throw Error(what, where, remedy);
  };
  check_size("layers", layers, kMostLayers, where);
  check_size("channels", channels, kMostChannels, where);
  check_size("heads", heads, channels, where);
  check_size("vocab", vocab, kMostVocab, where);
  check_size("context", context, kMostContext, where);
  check(channels % heads == 0, fmt::format("{} heads do not divide {} channels", heads, channels),
        "choose heads that divide the channels");
  check(head_size() <= 256, fmt::format("the head size {}/{} = {} is over 256", channels, heads, head_size()),
        "use more heads");
  check(eps > 0 && eps < 1, fmt::format("layer_norm_epsilon is {}", eps), "give a small positive number");
}

GPT2Config GPT2Config::named(std::string_view name) {
  struct Size {
    std::string_view name;
    std::int64_t layers, heads, channels;
  };
  static constexpr Size sizes[] = {
      {"124M", 12, 12, 768}, {"355M", 24, 16, 1024}, {"774M", 36, 20, 1280}, {"1558M", 48, 25, 1600}};
  std::int64_t depth = 0;
  const char* end = name.data() + name.size();
  const bool by_depth =
      name.size() > 1 && name[0] == 'd' &&
      std::from_chars(name.data() + 1, end, depth) == std::from_chars_result{end, std::errc()};
  for (const Size& size : sizes) {
    if (name == size.name || (by_depth && depth == size.layers)) {
      return {.layers = size.layers, .heads = size.heads, .channels = size.channels};
    }
  }
  if (by_depth && depth >= 1 && depth <= 256)
    return {.layers = depth, .heads = depth, .channels = 64 * depth};
  throw UsageError(
      fmt::format("no GPT-2 is called '{}'", name), "--model",
      "use gpt2:124M, gpt2:355M, gpt2:774M, gpt2:1558M, gpt2:dN (1 to 256 layers) or a model's folder");
}

GPT2Config GPT2Config::from_json(const nlohmann::json& json, const std::string& where) {
  refuse_unknown_fields(json, kKnown, where);
  require_value(json, "scale_attn_weights", true, where);
  require_value(json, "scale_attn_by_inverse_layer_idx", false, where);
  require_value(json, "tie_word_embeddings", true, where);
  require_value(json, "add_cross_attention", false, where);
  GPT2Config config;
  config.layers = config_integer(json, "n_layer", where);
  config.heads = config_integer(json, "n_head", where);
  config.channels = config_integer(json, "n_embd", where);
  config.vocab = config_integer(json, "vocab_size", where);
  config.context = config_integer(json, json.contains("n_positions") ? "n_positions" : "n_ctx", where);
  config.activation = activation_of(json, where);
  config.eps = config_epsilon(json, "layer_norm_epsilon", config.eps, where);
  config.validate(where);
  require_value(json, "n_inner", 4 * config.channels, where);  // which a hostile n_embd would overflow
  return config;
}

nlohmann::json GPT2Config::to_json(const BoundaryTokens& tokens) const {
  nlohmann::json config = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", activation == ops::Activation::gelu_erf ? "gelu" : "gelu_new"},
      {"n_layer", layers},
      {"n_head", heads},
      {"n_embd", channels},
      {"n_positions", context},
      {"n_ctx", context},
      {"vocab_size", vocab},
      {"layer_norm_epsilon", shortest_number(eps)},
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0},
      {"initializer_range", 0.02},
      {"tie_word_embeddings", true}};
  tokens.write_to(config);
  return config;
}

}  // namespace warpwright
