#include "runtime/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRenameInstead = "replace files by renaming, do not rewrite them in place";
constexpr std::uint64_t kLargestRead = std::uint64_t{1} << 30;  // Linux transfers less than 2 GiB at once

void* map(std::uint64_t size, int protection, int flags, int fd, const fs::path& path) {
  void* address = ::mmap(nullptr, size, protection, flags, fd, 0);
  if (address == MAP_FAILED) throw_system_error("map", path.string(), "free some address space or memory");
  return address;
}

[[noreturn]] void throw_shrank(std::uint64_t from, std::uint64_t to, const fs::path& path) {
  throw Error(fmt::format("shrank from {} to {} bytes while in use", from, to), path.string(),
              kRenameInstead);
}

}  // namespace

struct MappedRegion {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // equal if the region is free
  std::string message;
  MappedRegion *next = nullptr, *next_free = nullptr;
};

namespace {

// The handler walks the list without a lock, so no region is ever deleted; free ones are used again.
std::atomic<MappedRegion*> first_region{nullptr};
std::mutex regions_mutex;  // for changes of the list
MappedRegion* first_free = nullptr;
std::atomic<bool> guarded{false};

MappedRegion* remember(const void* data, std::uint64_t size, const fs::path& path) {
  const std::lock_guard lock(regions_mutex);
  MappedRegion* region = first_free;
  if (region) {
    first_free = region->next_free;
  } else {
    region = new MappedRegion;
    region->next = first_region;
    first_region = region;
  }
  const Error error("lost bytes while it was read: it was shortened, or its disk failed", path.string(),
                    kRenameInstead);
  region->message = fmt::format("warpwright: {}\n", error.what());
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  region->begin = begin;
  region->end = begin + size;
  return region;
}

void forget(MappedRegion* region) noexcept {
  const std::lock_guard lock(regions_mutex);
  region->end = 0;
  region->begin = 0;
  region->next_free = std::exchange(first_free, region);
}

void on_lost_page(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool is_fault = info->si_code > 0;  // else someone sent the signal
  for (const MappedRegion* region = first_region; is_fault && region; region = region->next) {
    if (address < region->begin || address >= region->end) continue;
    [[maybe_unused]] const ssize_t put =
        ::write(STDERR_FILENO, region->message.data(), region->message.size());
    ::_exit(1);
  }
  ::signal(SIGBUS, SIG_DFL);
  ::raise(SIGBUS);  // ends the process as soon as the handler returns
}

}  // namespace

void guard_mappings() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGBUS, &action, nullptr) != 0) throw_system_error("guard", "SIGBUS", "report this");
  guarded = true;
}

MappedFile::MappedFile(const fs::path& path, Mapping mapping, Links links) : path_(path) {
  const FileDescriptor fd = open_regular(path, links);
  const struct stat status = stat_of(fd.get(), path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == 0) return;
  if (mapping == Mapping::if_guarded && !guarded) {
    read_whole(fd.get(), size);
    return;
  }
  void* address = map(size, PROT_READ, MAP_SHARED, fd.get(), path);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  region_ = remember(address, size, path);
}

void MappedFile::read_whole(int fd, std::uint64_t size) {
  auto* memory =
      static_cast<std::byte*>(map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, path_));
  data_ = memory;
  size_ = size;
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t got = uninterrupted([&] {
      return ::pread(fd, memory + done, std::min(size - done, kLargestRead), static_cast<off_t>(done));
    });
    const int code = errno;
    if (got <= 0) release();
    errno = code;
    if (got < 0) throw_system_error("read", path_.string(), "check the health of the disk");
    if (got == 0) throw_shrank(size, done, path_);
    done += static_cast<std::uint64_t>(got);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::move(other.path_);
    device_ = other.device_;
    inode_ = other.inode_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    region_ = std::exchange(other.region_, nullptr);
  }
  return *this;
}

MappedFile::~MappedFile() {
  release();
}

void MappedFile::release() {
  if (region_) forget(std::exchange(region_, nullptr));
  if (data_) ::munmap(const_cast<std::byte*>(std::exchange(data_, nullptr)), size_);
}

std::span<const std::byte> MappedFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) {
    throw Error(fmt::format("holds {} bytes, {} are wanted at offset {}", size_, count, offset),
                path_.string(), "the file is truncated or damaged, make it again");
  }
  if (count == 0) return {};
  require_whole();
  return {data_ + offset, count};
}

// Another file under the name, or none, leaves the mapped one as it was.
void MappedFile::require_whole() const {
  if (!region_) return;
  struct stat status {};
  const bool same =
      ::stat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  const auto present = static_cast<std::uint64_t>(status.st_size);
  if (same && present < size_) throw_shrank(size_, present, path_);
}

}  // namespace warpwright
