#include "runtime/atomic_output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// Syncs every file and folder below, contents before the folder that names them.
void sync_tree(const fs::path& folder) {
  for (const fs::path& entry : list_folder(folder)) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(entry, error);
    if (fs::is_directory(status)) {
      sync_tree(entry);
    } else if (fs::is_regular_file(status)) {
      sync_path(entry);
    }
  }
  sync_path(folder);
}

// The names in a folder, without partials; none if it does not exist.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!is_occupied(folder)) return names;
  for (const fs::path& entry : list_folder(folder)) {
    const std::string name = entry.filename().string();
    if (!is_partial_name(name)) names.push_back(name);
  }
  return names;
}

// True if the folder is not empty, so that a rename onto it would fail.
bool has_entries(const fs::path& folder) {
  return is_occupied(folder) && !list_folder(folder).empty();
}

// A folder and the files in it take over the permissions of those that they replace.
void copy_permissions_of_folder(const fs::path& from, const fs::path& to) {
  const auto copy = [](const fs::path& old, const fs::path& path) {
    if (is_occupied(old)) copy_permissions(old, open_file(path, O_RDONLY, "open").get());
  };
  for (const std::string& name : names_in(to)) {
    std::error_code error;
    const bool both = fs::is_regular_file(fs::symlink_status(from / name, error)) &&
                      fs::is_regular_file(fs::symlink_status(to / name, error));
    if (both) copy(from / name, to / name);
  }
  copy(from, to);
  // Without these permissions it could be neither moved nor removed; commit() drops them again.
  std::error_code error;
  fs::permissions(to, fs::perms::owner_all, fs::perm_options::add, error);
  if (error) {
    throw Error(fmt::format("cannot set the permissions: {}", error.message()), to.string(), kCheckPath);
  }
}

bool exchange(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  throw_system_error("put in place", to.string(), kCheckPath);
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_system_error("put in place", final_path(to).string(), kCheckPath);
}

void make_folder(const fs::path& folder, mode_t mode) {
  if (::mkdir(folder.c_str(), mode) != 0)
    throw_system_error("create", final_path(folder).string(), kCheckPath);
}

std::string proc_name(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

// The target was replaceable when the writer began.
void require_still_replaceable(const fs::path& target, const std::optional<Replaceable>& replaceable) {
  try {
    require_replaceable(target, replaceable);
  } catch (const Error& error) {
    throw Error(fmt::format("was changed meanwhile by another process: {}", error.problem()), error.where(),
                error.remedy());
  }
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path, Order order, Links links) : AtomicFile() {
  keeps_permissions_ = links == Links::follow;
  FileTarget target = links == Links::follow ? file_target(path) : FileTarget{path, {}};
  target_ = std::move(target.path);
  is_stream_ = static_cast<bool>(target.stream);
  if (!is_stream_) {
    open_partial();
    return;
  }
  OutputFile stream(path, std::move(target.stream), true);
  if (order == Order::forward) {
    file_ = std::move(stream);
    return;
  }
  std::FILE* const spool = std::tmpfile();
  if (!spool) throw_system_error("create a temporary file", path.string(), "check the space in /tmp");
  FileDescriptor fd(::fcntl(::fileno(spool), F_DUPFD_CLOEXEC, 0));
  std::fclose(spool);
  if (!fd) throw_system_error("create a temporary file", path.string(), "close some of the open files");
  file_.emplace(path, std::move(fd));
  stream_ = std::move(stream);
}

// The flock keeps cleaners away from the name that it has or will get.
void AtomicFile::open_partial() {
  // commit() copies the permissions that it replaces.
  const mode_t mode = keeps_permissions_ && is_occupied(target_) ? 0600 : 0666;
  remove_stale_partials(parent_of(target_));
  while (true) {
    const std::lock_guard guard(live_partials().mutex);
    partial_ = partial_path(target_);
    constexpr int kUnnamed = O_TMPFILE | O_RDWR | O_CLOEXEC;
    const fs::path folder = parent_of(target_);
    FileDescriptor fd(uninterrupted([&] { return ::open(folder.c_str(), kUnnamed, mode); }));
    named_ = !fd || ::access(proc_name(fd.get()).c_str(), F_OK) != 0;
    if (named_) {
      constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
      fd = FileDescriptor(uninterrupted([&] { return ::open(partial_.c_str(), kFlags, mode); }));
      if (!fd && errno == EEXIST) continue;
      if (!fd) {
        throw_system_error("write", final_path(target_).string(),
                           "check that its folder exists and can be written");
      }
      live_partials().paths.insert(partial_);
    }
    // Before it is locked, a cleaner of another process may take it for a stale one.
    if (!lock_file(fd.get(), partial_) || (named_ && !is_named(fd.get(), partial_))) {
      live_partials().paths.erase(partial_);
      continue;
    }
    file_.emplace(final_path(target_), std::move(fd));
    return;
  }
}

AtomicFile::~AtomicFile() {
  if (!named_) return;
  const std::lock_guard guard(live_partials().mutex);
  ::unlink(partial_.c_str());
  live_partials().paths.erase(partial_);
}

void AtomicFile::give_name() {
  if (named_) return;
  live_partials().paths.insert(partial_);
  named_ = true;
  const std::string source = proc_name(file_->descriptor());
  if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, partial_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    throw_system_error("put in place", final_path(target_).string(), kCheckPath);
  }
}

