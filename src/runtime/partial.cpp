#include "runtime/partial.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/output_file.hpp"
#include "runtime/output_target.hpp"
#include "runtime/provisional_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHashDigits = 16;
constexpr XXH64_hash_t kHashSeed = 0x7061727469616c73;  // apart from all other uses of the hash

std::string hash_of(std::string_view text) {
  return fmt::format("{:016x}", XXH64(text.data(), text.size(), kHashSeed));
}

// The beginning of a name, not cut within a character of UTF-8.
std::string_view shortened(std::string_view name, std::size_t most) {
  if (name.size() <= most) return name;
  while (most > 0 && (static_cast<unsigned char>(name[most]) & 0xc0) == 0x80) --most;
  return name.substr(0, most);
}

std::size_t longest_name(const fs::path& folder) {
  const long longest = ::pathconf(folder.c_str(), _PC_NAME_MAX);
  return longest > 0 ? static_cast<std::size_t>(longest) : 255;
}

// Puts back the folders that a replacement moved away before it was cut off. False if that fails: then
// nothing may be removed.
bool restore_old(const fs::path& partial) {
  if (!is_occupied(partial / "old")) return true;
  for (const fs::path& entry : list_folder(partial / "old")) {
    const fs::path name = entry.filename(), target = parent_of(partial) / name;
    if (is_occupied(target) || !is_occupied(partial / "new" / name)) continue;
    if (::rename(entry.c_str(), target.c_str()) != 0) return false;
    sync_path(parent_of(partial));
  }
  return true;
}

