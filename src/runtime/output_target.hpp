// Finds the target of an output path, and keeps the permissions of the file or folder it replaces.
#pragma once

#include <filesystem>

#include "runtime/descriptor.hpp"

namespace warpwright {

// The path with symbolic links in its last component resolved. The end need not exist: a dangling link says
// where its target is to be created. Throws for loops and for paths that cannot be examined. Links in /proc
// to open files (/proc/self/fd/1) are not followed, since their text need not be a path.
std::filesystem::path follow_links(const std::filesystem::path& path);

// True if anything is there, even a dangling link.
bool is_occupied(const std::filesystem::path& path);

// A file to be replaced as a whole, or a stream to write to: a device, a pipe, an open descriptor.
struct FileTarget {
  std::filesystem::path path;  // links followed
  FileDescriptor stream;       // open if the target is a stream
};

// Throws for folders, sockets and mount points.
FileTarget file_target(const std::filesystem::path& path);

// True if an output at this path is created or replaced rather than written to as a stream.
bool is_replaced(const std::filesystem::path& path);

// The target of an output folder, links followed. Throws if something other than a folder is there, for mount
// points, and for names that cannot be replaced ("..", "/").
std::filesystem::path folder_target(const std::filesystem::path& path);

// Gives the open file or folder `fd` the mode and access list (ACL) of the one at `from`, and its owner and
// group if this process may set them; if not, mode bits that would then let other users in are dropped. Other
// extended attributes describe content and are not copied. Does nothing if `from` does not exist.
void copy_permissions(const std::filesystem::path& from, int fd);

}  // namespace warpwright
