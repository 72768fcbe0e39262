// Files mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/descriptor.hpp"

namespace warpwright {

// A file is mapped only in a process that guards its mappings, or in any process.
enum class Mapping : std::uint8_t { if_guarded, always };

// Installs a SIGBUS handler that ends the process with one line on standard error and exit code 1 if a mapped
// file loses bytes while they are read: someone truncated it, or its disk failed. For main() to call once; a
// library must not install signal handlers.
void guard_mappings();

struct MappedRegion;  // what the handler knows about a mapping

// The bytes of a regular file, read-only; an empty file is an empty range.
//
// In a process that guards its mappings the file is mapped, which costs neither memory nor time until it is
// used. In any other process it is read into memory, because there a truncated file would end the process
// with SIGBUS. `Mapping::always` maps it anyway: for files that only warpwright writes and that processes
// share.
//
// Warpwright never shortens a file that may be mapped: it renames a new one over it, and the mapping keeps
// the old one. bytes() throws if the file has become shorter than the mapping. The missing part of its last
// page reads as zeros; call require_whole() after use if that matters. No descriptor is held.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path, Mapping mapping = Mapping::if_guarded,
                      Links links = Links::follow);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  // The bytes [offset, offset + count); throws if they lie outside the file or the file has shrunk since.
  std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t count) const;
  std::span<const std::byte> bytes() const { return bytes(0, size_); }

  // Throws if the mapped file has shrunk since.
  void require_whole() const;

 private:
  void read_whole(int fd, std::uint64_t size);
  void release();

  std::filesystem::path path_;
  std::uint64_t device_ = 0, inode_ = 0;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  MappedRegion* region_ = nullptr;  // null if the bytes are in memory of their own
};

}  // namespace warpwright
