#include "comm/floor.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "runtime/descriptor.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

// A name of Linux's abstract sockets, which the system frees when the process ends.
struct Name {
  sockaddr_un address{};
  socklen_t size;

  Name(const std::string& run, Ending ending) {
    const std::string text = fmt::format("warpwright {} {}", static_cast<int>(ending), run);
    address.sun_family = AF_UNIX;
    std::ranges::copy(text, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor local_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

}  // namespace

// The names of abstract sockets have at most 107 bytes.
Floor::Floor(std::string_view run) : run_(checksum_of(std::as_bytes(std::span(run)))) {}

std::optional<Ending> Floor::taken() const {
  for (const Ending ending : {Ending::error, Ending::wrong_usage, Ending::loss}) {
    const Name name(run_, ending);
    if (::connect(local_socket().get(), name.get(), name.size) == 0) return ending;
  }
  return std::nullopt;
}

std::optional<Ending> Floor::take(Ending ending) const {
  if (const auto other = taken()) return other;
  const Name name(run_, ending);
  FileDescriptor socket = local_socket();
  if (::bind(socket.get(), name.get(), name.size) != 0 && errno == EADDRINUSE) return ending;
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
