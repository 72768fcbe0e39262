// safetensors files.
//
//   uint64    length of the header, little-endian, at most 100,000,000
//   header    JSON, padded with spaces:
//             {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …,
//              "__metadata__": {"KEY": "VALUE", …}}
//   data      the tensors' bytes, row-major, little-endian, one after the other without gaps
//
// Source: the format's description in github.com/huggingface/safetensors, whose rules are all checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tensor_file.hpp"
#include "runtime/mapped_file.hpp"

namespace warpwright {

// A tensor as the file declares it. dtype is empty if the format has a type that this project lacks
// (BOOL, I8, the F8 kinds, …): such a tensor is listed and measured, but cannot be read.
struct SafetensorsEntry {
  std::string name;
  std::string stored_dtype;  // the format's name, "BF16"
  std::optional<DType> dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // within the data
};

// A mapped file, all of whose header is checked when it is opened: length, JSON, types, shapes, sizes, and
// that the tensors fill the data exactly, without gap, overlap or rest.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const SafetensorsEntry* find(std::string_view name) const;  // null if there is none
  // The bytes of a tensor, aligned to 1 only: copy them out. Throws if its type is not one of DType's.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  std::string checksum() const { return checksum_of(file_.bytes()); }  // of the whole mapped file

 private:
  void place_entries();

  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views of entries_
  std::map<std::string, std::string> metadata_;
};

// A writer that takes the tensors in the given order, and makes the bytes that Hugging Face's own writer
// makes for the order in the file. That is the given one if every tensor then begins at a multiple of its
// element size. Otherwise tensors of wide types come first, since the format allows no gaps. Names must
// differ.
TensorFileWriter write_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace warpwright
