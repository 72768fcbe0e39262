// A folder for work that may turn out not to begin.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/folder_lock.hpp"

namespace warpwright {

// Exclusive use of a folder (FolderLock). The object remembers what this process makes: the folder, its
// parents, its lock, and folders in it. All of this is removed again, with the object or when the process
// ends (remove_live_partials()), unless keep() says that the work has begun. Everything else stays, and so
// does a folder into which somebody else has put something. An existing lock file gets its previous owner
// back.
class ProvisionalFolder {
 public:
  // Makes the folder and its missing parents. Throws if another process has the lock.
  explicit ProvisionalFolder(const std::filesystem::path& folder);
  ProvisionalFolder(const ProvisionalFolder&) = delete;
  ProvisionalFolder& operator=(const ProvisionalFolder&) = delete;
  ~ProvisionalFolder();

  void make_folder(const std::string& name);  // before keep()
  void keep();

 private:
  friend void remove_live_partials();
  void remove();

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // in this order
  bool is_kept_ = false;
  FolderLock lock_;
};

}  // namespace warpwright
