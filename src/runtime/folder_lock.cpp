#include "runtime/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOwnerPrefix = "warpwright process ";

using Owner = FolderLock::Owner;

// The owner in a lock file that this program wrote, or nothing.
std::optional<Owner> owner_in(int fd) {
  char bytes[64];
  const ssize_t got = ::pread(fd, bytes, sizeof bytes, 0);
  const std::string_view text(bytes, got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t end = text.find('\n');  // more may follow if write_owner() was killed
  if (!text.starts_with(kOwnerPrefix) || end == std::string_view::npos) return std::nullopt;
  const std::string_view pid = text.substr(kOwnerPrefix.size(), end - kOwnerPrefix.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  struct stat file {};
  if (pid.empty() || !std::all_of(pid.begin(), pid.end(), is_digit) || ::fstat(fd, &file) != 0) {
    return std::nullopt;
  }
  return Owner{std::string(pid), file.st_mtim};
}

// Without room for the PID, a second process's message just cannot name the owner.
void write_owner(int fd, const std::string& pid) {
  const std::string text = fmt::format("{}{}\n", kOwnerPrefix, pid);
  const auto put = uninterrupted([&] { return ::pwrite(fd, text.data(), text.size(), 0); });
  if (put == static_cast<ssize_t>(text.size())) {
    static_cast<void>(!::ftruncate(fd, static_cast<off_t>(text.size())));
  }
}

struct LockFile {
  FileDescriptor fd;
  bool is_new = false;
};

// Nothing if the folder is gone.
std::optional<LockFile> open_lock_file(const fs::path& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  while (true) {
    FileDescriptor fd(uninterrupted([&] { return ::open(path.c_str(), kFlags | O_EXCL, 0666); }));
    if (fd) return LockFile{std::move(fd), true};
    if (errno == ENOENT) return std::nullopt;
    if (errno != EEXIST) break;
    fd = FileDescriptor(uninterrupted([&] { return ::open(path.c_str(), kFlags & ~O_CREAT); }));
    if (!fd && errno == ENOENT) continue;
    if (!fd) break;
    if (!S_ISREG(stat_of(fd.get(), path).st_mode)) {
      throw Error("is not a file that can be locked", path.string(), "remove it or name another folder");
    }
    return LockFile{std::move(fd), false};
  }
  if (errno == ELOOP) {
    throw Error("is a symbolic link, which a lock does not follow", path.string(),
                "remove it or name another folder");
  }
  throw_system_error("open", path.string(), kCheckPath);
}

Error in_use(const fs::path& folder, const std::optional<Owner>& owner) {
  return {owner ? fmt::format("is in use by process {}", owner->pid) : "is in use by another process",
          folder.string(), "wait for that process to end, or stop it"};
}

// The lock file, and the owner that it named.
struct Taken {
  FileDescriptor fd;  // none if another process has the lock
  bool is_new = false;
  std::optional<Owner> owner;
};

std::optional<Taken> take(const fs::path& folder) {
  const fs::path path = FolderLock::file_in(folder);
  std::optional<LockFile> file = open_lock_file(path);
  if (!file) return std::nullopt;
  try {
    if (!lock_file(file->fd.get(), path)) return Taken{{}, false, owner_in(file->fd.get())};
  } catch (const Error&) {
    if (file->is_new) ::unlink(path.c_str());  // no process can lock it
    throw;
  }
  if (!is_named(file->fd.get(), path)) return std::nullopt;
  const std::optional<Owner> before = owner_in(file->fd.get());
  if (file->is_new || before) write_owner(file->fd.get(), std::to_string(::getpid()));
  return Taken{std::move(file->fd), file->is_new, before};
}

}  // namespace

bool lock_file(int fd, const fs::path& path) {
  if (uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno != EWOULDBLOCK) throw_system_error("lock", path.string(), "use a file system with locks");
  return false;
}

bool is_named(int fd, const fs::path& path) {
  struct stat named {};
  const struct stat open = stat_of(fd, path);
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT) return false;
    throw_system_error("look at", path.string(), kCheckPath);
  }
  return named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

FolderLock::FolderLock(const fs::path& folder) {
  constexpr int kMostTries = 100;  // while holders remove their files
  std::optional<Taken> taken = take(folder);
  std::error_code none;
  for (int i = 1; !taken && i < kMostTries && fs::is_directory(folder, none); ++i) taken = take(folder);
  if (!taken) {
    errno = ENOENT;
    throw_system_error("lock", folder.string(), kCheckPath);
  }
  for (int i = 0; taken && !taken->fd && i < 10; ++i) {  // a process may only be asking: require_free()
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    taken = take(folder);
  }
  if (!taken || !taken->fd) throw in_use(folder, taken ? taken->owner : std::nullopt);
  fd_ = std::move(taken->fd);
  made_its_file_ = taken->is_new;
  before_ = taken->owner;
}

void FolderLock::restore_owner() {
  if (!before_) return;
  write_owner(fd_.get(), before_->pid);
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, before_->since};
  static_cast<void>(::futimens(fd_.get(), times));
}

// A lock shared with others that ask, and given back at once.
void FolderLock::require_free(const fs::path& folder) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const FileDescriptor file(uninterrupted([&] { return ::open(file_in(folder).c_str(), kFlags); }));
  if (!file) return;
  if (uninterrupted([&] { return ::flock(file.get(), LOCK_SH | LOCK_NB); }) == 0 || errno != EWOULDBLOCK)
    return;
  throw in_use(folder, owner_in(file.get()));
}

std::optional<FolderLock> FolderLock::try_lock(const fs::path& folder) {
  std::optional<Taken> taken = take(folder);
  if (!taken || !taken->fd) return std::nullopt;
  FolderLock lock;
  lock.fd_ = std::move(taken->fd);
  return lock;
}

}  // namespace warpwright
