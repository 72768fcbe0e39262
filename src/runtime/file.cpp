#include "runtime/file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace warpwright {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {
    throw Error(fmt::format("cannot be examined: {}", error.message()), path.string(), kCheckPath);
  }
  return status;
}

std::string to_text(const XXH128_hash_t& hash) {
  return fmt::format("xxh128:{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

bool path_exists(const fs::path& path) {
  return fs::exists(status_of(path));
}

bool is_folder(const fs::path& path) {
  return fs::is_directory(status_of(path));
}

// Not with std::filesystem's iterators, which end the process if memory runs out (libstdc++'s are noexcept
// inside).
std::vector<fs::path> list_folder(const fs::path& folder) {
  struct Close {
    void operator()(DIR* stream) const { ::closedir(stream); }
  };
  std::vector<fs::path> entries;
  const std::unique_ptr<DIR, Close> stream(::opendir(folder.c_str()));
  while (stream) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.push_back(folder / name);
  }
  if (errno != 0) {
    throw Error(fmt::format("cannot be listed: {}", std::strerror(errno)), folder.string(), kCheckPath);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

FileReader::FileReader(const fs::path& path, Kind kind)
    : FileReader(path, kind == Kind::regular ? open_regular(path) : open_file(path, O_RDONLY, "open")) {}

FileReader::FileReader(fs::path path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {
  const struct stat status = stat_of(fd_.get(), path_);
  if (S_ISDIR(status.st_mode)) throw Error("is a folder, not a file", path_.string(), "name a file");
  size_ = static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
}

FileReader FileReader::standard_input() {
  const fs::path name = "standard input";
  const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) throw_system_error("read", name.string(), "give it a file or a pipe");
  return {name, FileDescriptor(fd)};
}

// A file that shrank ends early, and what was read of it is not what it held.
std::size_t FileReader::read(std::span<char> into) {
  const ssize_t got = uninterrupted([&] { return ::read(fd_.get(), into.data(), into.size()); });
  if (got < 0)
    throw_system_error("read", path_.string(), "check that it can be read and the health of the disk");
  if (got == 0 && size_ > 0) {
    const auto present = static_cast<std::uint64_t>(stat_of(fd_.get(), path_).st_size);
    if (present < size_) {
      throw Error(fmt::format("shrank from {} to {} bytes while it was read", size_, present), path_.string(),
                  "replace files by renaming, do not rewrite them in place");
    }
  }
  return static_cast<std::size_t>(got);
}

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  FileReader file(path, FileReader::Kind::regular);
  std::string content;
  std::vector<char> chunk(std::clamp<std::uint64_t>(file.size() + 1, 4096, kChunkBytes));
  while (const std::size_t got = file.read(chunk)) {
    content.append(chunk.data(), got);
    if (content.size() > max_bytes) {
      throw Error(fmt::format("is larger than the {} bytes such a file may have", max_bytes), path.string(),
                  "check that it is the right file");
    }
  }
  return content;
}

// Reads through a buffer: the pages of a mapping would count as memory of this process.
std::string checksum_of(const fs::path& path) {
  FileReader file(path, FileReader::Kind::regular);
  std::vector<char> buffer(kChunkBytes);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  while (const std::size_t got = file.read(buffer)) XXH3_128bits_update(&state, buffer.data(), got);
  return to_text(XXH3_128bits_digest(&state));
}

std::string checksum_of(std::span<const std::byte> bytes) {
  return to_text(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace warpwright
