#include "model/bert_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// Generous bounds on every other size, so that no product below can overflow 63 bits.
constexpr std::int64_t kMostHidden = 1 << 16, kMostIntermediate = 1 << 20, kMostPositions = 1 << 24,
                       kMostTypes = 1 << 16, kMostLabels = 1 << 20;
constexpr std::uint64_t kMostJsonBytes = 1 << 20;
constexpr int kMostJsonDepth = 64;
constexpr const char* kRemedy = "use the folder of a BERT, MiniLM or RoBERTa in Hugging Face's form";

nlohmann::json read_json(const fs::path& path) {
  return parse_json(read_file(path, kMostJsonBytes), path.string(), kMostJsonDepth, kRemedy);
}

void refuse_flag(const nlohmann::json& json, const char* key, const std::string& where) {
  if (config_flag(json, key, false, where))
    throw Error(fmt::format("\"{}\" is true, which is not supported", key), where, kRemedy);
}

ops::Activation activation_of(const nlohmann::json& json, const std::string& where) {
  const std::string name = config_string(json, "hidden_act", "gelu", where);
  if (name == "gelu" || name == "gelu_python") return ops::Activation::gelu_erf;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return ops::Activation::gelu_tanh;
  if (name == "relu") return ops::Activation::relu;
  throw Error(fmt::format("\"hidden_act\" is {}", json["hidden_act"].dump()), where,
              "use gelu, gelu_new, gelu_pytorch_tanh, gelu_fast or relu");
}

BertConfig::Family family_of(const nlohmann::json& json, const std::string& where) {
  require_network(json, Network::encoder, where);
  return json["model_type"] == "bert" ? BertConfig::Family::bert : BertConfig::Family::roberta;
}

std::int64_t labels_of(const nlohmann::json& json, const std::string& where) {
  if (const auto count = optional_config_integer(json, "num_labels", where)) return *count;
  const auto labels = json.find("id2label");
  if (labels == json.end() || labels->is_null()) return 2;
  if (!labels->is_object()) throw Error("\"id2label\" is not an object", where, kRemedy);
  return static_cast<std::int64_t>(labels->size());
}

// The last word of "sentence_transformers.models.Pooling".
std::string module_name(const nlohmann::json& module, const std::string& where) {
  if (!module.is_object()) throw Error("a module is not an object", where, kRemedy);
  const std::string type = config_string(module, "type", "", where);
  return type.substr(type.rfind('.') + 1);
}

// A module's folder within the model's: a path that leads out of it is refused.
fs::path module_folder(const fs::path& folder, const nlohmann::json& module, const std::string& where) {
  const fs::path path = config_string(module, "path", "", where);
  const bool inside = path.is_relative() && std::none_of(path.begin(), path.end(),
                                                         [](const fs::path& part) { return part == ".."; });
  if (!inside) throw Error(fmt::format("the path {} leads out of the folder", path.string()), where, kRemedy);
  return folder / path;
}

// The poolings a config asks for. sentence-transformers 6 has a name or a list of names; earlier versions
// have a flag for each.
std::vector<std::string> pooling_names(const nlohmann::json& json, const std::string& where) {
  constexpr std::pair<const char*, const char*> kFlags[] = {
      {"pooling_mode_cls_token", "cls"},
      {"pooling_mode_mean_tokens", "mean"},
      {"pooling_mode_max_tokens", "max"},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
      {"pooling_mode_weightedmean_tokens", "weightedmean"},
      {"pooling_mode_lasttoken", "lasttoken"}};
  std::vector<std::string> names;
  if (const auto given = json.find("pooling_mode"); given != json.end()) {
    const nlohmann::json list = given->is_array() ? *given : nlohmann::json::array({*given});
    for (const nlohmann::json& name : list) names.push_back(name.is_string() ? name.get<std::string>() : "?");
  } else {
    for (const auto& [key, name] : kFlags) {
      if (config_flag(json, key, false, where)) names.emplace_back(name);
    }
  }
  return names;
}

