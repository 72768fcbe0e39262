#include "model/config_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

constexpr const char* kUseOwnConfig = "use the config.json of the model's own folder";

struct Type {
  std::string_view name;
  Network network;
};
constexpr Type kModelTypes[] = {{"gpt2", Network::decoder},        {"llama", Network::decoder},
                                {"mistral", Network::decoder},     {"qwen2", Network::decoder},
                                {"qwen3", Network::decoder},       {"gpt_neox", Network::decoder},
                                {"bert", Network::encoder},        {"roberta", Network::encoder},
                                {"xlm-roberta", Network::encoder}, {"camembert", Network::encoder}};

// The text itself if it looks like a name, else quoted.
std::string shown(const std::string& name) {
  const bool plain = name.size() <= 40 && std::all_of(name.begin(), name.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                              c == '-' || c == '_' || c == '.';
                     });
  return plain && !name.empty() ? name : quote(name);
}

// Fields of every model, which say nothing else about what it computes, or which its family reads.
constexpr std::string_view kOfEveryModel[] = {"_attn_implementation_autoset",
                                              "_name_or_path",
                                              "architectures",
                                              "bos_token_id",
                                              "dtype",
                                              "eos_token_id",
                                              "gradient_checkpointing",
                                              "initializer_range",
                                              "model_type",
                                              "pad_token_id",
                                              "task_specific_params",
                                              "tie_word_embeddings",
                                              "torch_dtype",
                                              "transformers_version",
                                              "use_cache",
                                              "vocab_size"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::vector<std::string_view> model_types(Network network) {
  std::vector<std::string_view> names;
  for (const Type& type : kModelTypes) {
    if (type.network == network) names.push_back(type.name);
  }
  return names;
}

std::filesystem::path config_in(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / "config.json";
  if (!path_exists(path))
    throw Error("is not a model's folder: it has no config.json", folder.string(), kModelRemedy);
  return path;
}

std::string require_network(const nlohmann::json& config, Network wanted, const std::string& where) {
  if (!config.is_object()) throw Error("is not a JSON object", where, kUseOwnConfig);
  const auto found = config.find("model_type");
  const bool none = found == config.end() || found->is_null();
  if (none && wanted == Network::decoder && !config.contains("n_embd"))
    throw Error("\"model_type\" is missing", where, kUseOwnConfig);
  if (!none && !found->is_string()) throw Error("\"model_type\" is not a string", where, kUseOwnConfig);
  const std::string name = none ? "gpt2" : found->get<std::string>();
  const auto* type = std::find_if(std::begin(kModelTypes), std::end(kModelTypes),
                                  [&](const Type& t) { return t.name == name; });
  if (type == std::end(kModelTypes)) {
    throw Error("model_type " + shown(name), where,
                fmt::format("this version runs {}, {}", fmt::join(model_types(Network::decoder), ", "),
                            fmt::join(model_types(Network::encoder), ", ")));
  }
  if (type->network == wanted) return name;
  if (none) throw Error("\"model_type\" is missing", where, kUseOwnConfig);
  const bool needs_encoder = wanted == Network::encoder;
  throw Error(fmt::format("model_type {} is {}", name, needs_encoder ? "a decoder" : "an encoder"), where,
              fmt::format("use {}: {}", needs_encoder ? "an encoder" : "a decoder",
                          fmt::join(model_types(wanted), ", ")));
}

void refuse_value(std::string_view key, const nlohmann::json& value, std::string_view reason,
                  const std::string& where, const std::string& remedy) {
  throw Error(fmt::format("\"{}\" is {}, {}", key, value.dump(), reason), where, remedy);
}

void refuse_unknown_fields(const nlohmann::json& config, std::span<const std::string_view> known,
                           const std::string& where) {
  for (const auto& [key, value] : config.items()) {
    if (!value.is_null() && !contains(known, key) && !contains(kOfEveryModel, key))
      refuse_value(key, value, "a field that this version does not know", where);
  }
}

void require_value(const nlohmann::json& config, std::string_view key, const nlohmann::json& value,
                   const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == value) return;
  refuse_value(key, *found, fmt::format("only {} is supported", value.dump()), where);
}

std::optional<std::int64_t> optional_config_integer(const nlohmann::json& config, const char* key,
                                                    const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (!found->is_number_integer())
    throw Error(fmt::format("\"{}\" is not a whole number", key), where, kUseOwnConfig);
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
    throw Error(fmt::format("\"{}\" is {}", key, found->get<std::uint64_t>()), where, kUseOwnConfig);
  }
  return found->get<std::int64_t>();
}

std::int64_t config_integer(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto value = optional_config_integer(config, key, where);
  if (!value) throw Error(fmt::format("\"{}\" is missing", key), where, kUseOwnConfig);
  return *value;
}

bool config_flag(const nlohmann::json& config, const char* key, bool otherwise, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (!found->is_boolean())
    throw Error(fmt::format("\"{}\" is neither true nor false", key), where, kUseOwnConfig);
  return found->get<bool>();
}

std::string config_string(const nlohmann::json& config, const char* key, const std::string& otherwise,
                          const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (!found->is_string()) throw Error(fmt::format("\"{}\" is not a string", key), where, kUseOwnConfig);
  return found->get<std::string>();
}

void check_size(const char* name, std::int64_t size, std::int64_t most, const std::string& where) {
  if (size >= 1 && size <= most) return;
  throw Error(fmt::format("{} is {}", name, size), where, fmt::format("give 1 to {}", most));
}

double shortest_number(float value) {
  return std::stod(fmt::format("{}", value));
}

double config_number(const nlohmann::json& config, std::string_view key, double otherwise,
                     const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (!found->is_number()) throw Error(fmt::format("\"{}\" is not a number", key), where, kUseOwnConfig);
  return found->get<double>();
}

float config_epsilon(const nlohmann::json& config, const char* key, float otherwise,
                     const std::string& where) {
  const double value = config_number(config, key, static_cast<double>(otherwise), where);
  if (!(value >= std::numeric_limits<float>::min() && value < 1)) {
    throw Error(fmt::format("{} is {}", key, value), where, "give a small positive number");
  }
  return static_cast<float>(value);
}

}  // namespace warpwright
