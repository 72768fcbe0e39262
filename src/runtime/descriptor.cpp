#include "runtime/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "core/error.hpp"

namespace warpwright {

namespace fs = std::filesystem;

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

FileDescriptor open_file(const fs::path& path, int flags, const char* action, mode_t mode) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); });
  if (fd < 0) throw_system_error(action, path.string(), kCheckPath);
  return FileDescriptor(fd);
}

FileDescriptor open_regular(const fs::path& path, Links links) {
  const int no_links = links == Links::never ? O_NOFOLLOW : 0;
  FileDescriptor fd = open_file(path, O_RDONLY | O_NONBLOCK | no_links, "open");
  const mode_t mode = stat_of(fd.get(), path).st_mode;
  if (S_ISREG(mode)) return fd;
  throw Error(S_ISDIR(mode) ? "is a folder, not a file" : "is not a regular file", path.string(),
              "name a file");
}

struct stat stat_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw_system_error("read its status", path.string(), kCheckPath);
  }
  return status;
}

void sync_descriptor(int fd, const fs::path& path) {
  if (uninterrupted([&] { return ::fsync(fd); }) == 0) return;
  // Some network and FUSE file systems cannot sync a folder and say so with EINVAL.
  if (errno == EINVAL && S_ISDIR(stat_of(fd, path).st_mode)) return;
  throw_system_error("sync to disk", path.string(), "check the free space and the health of the disk");
}

void sync_path(const fs::path& path) {
  const FileDescriptor fd = open_file(path, O_RDONLY, "open");
  sync_descriptor(fd.get(), path);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace warpwright
