// Partials: the files and folders that a writer keeps next to its target until the target is complete.
//
// NAME.partial-PID-N-HASH is a file, or a folder with
//   lock        which the writer holds (FolderLock)
//   new/NAME    the folder being written
//   old/NAME    the folder that it replaces, on file systems that cannot exchange two names
// NAME.deleted-PID-N-HASH is a folder whose old/NAME is being deleted; folder.probe-PID-N-HASH belongs to
// check_replacing().
//
// HASH is a hash of the rest of the name, so that only names we made ourselves are ever cleaned up, and never
// a user's "notes.partial-2024-1". Writers hold a flock: on the file itself, or on the folder's lock. The
// kernel drops it when the process dies, so a stale partial can be told from one in use even if the PID was
// reused.
#pragma once

#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "runtime/folder_lock.hpp"

namespace warpwright {

// A new name next to target, never used before.
std::filesystem::path partial_path(const std::filesystem::path& target, std::string_view word = "partial");

// True if partial_path() made this name of a file or folder.
bool is_partial_name(std::string_view name);

// The place that a path within a partial folder will have once that is in place, for messages; another path
// as it is.
std::filesystem::path final_path(const std::filesystem::path& path);

// Removes what crashed writers left in the folder; what is in use stays. A folder whose replacement crashed
// between its two steps gets its name back. Returns the number of partials removed.
int remove_stale_partials(const std::filesystem::path& folder);

class ProvisionalFolder;

// The partials of this process, the folders made for them, and folders that may not stay. The mutex is held
// while a partial is moved into place.
struct LivePartials {
  std::mutex mutex;
  std::set<std::filesystem::path> paths, parents;
  std::set<ProvisionalFolder*> provisional;
};
LivePartials& live_partials();

// For a process that is ending: removes its partials and provisional folders, and stops its writers. Several
// threads may call it.
void remove_live_partials();

// The folders that a writer makes above its target. They are removed again, with the object or by
// remove_live_partials(), unless keep() says that the target is in place. One with anything in it stays.
class NewParents {
 public:
  explicit NewParents(const std::filesystem::path& folder);  // makes it and its missing parents
  NewParents(const NewParents&) = delete;
  ~NewParents() { remove(); }

  void keep();

 private:
  void remove();

  std::vector<std::filesystem::path> made_;  // in this order
};

// A partial folder, locked; removed with the object.
class PartialFolder {
 public:
  PartialFolder(const std::filesystem::path& target, std::string_view word = "partial");
  PartialFolder(const PartialFolder&) = delete;
  ~PartialFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path content() const { return path_ / "new" / name_; }  // the caller makes it
  std::filesystem::path replaced() const {
    return path_ / "old" / name_;
  }  // the replaced folder is moved here
  // Removes it now. False if part of it could not be removed; the next cleanup tries again.
  bool remove();

 private:
  PartialFolder() = default;

  std::filesystem::path path_, name_;
  FolderLock lock_;
};

// Deletes a folder; a crash leaves it whole or as a partial. Throws if it cannot be deleted.
void delete_folder(const std::filesystem::path& folder);

}  // namespace warpwright
