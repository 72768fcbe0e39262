#include "model/families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/llama_decoder.hpp"
#include "model/neox_decoder.hpp"

namespace warpwright {
namespace {

constexpr std::string_view kGPT2 = "gpt2:";
constexpr LlamaFamily kLlamaFamilies[] = {LlamaFamily::llama, LlamaFamily::mistral, LlamaFamily::qwen2,
                                          LlamaFamily::qwen3};

template <class Config>
void resize(Config& config, std::int64_t vocab, std::int64_t context) {
  if (vocab > 0) config.vocab = vocab;
  if (context > 0) config.context = context;
}

}  // namespace

std::shared_ptr<const Decoder> decoder_of_config(const nlohmann::json& config, const std::string& where) {
  const std::string type = require_network(config, Network::decoder, where);
  BoundaryTokens::from_json(config, where);  // which throws for what are no ids
  for (const LlamaFamily family : kLlamaFamilies) {
    if (type == name_of(family))
      return std::make_shared<LlamaDecoder>(LlamaConfig::from_json(family, config, where));
  }
  if (type == "gpt_neox") return std::make_shared<NeoxDecoder>(NeoxConfig::from_json(config, where));
  if (type == "gpt2") return std::make_shared<GPT2Decoder>(GPT2Config::from_json(config, where));
  throw Error(fmt::format("model_type {} has no decoder in this version", type), where,
              "add its family to decoder_of_config()");
}

bool names_sizes(const std::string& model) {
  const std::string family = model.substr(0, model.find(':') + 1);
  const std::vector<std::string> names = size_names();
  return family.size() > 1 &&
         std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(family); });
}

std::shared_ptr<const Decoder> named_decoder(const std::string& model, std::int64_t vocab,
                                             std::int64_t context) {
  if (model.starts_with(kGPT2)) {
    GPT2Config config = GPT2Config::named(std::string_view(model).substr(kGPT2.size()));
    resize(config, vocab, context);
    return std::make_shared<GPT2Decoder>(config);
  }
  if (std::optional<NeoxConfig> config = NeoxConfig::named(model)) {
    resize(*config, vocab, context);
    return std::make_shared<NeoxDecoder>(*config);
  }
  if (std::optional<LlamaConfig> config = LlamaConfig::named(model)) {
    resize(*config, vocab, context);
    return std::make_shared<LlamaDecoder>(*config);
  }
  throw UsageError(fmt::format("no model is called '{}'", model), "--model",
                   fmt::format("use {} or a model's folder", known_sizes()));
}

std::vector<std::string> size_names() {
  std::vector<std::string> names = {"gpt2:124M", "gpt2:355M", "gpt2:774M", "gpt2:1558M", "gpt2:dN"};
  for (std::string& name : LlamaConfig::names()) names.push_back(std::move(name));
  for (std::string& name : NeoxConfig::names()) names.push_back(std::move(name));
  return names;
}

std::string known_sizes() {
  return fmt::format("{} (gpt2:dN has N layers)", fmt::join(size_names(), ", "));
}

}  // namespace warpwright
