// The tensors of a folder's safetensors files: model.safetensors, or the shards that
// model.safetensors.index.json lists.
//
//   {"metadata": {"total_size": 20}, "weight_map": {"NAME": "model-00001-of-00002.safetensors", …}}
//
// total_size is the bytes of all tensors; it and the whole metadata may be missing, and metadata may hold
// more. Source: huggingface_hub, serialization/_base.py (StateDictSplit) and transformers' save_pretrained.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/safetensors.hpp"

namespace warpwright {

inline constexpr const char* kSafetensors = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

// "model-00002-of-00004.safetensors" for index 1 of 4, or "model.safetensors" if there is one.
std::string shard_name(std::string_view content, std::size_t index, std::size_t count);
// The files in the folder with such a name; none if it is missing.
std::vector<std::string> shards_in(const std::filesystem::path& folder, std::string_view content);

class SafetensorsFolder {
 public:
  // Maps every file and checks its header, and an index against its files: every listed tensor is in the file
  // that the index names, the files hold no others, and the sizes agree. The names of files are plain names
  // within the folder. Throws Error; if the weights are in PyTorch's format, with the command that converts
  // them.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  struct StoredTensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;

    explicit operator bool() const { return entry != nullptr; }
    std::span<const std::byte> bytes() const { return file->bytes(*entry); }
  };

  // model.safetensors or the index, for messages.
  const std::filesystem::path& path() const { return path_; }
  // In order of files and of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  StoredTensor find(std::string_view name) const;  // empty if there is none
  // Of the mapped bytes, whatever files have these names by now.
  std::string checksum() const;

 private:
  void read_index();
  void list_tensors();

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;  // in order of their names
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

// The checksum of a folder's safetensors files, or of a file in another format.
std::string checksum_of_weights(const std::filesystem::path& source);

// Writes the index of these files, which are in the folder and hold the tensors of one model.
void write_safetensors_index(const std::filesystem::path& folder, const std::vector<std::string>& files);

}  // namespace warpwright
