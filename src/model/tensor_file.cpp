#include "model/tensor_file.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "core/error.hpp"

namespace warpwright {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are read and written in place, little-endian");

}  // namespace

std::uint64_t bytes_of(const TensorInfo& tensor) {
  return static_cast<std::uint64_t>(tensor.shape.elements()) * size_of(tensor.dtype);
}

TensorFileWriter::TensorFileWriter(const std::filesystem::path& path, std::span<const std::byte> header,
                                   std::vector<TensorInfo> tensors, std::vector<std::uint64_t> places)
    : output_(path, places.empty() ? AtomicFile::Order::forward : AtomicFile::Order::any),
      tensors_(std::move(tensors)),
      places_(std::move(places)) {
  output_.file().write(header);
  if (!places_.empty()) {
    std::uint64_t size = header.size();
    for (const TensorInfo& tensor : tensors_) size += bytes_of(tensor);
    for (std::uint64_t& place : places_) place += header.size();
    output_.file().extend(size);
  }
  if (!tensors_.empty()) missing_ = bytes_of(tensors_[0]);
  skip_complete();
}

void TensorFileWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const std::string where = output_.file().path().string();
  if (bytes.empty()) return;
  if (current_ == tensors_.size() || tensors_[current_].name != name) {
    throw Error(fmt::format("tensor {} was written, but {} comes next", name,
                            current_ == tensors_.size() ? "the end" : tensors_[current_].name),
                where, "write the tensors in the declared order");
  }
  if (bytes.size() > missing_) {
    throw Error(
        fmt::format("tensor {} gets {} bytes more than its shape holds", name, bytes.size() - missing_),
        where, "write what was declared");
  }
  if (places_.empty()) {
    output_.file().write(bytes);
  } else {
    output_.file().write_at(places_[current_] + bytes_of(tensors_[current_]) - missing_, bytes);
  }
  missing_ -= bytes.size();
  skip_complete();
}

// Moves on to the next tensor that lacks bytes.
void TensorFileWriter::skip_complete() {
  while (missing_ == 0 && current_ < tensors_.size()) {
    ++current_;
    if (current_ < tensors_.size()) missing_ = bytes_of(tensors_[current_]);
  }
}

void TensorFileWriter::commit() {
  if (current_ < tensors_.size()) {
    throw Error(fmt::format("tensor {} lacks {} bytes", tensors_[current_].name, missing_),
                output_.file().path().string(), "write every declared tensor");
  }
  output_.commit();
}

}  // namespace warpwright
