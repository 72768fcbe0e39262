// File descriptors, and the system calls that readers and writers share.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

namespace warpwright {

// A POSIX file descriptor, closed on destruction. Writers close it themselves, to see errors.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

// A symbolic link under a file's name. `never` is for names that other users of the folder could prepare: a
// link there is not read, and a writer replaces the link itself.
enum class Links { follow, never };

// Repeats a system call while signals interrupt it; returns its result.
template <class Call>
auto uninterrupted(const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Opens with O_CLOEXEC; throws Error "cannot ACTION".
FileDescriptor open_file(const std::filesystem::path& path, int flags, const char* action,
                         mode_t mode = 0666);

// Opens a file to read. Refuses what is not a regular file, and does not wait for the writer of a pipe.
FileDescriptor open_regular(const std::filesystem::path& path, Links links = Links::follow);

struct stat stat_of(int fd, const std::filesystem::path& path);

// Waits until what was written is on the disk. `path` is for messages.
void sync_descriptor(int fd, const std::filesystem::path& path);
// The same for a file or folder by name, links followed.
void sync_path(const std::filesystem::path& path);

// The folder that holds this path: "." for a bare name.
std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace warpwright
