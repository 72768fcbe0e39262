// Files and folders that appear under their names whole, or not at all.
//
// New content becomes visible through a single rename once it is on the disk, so a crash or a full disk at
// any instant leaves the previous file or folder whole. A replaced file or folder keeps its permissions.
// Symbolic links are followed and survive. Other names of a hard-linked file keep the previous content.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/output_file.hpp"
#include "runtime/output_target.hpp"
#include "runtime/partial.hpp"

namespace warpwright {

// A new or replaced file. Its folder must exist. Devices, pipes and open descriptors (/dev/stdout) are
// written to instead, as the bytes come.
//
// The bytes go to a file without a name, of which a crash leaves nothing; if the file system has no such
// files (NFS), to a partial (runtime/partial.hpp).
class AtomicFile {
 public:
  // `Links::never` replaces whatever has the name, and nothing of it is kept: no link, stream or permission.
  // `any`: write_at() will be used; a stream then gets its bytes in commit().
  enum class Order { forward, any };

  explicit AtomicFile(const std::filesystem::path& path, Order order = Order::forward,
                      Links links = Links::follow);
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile();  // without commit: the previous file stays

  OutputFile& file() { return *file_; }
  bool is_stream() const { return is_stream_; }  // written to, not replaced
  void commit();

 private:
  AtomicFile() = default;
  void open_partial();
  void give_name();
  void copy_to_stream();

  std::filesystem::path target_, partial_;
  bool is_stream_ = false, keeps_permissions_ = true, named_ = false;
  std::optional<OutputFile> file_, stream_;  // stream_: where a spooled file_ goes in the end
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The folders with content that may be replaced: those that hold nothing but these files.
struct Replaceable {
  std::string kind;  // for messages: "a tokenizer's folder"
  std::vector<std::string> files;
};

// Throws unless the folder is missing, empty or replaceable. Links are followed.
void require_replaceable(const std::filesystem::path& folder, const std::optional<Replaceable>& replaceable);

// A new or replaced folder. Fill folder(), then commit(), which syncs every file and subfolder in it. Parents
// are created, and removed again without commit(). Folders are exchanged by one rename. A file system that
// cannot do that (NFS) takes two steps; if a crash comes between them, the next writer or recover_folder()
// gives the previous folder its name back.
class AtomicFolder {
 public:
  // A folder with content is refused unless it is replaceable.
  explicit AtomicFolder(const std::filesystem::path& path, std::optional<Replaceable> replaceable = {});
  AtomicFolder(const AtomicFolder&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  void commit();

 private:
  void put_in_place();

  std::filesystem::path target_;
  std::optional<Replaceable> replaceable_;
  NewParents parents_;
  PartialFolder partial_;
  std::filesystem::path folder_;
};

// Gives a folder its name back if a crash came between the two steps of its replacement.
void recover_folder(const std::filesystem::path& path);

// The way to replace a folder in `parent`: by exchanging two names, or in two steps. check_replacing() tries
// it out, so that a file system on which neither works is an error now and not after hours.
enum class Replacing { exchange, two_steps };
Replacing check_replacing(const std::filesystem::path& parent);

}  // namespace warpwright
