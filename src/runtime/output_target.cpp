#include "runtime/output_target.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnotherPath = "name another path";
constexpr const char* kAccessList = "system.posix_acl_access";

// The status of a path, the last link not followed; nothing if nothing is there.
std::optional<struct stat> status_without_following(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT) return std::nullopt;
  throw Error(fmt::format("cannot be examined: {}", std::strerror(errno)), path.string(), kCheckPath);
}

fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() || path == path.root_path() ? path : path.parent_path();
}

bool is_in_proc(const fs::path& path) {
  struct statfs status {};
  return ::statfs(parent_of(path).c_str(), &status) == 0 && status.f_type == PROC_SUPER_MAGIC;
}

// The descriptor of this process that a path in /proc/self/fd names, or -1.
int own_descriptor(const fs::path& path) {
  std::error_code none;
  if (!fs::equivalent(parent_of(path), "/proc/self/fd", none)) return -1;
  const std::string name = path.filename().string();
  int fd = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), fd);
  return error == std::errc() && end == name.data() + name.size() ? fd : -1;
}

// Unlike a shell's "> /dev/stdout", a duplicate of the descriptor continues after what is already written,
// works for sockets too, and appends if the descriptor does.
FileDescriptor duplicate_of(int fd, const fs::path& path) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
    throw Error("is not open for writing", path.string(), kAnotherPath);
  }
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw_system_error("write", path.string(), kAnotherPath);
  return FileDescriptor(copy);
}

void refuse_mount_point(const fs::path& path) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &status) != 0) return;
  if ((status.stx_attributes_mask & status.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) return;
  throw Error("is a mount point, which cannot be replaced", path.string(),
              "name a path inside it, or another");
}

// Gives `fd` the access list of `from`, or none if `from` has none. Returns true if that succeeds.
bool copy_access_list(const fs::path& from, int fd) {
  const ssize_t size = ::lgetxattr(from.c_str(), kAccessList, nullptr, 0);
  if (size < 0) {
    if (errno != ENODATA && errno != ENOTSUP && errno != ENOSYS) {
      throw_system_error("read its access list", from.string(), kCheckPath);
    }
    // The folder may have given the new file a list.
    return ::fgetxattr(fd, kAccessList, nullptr, 0) < 0 || ::fremovexattr(fd, kAccessList) == 0;
  }
  std::vector<char> list(static_cast<std::size_t>(size));
  const ssize_t got = ::lgetxattr(from.c_str(), kAccessList, list.data(), list.size());
  return got == size && ::fsetxattr(fd, kAccessList, list.data(), list.size(), 0) == 0;
}

}  // namespace

bool is_occupied(const fs::path& path) {
  return status_without_following(path).has_value();
}

fs::path follow_links(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  fs::path at = without_trailing_slash(path);
  for (int i = 0; i < kMostLinks; ++i) {
    const auto status = status_without_following(at);
    if (!status || !S_ISLNK(status->st_mode) || is_in_proc(at)) return at;
    std::error_code error;
    const fs::path target = fs::read_symlink(at, error);
    if (error) throw Error(fmt::format("cannot be examined: {}", error.message()), at.string(), kCheckPath);
    at = without_trailing_slash(target.is_absolute() ? target : parent_of(at) / target);
  }
  throw Error(fmt::format("cannot be examined: {}", std::strerror(ELOOP)), path.string(), kCheckPath);
}

FileTarget file_target(const fs::path& path) {
  FileTarget target;
  target.path = follow_links(path);
  if (const int fd = own_descriptor(target.path); fd >= 0) {
    target.stream = duplicate_of(fd, path);
    return target;
  }
  const auto status = status_without_following(target.path);
  if (!path.has_filename() || (status && S_ISDIR(status->st_mode))) {
    throw Error("is a folder, not a file", path.string(), "name a file");
  }
  if (status && S_ISSOCK(status->st_mode)) {
    throw Error("is a socket, which cannot be opened as a file", path.string(), kAnotherPath);
  }
  if (status && S_ISREG(status->st_mode)) {
    refuse_mount_point(target.path);
    if (::faccessat(AT_FDCWD, target.path.c_str(), W_OK, AT_EACCESS) != 0) {
      throw_system_error("replace", path.string(), kCheckPath);
    }
  } else if (status) {
    target.stream = open_file(target.path, O_WRONLY | O_TRUNC | O_NOCTTY, "write");
  }
  return target;
}

bool is_replaced(const fs::path& path) {
  const fs::path target = follow_links(path);
  const auto status = status_without_following(target);
  return own_descriptor(target) < 0 && (!status || S_ISREG(status->st_mode) || S_ISDIR(status->st_mode));
}

fs::path folder_target(const fs::path& path) {
  const fs::path target = follow_links(path);
  const std::string name = target.filename().string();
  if (name.empty() || name == "." || name == "..") {
    throw Error("is not the name of a folder that can be replaced", path.string(), kAnotherPath);
  }
  const auto status = status_without_following(target);
  if (status && !S_ISDIR(status->st_mode)) {
    throw Error("is not a folder and will not be replaced by one", path.string(), kAnotherPath);
  }
  if (status) refuse_mount_point(target);
  return target;
}

void copy_permissions(const fs::path& from, int fd) {
  const auto old = status_without_following(from);
  if (!old) return;
  mode_t mode = old->st_mode & 07777;
  const struct stat now = stat_of(fd, from);
  const bool same_owner = now.st_uid == old->st_uid && now.st_gid == old->st_gid;
  const bool owner_kept = same_owner || ::fchown(fd, old->st_uid, old->st_gid) == 0;
  const bool group_kept =
      owner_kept || now.st_gid == old->st_gid || ::fchown(fd, static_cast<uid_t>(-1), old->st_gid) == 0;
  const bool list_kept = copy_access_list(from, fd);
  if (!owner_kept) mode &= 01777;
  if (!group_kept || !list_kept) mode &= 07707 | (mode & 07) << 3;
  if ((stat_of(fd, from).st_mode & 07777) == mode) return;
  if (uninterrupted([&] { return ::fchmod(fd, mode); }) != 0) {
    throw_system_error("keep the permissions", from.string(), kCheckPath);
  }
}

}  // namespace warpwright
