#include "data/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "warpwright-data";
constexpr std::int64_t kVersion = 1;
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;
constexpr int kMaxDepth = 16;
constexpr const char* kRemedy = "build the data again";

// Typed access to the fields of one JSON object of the manifest. Its errors name the file and the field.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("is not a JSON object");
  }

  const nlohmann::json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(fmt::format("lacks \"{}\"", key));
    return *found;
  }
  std::string text(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is not a string", key));
    return value.get<std::string>();
  }
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(key);
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                          : value.is_number_integer();
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      fail(fmt::format("\"{}\" is not an integer from {} to {}", key, least, most));
    }
    return value.get<std::int64_t>();
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(what, where_, kRemedy); }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::vector<std::string> read_checksums(const Fields& fields, std::size_t shards) {
  const nlohmann::json& list = fields.at("checksums");
  const auto is_text = [](const nlohmann::json& checksum) { return checksum.is_string(); };
  if (!list.is_array() || list.size() != shards || !std::all_of(list.begin(), list.end(), is_text)) {
    fields.fail("\"checksums\" is not a list of a checksum for each shard");
  }
  return list.get<std::vector<std::string>>();
}

SplitManifest read_split(const nlohmann::json& json, const std::string& where) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Fields fields(json, where);
  SplitManifest split;
  split.tokens = fields.integer("tokens", 0, kMost);
  split.documents = fields.integer("documents", 0, kMost);
  split.bytes = fields.integer("bytes", 0, kMost);
  const nlohmann::json& shards = fields.at("shards");
  if (!shards.is_array()) fields.fail("\"shards\" is not a list");
  for (const nlohmann::json& shard : shards) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      fields.fail("\"shards\" holds something that is not the name of a file in the folder");
    }
    split.shards.push_back(shard.get<std::string>());
  }
  if (json.contains("checksums")) split.checksums = read_checksums(fields, split.shards.size());
  return split;
}

Json to_json(const SplitManifest& split) {
  Json json = {{"tokens", split.tokens},
               {"documents", split.documents},
               {"bytes", split.bytes},
               {"shards", split.shards}};
  if (!split.checksums.empty()) json["checksums"] = split.checksums;
  return json;
}

}  // namespace

std::string_view name_of(Split split) {
  return split == Split::train ? "train" : "val";
}

std::optional<Manifest> read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "data.json";
  if (!path_exists(path)) return std::nullopt;
  const nlohmann::json json =
      parse_json(read_file(path, kMaxManifestBytes), path.string(), kMaxDepth, kRemedy);
  const Fields fields(json, path.string());
  if (fields.text("format") != kFormat) fields.fail(fmt::format("\"format\" is not \"{}\"", kFormat));
  fields.integer("version", kVersion, kVersion);

  Manifest manifest;
  manifest.vocabulary_size = fields.integer("vocabulary_size", 1, std::numeric_limits<std::int32_t>::max());
  manifest.end_of_text =
      static_cast<std::int32_t>(fields.integer("end_of_text", 0, manifest.vocabulary_size - 1));
  const Fields files(fields.at("files"), path.string());
  for (const auto& [name, checksum] : fields.at("files").items()) {
    if (!is_plain_name(name))
      files.fail("\"files\" holds something that is not the name of a file in the folder");
    manifest.files[name] = files.text(name.c_str());
  }
  const Fields splits(fields.at("splits"), path.string());
  manifest.train = read_split(splits.at("train"), path.string());
  manifest.val = read_split(splits.at("val"), path.string());
  return manifest;
}

void write_manifest(const Manifest& manifest, const std::filesystem::path& folder) {
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"vocabulary_size", manifest.vocabulary_size},
                     {"end_of_text", manifest.end_of_text},
                     {"files", manifest.files},
                     {"splits", {{"train", to_json(manifest.train)}, {"val", to_json(manifest.val)}}}};
  write_file_atomically(folder / "data.json", json.dump(2) + "\n");
}

}  // namespace warpwright
