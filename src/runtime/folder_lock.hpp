// Exclusive use of a folder.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/descriptor.hpp"

namespace warpwright {

// Exclusive use of a folder by one process, through a flock on FOLDER/lock. The file holds the owner's PID,
// for the message that a second process prints; a file of that name with any other content is locked but left
// as it is. Links are not followed. The file stays; the lock ends with the object or the process.
class FolderLock {
 public:
  FolderLock() = default;
  explicit FolderLock(const std::filesystem::path& folder);  // throws if another process has it

  // Nothing if another process has the lock, or if the folder is gone.
  static std::optional<FolderLock> try_lock(const std::filesystem::path& folder);

  // Throws as the constructor does if another process has the lock. It writes nothing, but shares the lock
  // with others that ask for a moment, in which a try_lock() fails. The folder may be missing.
  static void require_free(const std::filesystem::path& folder);

  static std::filesystem::path file_in(const std::filesystem::path& folder) { return folder / "lock"; }
  bool made_its_file() const { return made_its_file_; }

  struct Owner {
    std::string pid;
    timespec since{};
  };
  // Writes the owner before this one into the file again, if it named one.
  void restore_owner();

 private:
  FileDescriptor fd_;
  bool made_its_file_ = false;
  std::optional<Owner> before_;
};

// Locks an open file. False if another process has the lock; throws if the file system has no locks.
bool lock_file(int fd, const std::filesystem::path& path);

// True if the path still names the open file.
bool is_named(int fd, const std::filesystem::path& path);

}  // namespace warpwright
