#include "comm/floor.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "runtime/descriptor.hpp"

namespace warpwright {
namespace {

// A name of Linux's abstract sockets, which the system frees when the process ends.
struct Name {
  sockaddr_un address{};
  socklen_t size;

  Name(const std::string& run, Ending ending) {
    const std::string text = fmt::format("warpwright {} {}", static_cast<int>(ending), run);
    const std::size_t most = std::min(text.size(), sizeof address.sun_path - 1);
    address.sun_family = AF_UNIX;
    std::copy_n(text.begin(), most, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + most);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor local_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

}  // namespace

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

Floor floor_of_launcher() {
  return Floor(fmt::format("launcher {}", ::getppid()));
}

}  // namespace warpwright
