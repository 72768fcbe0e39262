#include "runtime/provisional_folder.hpp"

#include <cstdio>
#include <mutex>

#include "runtime/output_file.hpp"
#include "runtime/partial.hpp"

namespace warpwright {

namespace fs = std::filesystem;

ProvisionalFolder::ProvisionalFolder(const fs::path& folder) : folder_(folder) {
  const std::lock_guard guard(live_partials().mutex);
  try {
    create_folders(folder_, &made_);
    lock_ = FolderLock(folder_);
  } catch (...) {
    remove();
    throw;
  }
  if (lock_.made_its_file()) made_.push_back(FolderLock::file_in(folder_));
  live_partials().provisional.insert(this);
}

ProvisionalFolder::~ProvisionalFolder() {
  const std::lock_guard guard(live_partials().mutex);
  live_partials().provisional.erase(this);
  remove();
}

void ProvisionalFolder::make_folder(const std::string& name) {
  const std::lock_guard guard(live_partials().mutex);
  create_folders(folder_ / name, &made_);
}

void ProvisionalFolder::keep() {
  const std::lock_guard guard(live_partials().mutex);
  is_kept_ = true;
}

// The lock is held until its file is removed. It is closed before the folder is, since a network file system
// keeps a removed file that is open.
void ProvisionalFolder::remove() {
  if (is_kept_) return;
  lock_.restore_owner();
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    std::remove(path->c_str());  // a folder that is not empty stays
    if (*path == FolderLock::file_in(folder_)) lock_ = FolderLock();
  }
  made_.clear();
}

}  // namespace warpwright