// Removes a file, or a folder with all that is in it; links are not followed. True if nothing is left. Not
// std::filesystem's remove_all(), which ends the process if memory runs out.
bool remove_tree(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT;
  const bool is_folder = S_ISDIR(status.st_mode);
  if (is_folder) {
    // Even the owner needs write permission on a folder to remove what is in it.
    if ((status.st_mode & S_IRWXU) != S_IRWXU) ::chmod(path.c_str(), (status.st_mode & 07777) | S_IRWXU);
    for (const fs::path& entry : list_folder(path)) {
      if (!remove_tree(entry)) return false;
    }
  }
  return ::unlinkat(AT_FDCWD, path.c_str(), is_folder ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT;
}

// Closes the lock before it is removed, since a network file system keeps a removed file that is open.
bool remove_partial_folder(const fs::path& partial, FolderLock lock) {
  try {
    if (!restore_old(partial) || !remove_tree(partial / "new") || !remove_tree(partial / "old")) return false;
    lock = FolderLock();
    return remove_tree(partial);
  } catch (const Error&) {
    return false;
  }
}

bool remove_if_stale(const fs::path& partial) {
  try {
    std::error_code error;
    if (fs::is_directory(fs::symlink_status(partial, error))) {
      std::optional<FolderLock> lock = FolderLock::try_lock(partial);
      return lock && remove_partial_folder(partial, std::move(*lock));
    }
    const FileDescriptor fd = open_file(partial, O_RDWR | O_NOFOLLOW | O_NONBLOCK, "open");
    return lock_file(fd.get(), partial) && is_named(fd.get(), partial) && ::unlink(partial.c_str()) == 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

fs::path partial_path(const fs::path& target, std::string_view word) {
  static std::atomic<std::uint64_t> counter{0};
  const std::string suffix = fmt::format(".{}-{}-{}-", word, ::getpid(), counter.fetch_add(1));
  const std::size_t most = longest_name(parent_of(target)) - suffix.size() - kHashDigits;
  const std::string name = target.filename().string();
  const std::string hashed = std::string(shortened(name, most)) + suffix;
  return parent_of(target) / (hashed + hash_of(hashed));
}

bool is_partial_name(std::string_view name) {
  if (name.size() <= kHashDigits) return false;
  const std::size_t end = name.size() - kHashDigits;
  return name.substr(end) == hash_of(name.substr(0, end));
}

fs::path final_path(const fs::path& path) {
  fs::path final;
  for (auto part = path.begin(); part != path.end(); ++part) {
    if (const auto next = std::next(part);
        next != path.end() && *next == "new" && is_partial_name(part->native())) {
      if (final == ".") final.clear();  // parent_of() has added it
      part = next;
    } else {
      final /= *part;
    }
  }
  return final;
}

int remove_stale_partials(const fs::path& folder) {
  std::vector<fs::path> entries;
  try {
    entries = list_folder(folder);
  } catch (const Error&) {  // whoever uses the folder will say it
  }
  return static_cast<int>(std::ranges::count_if(entries, [](const fs::path& entry) {
    return is_partial_name(entry.filename().native()) && remove_if_stale(entry);
  }));
}

LivePartials& live_partials() {
  static auto* partials = new LivePartials;  // outlives static objects, whose destructors may write
  return *partials;
}

void remove_live_partials() {
  constexpr int kMostTries = 100;  // while other threads still write
  static std::once_flag removed;
  std::call_once(removed, [] {
    live_partials().mutex.lock();  // for good: nothing new begins
    for (const fs::path& path : live_partials().paths) {
      std::error_code error;
      for (int i = 0; i < kMostTries && fs::exists(fs::symlink_status(path, error)); ++i) {
        if (!fs::is_directory(fs::symlink_status(path, error))) {
          ::unlink(path.c_str());
        } else {
          remove_partial_folder(path, FolderLock());
        }
      }
    }
    for (auto folder = live_partials().parents.rbegin(); folder != live_partials().parents.rend(); ++folder)
      ::rmdir(folder->c_str());  // the inner ones first
    for (ProvisionalFolder* folder : live_partials().provisional) folder->remove();
  });
}

NewParents::NewParents(const fs::path& folder) {
  const auto make = [&] {
    const std::lock_guard guard(live_partials().mutex);
    create_folders(folder, &made_);
    live_partials().parents.insert(made_.begin(), made_.end());
  };
  try {
    make();
  } catch (...) {
    remove();
    throw;
  }
}

void NewParents::keep() {
  const std::lock_guard guard(live_partials().mutex);
  for (const fs::path& path : made_) live_partials().parents.erase(path);
  made_.clear();
}

void NewParents::remove() {
  const std::lock_guard guard(live_partials().mutex);
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    ::rmdir(path->c_str());
    live_partials().parents.erase(*path);
  }
  made_.clear();
}

PartialFolder::PartialFolder(const fs::path& target, std::string_view word) : PartialFolder() {
  constexpr mode_t kOwnerOnly = 0700;
  const auto make = [&](const fs::path& folder) {
    if (::mkdir(folder.c_str(), kOwnerOnly) == 0) return true;
    if (errno == EEXIST) return false;
    throw_system_error("write", target.string(), "check that its folder exists and can be written");
  };
  name_ = target.filename();
  remove_stale_partials(parent_of(target));
  while (true) {
    {
      const std::lock_guard guard(live_partials().mutex);
      const fs::path path = partial_path(target, word);
      if (!make(path)) continue;
      live_partials().paths.insert(path);
      path_ = path;
    }
    // Before it is locked, a cleaner of another process may take it for a stale one.
    if (auto lock = FolderLock::try_lock(path_)) {
      lock_ = std::move(*lock);
      break;
    }
    const std::lock_guard guard(live_partials().mutex);
    live_partials().paths.erase(std::exchange(path_, {}));
  }
  make(path_ / (word == "deleted" ? "old" : "new"));
}

PartialFolder::~PartialFolder() {
  try {
    remove();
  } catch (const std::bad_alloc&) {  // the next cleanup tries again
  }
}

bool PartialFolder::remove() {
  if (path_.empty()) return true;
  const std::lock_guard guard(live_partials().mutex);
  live_partials().paths.erase(path_);
  return remove_partial_folder(std::exchange(path_, {}), std::move(lock_));
}

void delete_folder(const fs::path& folder) {
  constexpr const char* kRemedy = "check its permissions, or delete it by hand";
  PartialFolder partial(folder, "deleted");
  if (::rename(folder.c_str(), partial.replaced().c_str()) != 0) {
    throw_system_error("delete", folder.string(), kRemedy);
  }
  const fs::path rest = partial.path();
  if (!partial.remove()) throw Error("cannot be deleted as a whole", rest.string(), kRemedy);
}

}  // namespace warpwright
