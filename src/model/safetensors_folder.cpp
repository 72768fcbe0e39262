#include "model/safetensors_folder.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "core/error.hpp"
#include "runtime/json.hpp"
#include "runtime/json_clearer.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostIndexBytes = std::uint64_t{1} << 26;
constexpr std::size_t kMostFiles = 10'000;  // each is a mapping, of which a process has 65,530
constexpr int kMostIndexDepth = 16;
constexpr const char* kCopyFolder = "copy the whole folder again";

[[noreturn]] void refuse_without_safetensors(const fs::path& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!path_exists(folder / name)) continue;
    throw Error(
        "has its weights in pytorch_model.bin, a pickle, which only Python can read", folder.string(),
        "convert them within the folder: python3 -c \"import glob, torch; from safetensors.torch import "
        "save_file; save_file({k: v.clone().contiguous() for f in sorted(glob.glob('pytorch_model*.bin')) "
        "for k, v in torch.load(f, weights_only=True).items()}, 'model.safetensors', {'format': 'pt'})\"");
  }
  throw Error("has no model.safetensors and no model.safetensors.index.json", folder.string(),
              "use a folder whose weights are safetensors (save_pretrained writes them)");
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Tensors by the names of their files, and total_size, or -1 if the index has none.
struct Index {
  std::map<std::string, std::vector<std::string>> files;
  double total_size = -1;
};

Index parse_index(const fs::path& path) {
  const std::string where = path.string();
  const auto fail = [&](const std::string& what) { throw Error(what, where, kCopyFolder); };
  nlohmann::json json = parse_json(read_file(path, kMostIndexBytes), where, kMostIndexDepth, kCopyFolder);
  const JsonClearer clearer(json);
  if (!json.is_object()) fail("is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    if (key != "metadata" && key != "weight_map") fail("has the unknown key " + quote(key));
    if (!value.is_object()) fail(quote(key) + " is not an object");
  }
  if (!json.contains("weight_map") || json["weight_map"].empty())
    fail("lists no tensors under \"weight_map\"");
  Index index;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      fail("maps tensor " + quote(tensor) + " to something other than a file name");
    }
    index.files[file.get<std::string>()].push_back(tensor);
    if (index.files.size() > kMostFiles) fail(fmt::format("lists more than {} files", kMostFiles));
  }
  const nlohmann::json metadata = json.value("metadata", nlohmann::json::object());
  if (const auto total = metadata.find("total_size"); total != metadata.end()) {
    if (!total->is_number() || !(total->get<double>() >= 0)) fail("\"total_size\" is not a number of bytes");
    index.total_size = total->get<double>();
  }
  return index;
}

// Checks that the file holds the tensors that the index gives it, and no others.
void check_contents(const SafetensorsFile& file, const std::vector<std::string>& listed,
                    const fs::path& index) {
  for (const std::string& tensor : listed) {
    if (file.find(tensor)) continue;
    throw Error("has no tensor " + quote(tensor) + ", which " + index.filename().string() + " gives it",
                file.path().string(), kCopyFolder);
  }
  if (file.entries().size() == listed.size()) return;
  const std::set<std::string_view> names(listed.begin(), listed.end());
  for (const SafetensorsEntry& entry : file.entries()) {
    if (names.contains(entry.name)) continue;
    throw Error(
        "holds a tensor " + quote(entry.name) + " that " + index.filename().string() + " does not give it",
        file.path().string(), kCopyFolder);
  }
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) : path_(folder / kSafetensors) {
  if (path_exists(path_)) {
    files_.emplace_back(path_);
  } else if (path_ = folder / kSafetensorsIndex; path_exists(path_)) {
    read_index();
  } else {
    refuse_without_safetensors(folder);
  }
  list_tensors();
}

void SafetensorsFolder::read_index() {
  const Index index = parse_index(path_);
  double bytes = 0;
  for (const auto& [name, tensors] : index.files) {
    const fs::path path = path_.parent_path() / name;
    if (!path_exists(path)) {
      throw Error(fmt::format("lists {}, which is not in the folder", quote(name)), path_.string(),
                  kCopyFolder);
    }
    files_.emplace_back(path);
    check_contents(files_.back(), tensors, path_);
    for (const SafetensorsEntry& entry : files_.back().entries()) {
      bytes += static_cast<double>(entry.end - entry.begin);
    }
  }
  if (index.total_size >= 0 && index.total_size != bytes) {
    throw Error(
        fmt::format("promises {:.0f} bytes of tensors, but its files hold {:.0f}", index.total_size, bytes),
        path_.string(), kCopyFolder);
  }
}

void SafetensorsFolder::list_tensors() {
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      by_name_.emplace(entry.name, tensors_.size());
      tensors_.push_back({&file, &entry});
    }
  }
}

SafetensorsFolder::StoredTensor SafetensorsFolder::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? StoredTensor() : tensors_[found->second];
}

std::string shard_name(std::string_view content, std::size_t index, std::size_t count) {
  if (count == 1) return fmt::format("{}.safetensors", content);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", content, index + 1, count);
}

std::vector<std::string> shards_in(const fs::path& folder, std::string_view content) {
  std::vector<std::string> names;
  if (!path_exists(folder)) return names;
  const std::regex shard(fmt::format(R"({}-\d{{5,}}-of-\d{{5,}}\.safetensors)", content));
  for (const fs::path& file : list_folder(folder)) {
    if (const std::string name = file.filename().string(); std::regex_match(name, shard))
      names.push_back(name);
  }
  return names;
}

void write_safetensors_index(const fs::path& folder, const std::vector<std::string>& files) {
  std::uint64_t bytes = 0;
  nlohmann::json places;
  for (const std::string& name : files) {
    const SafetensorsFile file(folder / name);
    for (const SafetensorsEntry& entry : file.entries()) {
      bytes += entry.end - entry.begin;
      places[entry.name] = name;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", places}};
  write_file_atomically(folder / kSafetensorsIndex, index.dump(2) + "\n");
}

std::string SafetensorsFolder::checksum() const {
  if (files_.size() == 1) return files_.front().checksum();
  std::string all;
  for (const SafetensorsFile& file : files_) all += file.checksum();
  return checksum_of(std::as_bytes(std::span(all)));
}

std::string checksum_of_weights(const fs::path& source) {
  return is_folder(source) ? SafetensorsFolder(source).checksum() : checksum_of(source);
}

}  // namespace warpwright
