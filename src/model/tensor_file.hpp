// Shared by the formats of model files: named tensors, and a writer that takes them in a declared order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/tensor.hpp"
#include "runtime/file.hpp"

namespace warpwright {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  bool operator==(const TensorInfo&) const = default;
};
std::uint64_t bytes_of(const TensorInfo& tensor);

// Writes a header and the bytes of the declared tensors, which come in their order; the file appears whole
// with commit(). A wrong name, too many bytes or a missing tensor is an Error, so that no file can be
// inconsistent with its header.
class TensorFileWriter {
 public:
  // places: where each tensor begins after the header; empty if each begins where the one before it ends.
  TensorFileWriter(const std::filesystem::path& path, std::span<const std::byte> header,
                   std::vector<TensorInfo> tensors, std::vector<std::uint64_t> places = {});

  // The next bytes (row-major, little-endian) of the tensor whose turn it is; a tensor may come in several
  // parts.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  void skip_complete();

  AtomicFile output_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint64_t> places_;  // empty, or within the file
  std::size_t current_ = 0;
  std::uint64_t missing_ = 0;  // bytes that the current tensor still lacks
};

}  // namespace warpwright