ops::Pooling pooling_kind(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) throw Error("is not a JSON object", where, kRemedy);
  const std::vector<std::string> names = pooling_names(json, where);
  const std::string name = names.size() == 1 ? names[0] : "";
  if (name == "cls") return ops::Pooling::cls;
  if (name == "mean") return ops::Pooling::mean;
  if (name == "max") return ops::Pooling::max;
  if (name == "mean_sqrt_len_tokens") return ops::Pooling::mean_sqrt;
  throw Error("asks for a pooling other than one of cls, mean, max and mean_sqrt_len", where,
              "use a model with one of them");
}

void read_pooling(const fs::path& path, BertPooling& pooling) {
  const nlohmann::json json = read_json(path);
  pooling.kind = pooling_kind(json, path.string());
  pooling.include_prompt = config_flag(json, "include_prompt", true, path.string());
}

// The longest text in tokens; 0 if the folder does not say. sentence-transformers 6 keeps it with the
// tokenizer, where a number beyond 63 bits means "no limit".
std::int64_t longest_text(const fs::path& folder) {
  constexpr std::pair<const char*, const char*> kPlaces[] = {{"sentence_bert_config.json", "max_seq_length"},
                                                             {"tokenizer_config.json", "model_max_length"}};
  for (const auto& [file, key] : kPlaces) {
    const fs::path path = folder / file;
    if (!path_exists(path)) continue;
    const nlohmann::json json = read_json(path);
    if (!json.is_object() || !json.contains(key) || json[key].is_null() || json[key].is_number_float())
      continue;
    const std::int64_t tokens = config_integer(json, key, path.string());
    if (tokens < 1) throw Error(fmt::format("{} is {}", key, tokens), path.string(), "give 1 or more");
    return tokens;
  }
  return 0;
}

BertDense read_dense(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const std::string where = path.string();
  const nlohmann::json json = read_json(path);
  if (!json.is_object()) throw Error("is not a JSON object", where, kRemedy);
  BertDense dense{folder, config_integer(json, "in_features", where),
                  config_integer(json, "out_features", where)};
  dense.bias = config_flag(json, "bias", true, where);
  const std::string full =
      config_string(json, "activation_function", "torch.nn.modules.activation.Tanh", where);
  const std::string name = full.substr(full.rfind('.') + 1);
  if (name == "Identity") {
    dense.activation = ops::Activation::none;
  } else if (name == "ReLU") {
    dense.activation = ops::Activation::relu;
  } else if (name == "GELU") {
    dense.activation = ops::Activation::gelu_erf;
  } else if (name != "Tanh") {
    throw Error(fmt::format("\"activation_function\" is \"{}\"", full), where,
                "use Tanh, Identity, ReLU or GELU");
  }
  const bool good = dense.in >= 1 && dense.in <= kMostHidden && dense.out >= 1 && dense.out <= kMostHidden;
  if (!good) throw Error(fmt::format("maps {} to {} features", dense.in, dense.out), where, kRemedy);
  return dense;
}

}  // namespace

double BertConfig::flops(const std::vector<std::int64_t>& lengths) const {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const double matrices = d(layers) * (4 * d(hidden) * d(hidden) + 2 * d(hidden) * d(intermediate));
  double total = 0;
  for (const std::int64_t L : lengths) total += d(L) * (2 * matrices + 4 * d(layers) * d(hidden) * d(L));
  return total;
}

void BertConfig::validate(const std::string& where) const {
  const auto in_range = [&](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw Error(fmt::format("{} is {}", name, value), where, fmt::format("give {} to {}", least, most));
  };
  in_range("num_hidden_layers", layers, 1, kMostLayers);
  in_range("hidden_size", hidden, 1, kMostHidden);
  in_range("num_attention_heads", heads, 1, hidden);
  in_range("intermediate_size", intermediate, 1, kMostIntermediate);
  in_range("vocab_size", vocab, 1, kMostVocab);
  in_range("type_vocab_size", types, 1, kMostTypes);
  in_range("pad_token_id", padding_token, 0, vocab - 1);
  in_range("max_position_embeddings", positions, first_position() + 1, kMostPositions);
  in_range("num_labels", labels, 1, kMostLabels);
  if (hidden % heads != 0) {
    throw Error(fmt::format("{} heads do not divide a hidden size of {}", heads, hidden), where,
                "choose heads that divide it");
  }
  if (head_size() > 256) {
    throw Error(fmt::format("the head size {}/{} = {} is over 256", hidden, heads, head_size()), where,
                "use more heads");
  }
  if (!(eps > 0 && eps < 1)) {
    throw Error(fmt::format("layer_norm_eps is {}", eps), where, "give a small positive number");
  }
}

