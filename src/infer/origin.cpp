#include "infer/origin.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "warpwright.json";
constexpr const char* kFormat = "warpwright-model";
constexpr int kVersion = 1, kDepth = 16;
constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
constexpr const char* kRemedy = "remove it: the model then counts as one of unknown origin";

// The fingerprint of the tokenizer that a model was trained with.
std::optional<text::TokenizerFingerprint> tokenizer_of(const fs::path& model) {
  if (!is_folder(model)) return std::nullopt;
  if (const auto origin = read_origin(model); origin && origin->tokenizer) return origin->tokenizer;
  return text::fingerprint_in(model);
}

}  // namespace

nlohmann::json to_json(const ModelOrigin& origin) {
  return {{"step", origin.step},
          {"sequence", origin.sequence},
          {"tokenizer", origin.tokenizer ? text::to_json(*origin.tokenizer) : nlohmann::json()},
          {"data", to_json(origin.data)}};
}

ModelOrigin model_origin(const nlohmann::json& json) {
  ModelOrigin origin;
  origin.step = json.at("step").get<std::int64_t>();
  origin.sequence = json.at("sequence").get<std::int64_t>();
  const nlohmann::json& tokenizer = json.at("tokenizer");
  if (!tokenizer.is_null()) origin.tokenizer = text::tokenizer_fingerprint(tokenizer);
  origin.data = data_fingerprint(json.at("data"));
  return origin;
}

void write_origin(const fs::path& model, const ModelOrigin& origin) {
  nlohmann::json json = to_json(origin);
  json["format"] = kFormat;
  json["version"] = kVersion;
  write_file_atomically(model / kFile, json.dump(2) + "\n");
}

std::optional<ModelOrigin> read_origin(const fs::path& model) {
  const fs::path path = model / kFile;
  if (!is_folder(model) || !path_exists(path)) return std::nullopt;
  const nlohmann::json json = parse_json(read_file(path, kMostBytes), path.string(), kDepth, kRemedy);
  try {
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      throw Error(fmt::format("is not {} in version {}", kFormat, kVersion), path.string(), kRemedy);
    }
    return model_origin(json);
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("cannot be read: {}", reason_of(error)), path.string(), kRemedy);
  }
}

std::string compare_tokenizers(const fs::path& model, std::int64_t model_vocabulary, const fs::path& data,
                               bool allow_change) {
  const auto before = tokenizer_of(model), now = text::fingerprint_in(data);
  if (!before || !now) {
    const auto manifest = read_manifest(data);
    if (manifest && manifest->vocabulary_size > model_vocabulary) {
      throw Error(fmt::format("has a vocabulary of {}, but the model {} has one of {}",
                              manifest->vocabulary_size, model.string(), model_vocabulary),
                  data.string(), "build the data with the model's tokenizer");
    }
    return fmt::format("{} has no tokenizer to compare: the ids of {} are assumed to be the model's",
                       before ? data.string() : model.string(), data.string());
  }
  const std::string differs = text::difference(*before, *now);
  if (differs.empty()) return "";
  if (!allow_change) {
    throw Error(
        fmt::format("has a different tokenizer from the model {}: {} differ", model.string(), differs),
        data.string(), "use the model's tokenizer, or go on with --allow-tokenizer-change");
  }
  return fmt::format("{} has a different tokenizer from the model: {} differ", data.string(), differs);
}

}  // namespace warpwright
