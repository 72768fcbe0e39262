#include "cli/model_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/checks.hpp"
#include "cli/named.hpp"
#include "cli/nearest.hpp"
#include "cli/rank_order.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "infer/decoder_texts.hpp"
#include "infer/origin.hpp"
#include "model/families.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "train/checkpoint.hpp"

namespace warpwright::cli {

namespace {

// FAMILY:SIZE of a family that may be unknown, rather than a path.
bool resembles_sizes(const std::string& model) {
  return model.find(':') != std::string::npos && model.find('/') == std::string::npos;
}

}  // namespace

void add_dtype_flag(CLI::App& command, std::string& dtype, const std::vector<std::string>& others) {
  std::vector<std::string> words = {"fp32", "tf32", "bf16"};
  words.insert(words.end(), others.begin(), others.end());
  std::vector<std::string> texts = {"fp32", "tf32 (GPU)", "bf16"};
  if (others.empty())
    texts = {"fp32", "tf32 (GPU: products rounded to it)", "bf16 (norms' weights stay fp32)"};
  for (const std::string& word : others) {
    texts.push_back(word == "auto"   ? "auto (as stored)"
                    : word == "int8" ? "int8 (CPU: products; the rest in bf16 or fp32)"
                                     : word + " (GPU)");
  }
  command.add_option("--dtype", dtype, fmt::format("{}", fmt::join(texts, ", ")))
      ->capture_default_str()
      ->check(one_of(std::move(words)));
}

DType compute_dtype(const std::string& name) {
  if (name == "fp32" || name == "tf32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  throw UsageError(fmt::format("{} is not a dtype to compute in", quote(name)), "--dtype",
                   "use fp32, tf32 (on a GPU), bf16 or, for an encoder on a GPU, fp16");
}

Precision precision_named(const std::string& name, const DeviceInfo& device) {
  if (name != "int8") return {.dtype = compute_dtype(name)};
  try {
    return int8_precision(device);
  } catch (const UsageError& error) {
    throw UsageError(error.problem(), "--dtype", error.remedy());
  }
}

std::vector<std::string> recompute_names() {
  return names_of(kRecomputes);
}
Recompute recompute_named(const std::string& name) {
  return named(kRecomputes, name, "--recompute");
}

std::vector<std::string> optimizer_names() {
  return names_of(kOptimizers);
}
Optimizer optimizer_named(const std::string& name) {
  return named(kOptimizers, name, "--optimizer");
}

std::vector<std::string> sharding_names() {
  std::vector<std::string> names = names_of(kShardings);
  names.insert(names.begin(), "auto");
  return names;
}
Sharding sharding_named(const std::string& name) {
  return named(kShardings, name, "--shard");
}

void add_data_change_flag(CLI::App& command, bool& allow) {
  command.add_flag("--allow-data-change", allow,
                   "Go on although the data has changed since its build or since the run began");
}

void add_tokenizer_change_flag(CLI::App& command, bool& allow) {
  command.add_flag("--allow-tokenizer-change", allow,
                   "Go on although the model was trained with another tokenizer");
}

void notify(const std::string& line) {
  if (!line.empty() && launched_rank() == 0) write_message(plain_line(line) + "\n");
}

std::function<void(const std::string&)> notify_of(std::string command) {
  return [command = std::move(command)](const std::string& line) {
    notify(fmt::format("warpwright: {}: {}", command, line));
  };
}

void require_model(const std::filesystem::path& source) {
  if (!path_exists(source)) {
    throw Error("does not exist", source.string(),
                "give a model's folder, as `warpwright train` writes RUN/model");
  }
  if (!is_folder(source) || path_exists(source / "config.json")) return;
  if (const auto checkpoints = list_checkpoints(source); !checkpoints.empty()) {
    throw Error(
        "is a run that has not written its model yet", source.string(),
        fmt::format("give its newest checkpoint, {}, or let it end", checkpoints.back().folder.string()));
  }
}

std::shared_ptr<const Decoder> decoder_of(const std::string& model, std::int64_t vocab,
                                          std::int64_t context) {
  const bool exists = path_exists(model);
  if (names_sizes(model) || (!exists && resembles_sizes(model))) {
    try {
      return named_decoder(model, vocab, context);
    } catch (const UsageError& error) {
      const auto near = nearest(model, size_names());
      if (!near) throw;
      throw UsageError(error.problem(), error.where(),
                       fmt::format("the nearest is {}; {}", *near, error.remedy()));
    }
  }
  if (!exists) {
    throw Error("is neither FAMILY:SIZE nor a folder", model,
                fmt::format("use {} or a model's folder", known_sizes()));
  }
  for (const auto& [size, flag] : {std::pair{vocab, "--vocab"}, std::pair{context, "--context"}}) {
    if (size > 0)
      throw UsageError("is given together with a model's folder", flag, "leave it out: the folder says it");
  }
  return read_decoder(model);
}

std::int64_t default_sequence(const Decoder& decoder) {
  return std::min<std::int64_t>(decoder.context(), 2048);
}

DecoderWeights load_model(const Context& context, const std::filesystem::path& source,
                          const std::string& dtype) {
  require_model(source);
  const Precision precision =
      dtype == "auto" ? Precision{.dtype = dtype_of_model(source)} : precision_named(dtype, context.device());
  return load_inference_weights(context, source, precision);
}

text::Tokenizer load_tokenizer(const std::filesystem::path& model, const std::filesystem::path& folder,
                               const Decoder& decoder, bool allow_change) {
  if (folder.empty() && !text::has_tokenizer(model)) {
    throw UsageError(fmt::format("is missing, and {} holds no tokenizer", quote(model.string())),
                     "--tokenizer", "name the folder of the model's tokenizer");
  }
  text::Tokenizer tokenizer = warpwright::load_tokenizer(folder.empty() ? model : folder, decoder);
  if (!folder.empty() && is_folder(model)) {
    notify(compare_tokenizers(model, decoder.vocab(), folder, allow_change));
  }
  return tokenizer;
}

}  // namespace warpwright::cli
