// Checked, buffered output to one file, and folders for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/descriptor.hpp"

namespace warpwright {

// Makes the folder and its missing parents, and syncs each into its parent. For a dangling link, makes the
// folder that it names. made: also gets the paths of the folders that were missing, parents first.
void create_folders(const std::filesystem::path& path, std::vector<std::filesystem::path>* made = nullptr);

// Buffered output in which every write, sync and close is checked. close() completes the file; destruction
// without it (while an error propagates) drops what is buffered.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);  // creates or truncates
  // `sequential`: writes go to the descriptor's own position (a pipe, standard output).
  OutputFile(const std::filesystem::path& path, FileDescriptor fd, bool sequential = false);
  static OutputFile continued(const std::filesystem::path& path);  // appends

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Overwrites what is already written; not for sequential output.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Adds zeros up to this size; not for sequential output.
  void extend(std::uint64_t size);
  void flush();  // to the kernel
  void sync();   // to the disk, if the output is on one
  void close();

  std::uint64_t size() const { return written_ + buffer_.size(); }
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_.get(); }

 private:
  void write_through(std::span<const std::byte> bytes, std::uint64_t offset);

  std::filesystem::path path_;
  FileDescriptor fd_;
  bool sequential_ = false;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

}  // namespace warpwright