BertConfig BertConfig::named(std::string_view name) {
  BertConfig config;
  config.vocab = 30522;
  if (name == "bert-base") {
    config.layers = 12, config.heads = 12, config.hidden = 768, config.intermediate = 3072;
  } else if (name == "bert-large") {
    config.layers = 24, config.heads = 16, config.hidden = 1024, config.intermediate = 4096;
  } else if (name == "minilm") {
    config.layers = 6, config.heads = 12, config.hidden = 384, config.intermediate = 1536;
  } else {
    throw UsageError(fmt::format("no encoder is called '{}'", name), "--model",
                     "use bert-base, bert-large, minilm or a model's folder");
  }
  return config;
}

BertConfig BertConfig::from_json(const nlohmann::json& json, const std::string& where) {
  BertConfig config;
  config.family = family_of(json, where);
  const std::string positions = config_string(json, "position_embedding_type", "absolute", where);
  if (positions != "absolute") {
    throw Error(fmt::format("\"position_embedding_type\" is \"{}\"", positions), where,
                "use a model with absolute positions");
  }
  refuse_flag(json, "is_decoder", where);
  refuse_flag(json, "add_cross_attention", where);
  config.layers = config_integer(json, "num_hidden_layers", where);
  config.heads = config_integer(json, "num_attention_heads", where);
  config.hidden = config_integer(json, "hidden_size", where);
  config.intermediate = config_integer(json, "intermediate_size", where);
  config.vocab = config_integer(json, "vocab_size", where);
  config.positions = config_integer(json, "max_position_embeddings", where);
  config.types = optional_config_integer(json, "type_vocab_size", where).value_or(2);
  const std::int64_t padding = config.family == Family::roberta ? 1 : 0;
  config.padding_token = optional_config_integer(json, "pad_token_id", where).value_or(padding);
  config.labels = labels_of(json, where);
  config.activation = activation_of(json, where);
  config.eps = config_epsilon(json, "layer_norm_eps", config.eps, where);
  config.validate(where);
  return config;
}

BertConfig read_bert_config(const fs::path& folder) {
  if (!is_folder(folder)) {
    throw Error("is not a folder", folder.string(), kModelRemedy);
  }
  const fs::path path = config_in(folder);
  return BertConfig::from_json(read_json(path), path.string());
}

BertPooling read_bert_pooling(const fs::path& folder, const BertConfig& config) {
  BertPooling pooling;
  pooling.max_length = longest_text(folder);
  const fs::path list = folder / "modules.json";
  if (!path_exists(list)) {
    const fs::path path = folder / "1_Pooling" / "config.json";
    if (path_exists(path)) read_pooling(path, pooling);
    return pooling;
  }
  const std::string where = list.string();
  const nlohmann::json modules = read_json(list);
  if (!modules.is_array()) throw Error("is not a JSON list", where, kRemedy);
  std::int64_t width = config.hidden;
  for (const nlohmann::json& module : modules) {
    const std::string name = module_name(module, where);
    if (name == "Transformer") continue;
    if (pooling.normalize) throw Error("has a module after Normalize", where, kRemedy);
    const fs::path path = module_folder(folder, module, where);
    if (name == "Pooling") {
      read_pooling(path / "config.json", pooling);
    } else if (name == "Dense") {
      pooling.dense.push_back(read_dense(path));
      if (pooling.dense.back().in != width) {
        throw Error(fmt::format("takes {} features, but the module before it gives {}",
                                pooling.dense.back().in, width),
                    path.string(), kRemedy);
      }
      width = pooling.dense.back().out;
    } else if (name == "Normalize") {
      pooling.normalize = true;
    } else {
      throw Error(fmt::format("names a module \"{}\"", name), where,
                  "use a model of Transformer, Pooling, Dense and Normalize");
    }
  }
  return pooling;
}

}  // namespace warpwright
