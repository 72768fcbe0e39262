#include "model/decoder_files.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/families.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/gpt2_llmc.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kChatTemplate = "chat_template.jinja";
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", kTokenizerConfig,          "vocab.json",
                                           "merges.txt",     "special_tokens_map.json", "added_tokens.json",
                                           kChatTemplate};
constexpr std::uint64_t kMostTokenizerBytes = std::uint64_t{1} << 30;

nlohmann::json read_json(const fs::path& path) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  constexpr int kDepth = 64;
  return parse_json(read_file(path, kMostBytes), path.string(), kDepth,
                    fmt::format("use the model's own {}", path.filename().string()));
}

nlohmann::json read_config_json(const fs::path& folder) {
  return read_json(config_in(folder));
}

// The ids of the end of text in generation_config.json; none if it is missing or has none.
std::vector<std::int64_t> eos_for_generation(const fs::path& folder) {
  const fs::path path = folder / kGenerationConfig;
  if (!path_exists(path)) return {};
  const nlohmann::json json = read_json(path);
  if (!json.is_object())
    throw Error("is not a JSON object", path.string(), "use the model's own, or delete it");
  return BoundaryTokens::from_json({{"eos_token_id", json.value("eos_token_id", nlohmann::json())}},
                                   path.string())
      .eos;
}

// The chat template of a tokenizer's files, which come from this folder: chat_template.jinja, else
// "chat_template" of tokenizer_config.json, and of several there the one named default. "" without one.
std::string chat_template_of(const TokenizerFiles& files, const fs::path& folder) {
  constexpr int kDepth = 16;
  constexpr const char* kRemedy = "use the model's own tokenizer_config.json";
  if (const auto found = files.find(kChatTemplate); found != files.end()) return found->second;
  const auto config_file = files.find(kTokenizerConfig);
  if (config_file == files.end()) return "";
  const std::string path = (folder / kTokenizerConfig).string();
  const nlohmann::json config =
      parse_json_members(config_file->second, {"chat_template"}, path, kDepth, kRemedy);
  try {
    const nlohmann::json given = config.value("chat_template", nlohmann::json());
    if (!given.is_array()) return given.is_null() ? "" : given.get<std::string>();
    for (const nlohmann::json& named : given) {
      if (named.at("name") == "default") return named.at("template").get<std::string>();
    }
    return "";
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("\"chat_template\" cannot be read: {}", reason_of(error)), path, kRemedy);
  }
}

}  // namespace

fs::path model_folder(const fs::path& source) {
  std::error_code ignored;  // whatever reads the path will report it
  fs::path model = source / "model";
  const bool is_run =
      !fs::exists(source / "config.json", ignored) && fs::exists(model / "config.json", ignored);
  return is_run ? model : source;
}

std::shared_ptr<const Decoder> read_decoder(const fs::path& source) {
  if (is_folder(source)) {
    return decoder_of_config(read_config_json(source), (source / "config.json").string());
  }
  if (!path_exists(source)) throw Error("does not exist", source.string(), kModelRemedy);
  return std::make_shared<GPT2Decoder>(read_gpt2_llmc_config(source));
}

BoundaryTokens read_boundary_tokens(const fs::path& folder) {
  BoundaryTokens tokens =
      BoundaryTokens::from_json(read_config_json(folder), (folder / "config.json").string());
  if (std::vector<std::int64_t> eos = eos_for_generation(folder); !eos.empty()) tokens.eos = std::move(eos);
  return tokens;
}

fs::path file_of_eos(const fs::path& folder) {
  return folder / (eos_for_generation(folder).empty() ? "config.json" : kGenerationConfig);
}

DType stored_dtype(const fs::path& source) {
  return read_decoder(source)->stored_dtype(source);
}

void verify_model(const fs::path& source) {
  constexpr std::uint64_t kMostBytes = 16 << 20;
  constexpr int kDepth = 16;
  const fs::path state = source / "trainer.json";
  if (!fs::is_directory(source) || !path_exists(state)) return;
  const nlohmann::json json = parse_json_members(read_file(state, kMostBytes), {"checksums"}, state.string(),
                                                 kDepth, "use another checkpoint");
  const nlohmann::json checksums = json.value("checksums", nlohmann::json::object());
  for (const auto& [name, checksum] : checksums.items()) {
    const fs::path file = source / fs::path(name).filename();
    if (name.starts_with("optimizer") || !path_exists(file) || checksum == checksum_of(file)) continue;
    throw Error("is damaged, or of another checkpoint: its checksum is not the one in trainer.json",
                file.string(),
                "use another checkpoint; if the file was changed on purpose, delete trainer.json");
  }
}

DecoderWeights load_weights(const fs::path& source, DType dtype, Device device) {
  verify_model(source);
  const std::shared_ptr<const Decoder> decoder = read_decoder(source);
  return unpacked_weights(decoder, dtype, device,
                          [&](const ParameterWriter& write) { decoder->load(source, write); });
}

Replaceable replaceable_model_folder(const fs::path& folder) {
  Replaceable replaceable{
      "a model's folder",
      {"config.json", kGenerationConfig, kSafetensors, kSafetensorsIndex, "warpwright.json"}};
  auto& files = replaceable.files;
  files.insert(files.end(), std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  for (std::string& shard : shards_in(folder, "model")) files.push_back(std::move(shard));
  return replaceable;
}

TokenizerFiles read_tokenizer_files(const fs::path& folder) {
  TokenizerFiles files;
  for (const char* name : kTokenizerFiles) {
    if (path_exists(folder / name)) files[name] = read_file(folder / name, kMostTokenizerBytes);
  }
  return files;
}

void add_chat_template(TokenizerFiles& files, const fs::path& folder) {
  if (!is_folder(folder) || !chat_template_of(files, folder).empty()) return;
  std::string text = chat_template_of(read_tokenizer_files(folder), folder);
  if (!text.empty()) files[kChatTemplate] = std::move(text);
}

void write_tokenizer_files(const TokenizerFiles& files, const fs::path& folder) {
  for (const auto& [name, content] : files) write_file_atomically(folder / name, content);
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  write_tokenizer_files(read_tokenizer_files(from), to);
}

void copy_generation_config(const fs::path& from, const fs::path& to) {
  const fs::path file = from / kGenerationConfig;
  if (is_folder(from) && path_exists(file))
    write_file_atomically(to / kGenerationConfig, read_file(file, kMostTokenizerBytes));
}

}  // namespace warpwright