void AtomicFile::copy_to_stream() {
  std::vector<std::byte> chunk(std::size_t{1} << 20);
  file_->flush();
  for (std::uint64_t offset = 0; offset < file_->size();) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(file_->descriptor(), chunk.data(), chunk.size(), static_cast<off_t>(offset)); });
    if (got <= 0) throw_system_error("read back", final_path(target_).string(), "check the space in /tmp");
    stream_->write(std::span(chunk).first(static_cast<std::size_t>(got)));
    offset += static_cast<std::uint64_t>(got);
  }
  stream_->close();
}

void AtomicFile::commit() {
  if (stream_) copy_to_stream();
  if (is_stream_) return file_->close();
  if (keeps_permissions_) copy_permissions(target_, file_->descriptor());
  file_->sync();
  {
    const std::lock_guard guard(live_partials().mutex);
    give_name();
    rename_or_throw(partial_, target_);
    named_ = false;
    live_partials().paths.erase(partial_);
  }
  file_->close();
  sync_path(parent_of(target_));
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile output(path);
  output.file().write(content);
  output.commit();
}

void require_replaceable(const fs::path& folder, const std::optional<Replaceable>& replaceable) {
  const fs::path target = folder_target(folder);
  for (const std::string& name : names_in(target)) {
    if (!replaceable) {
      throw Error("exists and is not empty", folder.string(),
                  "remove it, name another folder, or replace it with --force");
    }
    const auto& files = replaceable->files;
    std::error_code error;
    const bool known = std::find(files.begin(), files.end(), name) != files.end() &&
                       !fs::is_directory(fs::symlink_status(target / name, error));
    if (known) continue;
    throw Error(
        fmt::format("holds {}, which is not a file of {}, and will not be replaced", name, replaceable->kind),
        folder.string(), "move it away or name another folder");
  }
}

AtomicFolder::AtomicFolder(const fs::path& path, std::optional<Replaceable> replaceable)
    : target_([&] {
        recover_folder(path);
        require_replaceable(path, replaceable);
        return folder_target(path);
      }()),
      replaceable_(std::move(replaceable)),
      parents_(parent_of(target_)),
      partial_(target_),
      folder_(partial_.content()) {
  make_folder(folder_, 0777);
}

void AtomicFolder::commit() {
  require_still_replaceable(target_, replaceable_);
  copy_permissions_of_folder(target_, folder_);
  sync_tree(folder_);
  const FileDescriptor folder = open_file(folder_, O_RDONLY | O_DIRECTORY, "open");
  {
    const std::lock_guard guard(live_partials().mutex);
    put_in_place();
  }
  parents_.keep();
  for (const fs::path& old : {folder_, partial_.replaced()}) {
    if (is_occupied(old)) copy_permissions(old, folder.get());
  }
  sync_path(parent_of(target_));
  partial_.remove();  // with the previous folder in it
}

void AtomicFolder::put_in_place() {
  if (!replaceable_) {
    // Refuses a folder that another process has filled since the check.
    if (::rename(folder_.c_str(), target_.c_str()) == 0) return;
    const int code = errno;
    if (code == ENOTEMPTY || code == EEXIST) require_still_replaceable(target_, replaceable_);
    errno = code;
    throw_system_error("put in place", target_.string(), kCheckPath);
  }
  if (!has_entries(target_)) return rename_or_throw(folder_, target_);
  if (exchange(folder_, target_)) return;
  make_folder(partial_.replaced().parent_path(), 0700);
  rename_or_throw(target_, partial_.replaced());
  if (::rename(folder_.c_str(), target_.c_str()) == 0) return;
  const int code = errno;
  // Back again; if that fails too, the next cleaning does it.
  static_cast<void>(::rename(partial_.replaced().c_str(), target_.c_str()));
  errno = code;
  throw_system_error("put in place", target_.string(), kCheckPath);
}

void recover_folder(const fs::path& path) {
  const fs::path target = follow_links(path);
  if (!is_occupied(target)) remove_stale_partials(parent_of(target));
}

Replacing check_replacing(const fs::path& parent) {
  PartialFolder partial(parent / "folder", "probe");
  const fs::path first = partial.content(), second = first.parent_path() / "second";
  make_folder(first, 0777);
  make_folder(second, 0777);
  if (exchange(first, second)) return Replacing::exchange;
  const fs::path moved = first.parent_path() / "moved";
  rename_or_throw(first, moved);
  rename_or_throw(second, first);
  return Replacing::two_steps;
}

}  // namespace warpwright
