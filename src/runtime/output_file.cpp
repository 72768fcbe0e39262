#include "runtime/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "runtime/output_target.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::size_t kLargestWrite = std::size_t{1} << 30;  // Linux transfers at most 2 GiB - 4 KiB at once
constexpr const char* kCheckDisk = "check the free space and the health of the disk";

// Pipes, sockets and some devices are not seekable. Any other failure must be reported: a file mistaken for a
// pipe would be overwritten from its beginning.
bool is_seekable(int fd, const fs::path& path) {
  if (::lseek(fd, 0, SEEK_CUR) >= 0) return true;
  if (errno != ESPIPE && errno != EINVAL) throw_system_error("find the position", path.string(), kCheckDisk);
  return false;
}

}  // namespace

void create_folders(const fs::path& path, std::vector<fs::path>* made) {
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (folder.empty()) return;
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  if (const fs::path real = follow_links(folder); real != folder) return create_folders(real, made);
  create_folders(folder.parent_path(), made);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const int code = errno;
    if (fs::is_directory(folder, error)) return;  // "..", ".", or another process was faster
    errno = code;
    throw_system_error("create the folder", folder.string(), kCheckPath);
  }
  if (made) made->push_back(folder);
  sync_path(parent_of(folder));
}

OutputFile::OutputFile(const fs::path& path)
    : OutputFile(path, open_file(path, O_RDWR | O_CREAT | O_TRUNC, "create")) {}

OutputFile::OutputFile(const fs::path& path, FileDescriptor fd, bool sequential)
    : path_(path), fd_(std::move(fd)), sequential_(sequential || !is_seekable(fd_.get(), path)) {
  buffer_.reserve(kBufferBytes);
}

OutputFile OutputFile::continued(const fs::path& path) {
  OutputFile file(path, open_file(path, O_RDWR | O_CREAT, "open"));
  file.written_ = static_cast<std::uint64_t>(stat_of(file.descriptor(), path).st_size);
  return file;
}

void OutputFile::write_through(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kLargestWrite);
    const ssize_t put = uninterrupted([&] {
      return sequential_ ? ::write(fd_.get(), bytes.data(), count)
                         : ::pwrite(fd_.get(), bytes.data(), count, static_cast<off_t>(offset));
    });
    if (put < 0) throw_system_error("write", path_.string(), kCheckDisk);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) {
    write_through(bytes, written_);
    written_ += bytes.size();
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size() || bytes.size() > size() - offset) {
    throw Error(fmt::format("bytes {} at {} lie beyond the {} written", bytes.size(), offset, size()),
                path_.string(), "overwrite only what is written");
  }
  if (sequential_) {
    throw Error("takes bytes in their order only", path_.string(), "write to a regular file");
  }
  flush();
  write_through(bytes, offset);
}

void OutputFile::extend(std::uint64_t size) {
  flush();
  if (uninterrupted([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(size)); }) != 0)
    throw_system_error("extend", path_.string(), kCheckDisk);
  written_ = size;
}

void OutputFile::flush() {
  write_through(buffer_, written_);
  written_ += buffer_.size();
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  if (!sequential_) sync_descriptor(fd_.get(), path_);
}

void OutputFile::close() {
  flush();
  // Linux has closed the descriptor even when it answers EINTR, and the data is already with the kernel then.
  if (::close(fd_.release()) != 0 && errno != EINTR) throw_system_error("close", path_.string(), kCheckDisk);
}

}  // namespace warpwright
