#include "cli/free_sizes.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "cli/checks.hpp"
#include "core/error.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/llama_decoder.hpp"

namespace warpwright::cli {
namespace {

constexpr const char *kGPT2 = "gpt2", *kLlama = "llama";

// Families that have named sizes only, and what to give instead.
constexpr std::pair<std::string_view, std::string_view> kOtherFamilies[] = {
    {"mistral", "--family llama, which is the same without windows, or a named size, as --model mistral:7B"},
    {"qwen2", "--family llama, which is the same without biases, or a named size, as --model qwen2.5:0.5B"},
    {"qwen3", "--family llama, which is the same without QK norm, or a named size, as --model qwen3:0.6B"},
    {"gpt_neox", "a named size, as --model pythia:70M"}};

CLI::Validator of_free_sizes() {
  return CLI::Validator(
      [](std::string& text) {
        for (const auto& [family, instead] : kOtherFamilies) {
          if (text == family) return fmt::format("{} has no free sizes; give {}", text, instead);
        }
        return std::string();
      },
      "");
}

void require(bool good, const std::string& problem, const char* flag, const char* remedy) {
  if (!good) throw UsageError(problem, flag, remedy);
}

void set(std::int64_t& size, std::int64_t given) {
  if (given > 0) size = given;
}

template <class Config>
void set_common(Config& config, const FreeSizes& sizes) {
  set(config.layers, sizes.layers);
  set(config.heads, sizes.heads);
  set(config.channels, sizes.channels);
  set(config.vocab, sizes.vocab);
  set(config.context, sizes.context);
  require(config.layers > 0, "is missing", "--layers", "give the number of layers");
  require(config.heads > 0, "is missing", "--heads", "give the number of attention heads");
  require(config.channels > 0, "is missing", "--channels", "give the number of channels");
  require(config.channels % config.heads == 0,
          fmt::format("{} heads do not divide {} channels", config.heads, config.channels), "--heads",
          "choose heads that divide the channels");
}

std::shared_ptr<const Decoder> validated(std::shared_ptr<const Decoder> decoder, const char* flags) {
  try {
    decoder->validate(flags);
  } catch (const Error& error) {
    throw UsageError(error.problem(), error.where(), error.remedy());
  }
  return decoder;
}

std::shared_ptr<const Decoder> free_gpt2(const FreeSizes& sizes, const GPT2Decoder* base) {
  const char* flag = sizes.key_heads > 0 ? "--key-heads" : "--hidden";
  require(!sizes.key_heads && !sizes.hidden, "is given for a gpt2, which has no such size", flag,
          "leave it out, or give --family llama");
  GPT2Config config = base ? base->sizes() : GPT2Config{};
  set_common(config, sizes);
  return validated(std::make_shared<GPT2Decoder>(config),
                   "--layers, --heads, --channels, --vocab, --context");
}

std::shared_ptr<const Decoder> free_llama(const FreeSizes& sizes, const LlamaDecoder* base) {
  LlamaConfig config = base ? base->sizes() : LlamaConfig{.eps = 1e-5f, .tied_head = true, .rope = {}};
  set_common(config, sizes);
  if (!base || config.heads != base->sizes().heads || config.channels != base->sizes().channels) {
    config.head_size = config.rope.R = config.channels / config.heads;
    config.key_heads = config.heads;
    config.hidden = (config.channels * 8 / 3 + 63) / 64 * 64;
  }
  set(config.key_heads, sizes.key_heads);
  set(config.hidden, sizes.hidden);
  require(config.heads % config.key_heads == 0,
          fmt::format("{} key heads do not divide {} heads", config.key_heads, config.heads), "--key-heads",
          "choose key heads that divide the heads");
  require(config.head_size % 2 == 0 && config.head_size <= 256,
          fmt::format("heads of {}/{} = {} elements", config.channels, config.heads, config.head_size),
          "--heads", "choose heads of an even number of elements, at most 256");
  return validated(std::make_shared<LlamaDecoder>(config),
                   "--layers, --heads, --key-heads, --channels, --hidden, --vocab, --context");
}

}  // namespace

void FreeSizes::add_to(CLI::App& c, const std::string& vocab_default) {
  c.add_option(
       "--family", family,
       "Kind of a free size: gpt2, or llama (RMSNorm, rotary positions, SwiGLU, tied head); default: gpt2")
      ->check(of_free_sizes())
      ->check(one_of({kGPT2, kLlama}));
  c.add_option("--layers", layers, "Layers; default: those of --model")->check(at_least(1));
  c.add_option("--heads", heads, "Attention heads; default: those of --model")->check(at_least(1));
  c.add_option("--key-heads", key_heads, "Heads of keys and values of a llama; default: --heads")
      ->check(at_least(1));
  c.add_option("--channels", channels, "Channels; default: those of --model")->check(at_least(1));
  c.add_option("--hidden", hidden,
               "Channels inside a llama's MLP; default: 8/3 of --channels, up to a multiple of 64")
      ->check(at_least(1));
  c.add_option("--vocab", vocab, "Vocabulary; default: " + vocab_default)->check(at_least(1));
  c.add_option("--context", context,
               "Most positions; default: the model's own; for a free size --seq, else 1024")
      ->check(at_least(1));
}

std::string FreeSizes::flags() const {
  const std::pair<const char*, bool> all[] = {{"--family", !family.empty()}, {"--layers", layers > 0},
                                              {"--heads", heads > 0},        {"--key-heads", key_heads > 0},
                                              {"--channels", channels > 0},  {"--hidden", hidden > 0},
                                              {"--vocab", vocab > 0},        {"--context", context > 0}};
  std::string names;
  for (const auto& [flag, is_given] : all) {
    if (is_given) names += fmt::format("{}{}", names.empty() ? "" : ", ", flag);
  }
  return names;
}

std::string FreeSizes::beside_model() const {
  return !family.empty() ? "--family" : key_heads ? "--key-heads" : hidden ? "--hidden" : "";
}

std::shared_ptr<const Decoder> free_model(const FreeSizes& sizes, const Decoder* base) {
  const auto* gpt2 = dynamic_cast<const GPT2Decoder*>(base);
  const auto* llama = dynamic_cast<const LlamaDecoder*>(base);
  if (base && !gpt2 && !llama) {
    throw UsageError(fmt::format("is given for a {}", base->config({}).at("model_type").get<std::string>()),
                     sizes.flags(), "leave out the sizes: the checkpoint has them");
  }
  const std::string of_base = gpt2 ? kGPT2 : kLlama;
  const std::string family = !sizes.family.empty() ? sizes.family : base ? of_base : kGPT2;
  require(!base || family == of_base, fmt::format("is {}, the checkpoint's model is {}", family, of_base),
          "--family", "leave out --family and all sizes: the checkpoint has them");
  return family == kLlama ? free_llama(sizes, llama) : free_gpt2(sizes, gpt2);
}

}  // namespace warpwright::cli
