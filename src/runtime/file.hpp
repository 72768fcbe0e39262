// Reads files and folders. Also includes the headers for writing: checked buffered output, atomic replacement
// of files and folders, folder locks.
//
// Every function here throws Error (path, what failed, what to do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/atomic_output.hpp"
#include "runtime/descriptor.hpp"
#include "runtime/folder_lock.hpp"
#include "runtime/output_file.hpp"
#include "runtime/partial.hpp"
#include "runtime/provisional_folder.hpp"

namespace warpwright {

// Both follow links and return false if nothing is there. They throw if the path cannot be examined.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

// The paths of a folder's entries, sorted.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);

// A file, pipe or device read from its beginning to its end.
class FileReader {
 public:
  // `regular`: refuses pipes and devices, on which a reader may wait forever.
  enum class Kind { any, regular };

  explicit FileReader(const std::filesystem::path& path, Kind kind = Kind::any);
  static FileReader standard_input();

  std::size_t read(std::span<char> into);  // the number of bytes read; 0 at the end
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // 0 if it has none

 private:
  FileReader(std::filesystem::path path, FileDescriptor fd);

  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
};

// The whole of a regular file of at most max_bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// "xxh128:" and 32 hexadecimal digits: XXH3 of the bytes, against damage, not against forgery.
std::string checksum_of(std::span<const std::byte> bytes);
std::string checksum_of(const std::filesystem::path& path);  // of the file's

}  // namespace warpwright
