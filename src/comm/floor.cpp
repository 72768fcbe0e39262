#include "comm/floor.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>

#include "runtime/descriptor.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

// A process that has bound the name listens within this time.
constexpr std::chrono::milliseconds kUntilItListens(100);

// A name of Linux's abstract sockets, which the system frees when the process ends. Another user's runs have
// other names.
struct Name {
  sockaddr_un address{};
  socklen_t size;

  Name(const std::string& run, Ending ending) {
    const std::string text = fmt::format("warpwright {} {} {}", ::geteuid(), static_cast<int>(ending), run);
    address.sun_family = AF_UNIX;
    std::ranges::copy(text, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor local_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Whether a process of this user has the name. Any process can bind it, but the system says whose listens.
bool is_held(const Name& name) {
  const FileDescriptor socket = local_socket();
  if (::connect(socket.get(), name.get(), name.size) != 0) return false;
  ucred holder{};
  socklen_t size = sizeof holder;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) == 0 &&
         holder.uid == ::geteuid();
}

bool is_soon_held(const Name& name) {
  const auto late = std::chrono::steady_clock::now() + kUntilItListens;
  while (!is_held(name)) {
    if (std::chrono::steady_clock::now() > late) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

// The names of abstract sockets have at most 107 bytes.
Floor::Floor(std::string_view run) : run_(checksum_of(std::as_bytes(std::span(run)))) {}

std::optional<Ending> Floor::taken() const {
  for (const Ending ending : {Ending::error, Ending::wrong_usage, Ending::loss}) {
    if (is_held(Name(run_, ending))) return ending;
  }
  return std::nullopt;
}

std::optional<Ending> Floor::take(Ending ending) const {
  if (const auto other = taken()) return other;
  const Name name(run_, ending);
  FileDescriptor socket = local_socket();
  if (::bind(socket.get(), name.get(), name.size) != 0) {
    return errno == EADDRINUSE && is_soon_held(name) ? std::optional(ending) : std::nullopt;
  }
  ::listen(socket.get(), SOMAXCONN);
  socket.release();
  return std::nullopt;
}

Floor floor_of_launcher(std::string_view job) {
  return Floor(job.empty() ? fmt::format("launcher {}", ::getppid()) : fmt::format("job {}", job));
}

Floor floor_at(std::string_view place, std::string_view session, std::string_view job) {
  const std::string name = job.empty() ? fmt::format("session {}", ::getsid(0)) : fmt::format("job {}", job);
  return Floor(fmt::format("{}\n{}\n{}", place, session, name));
}

}  // namespace warpwright
