#include "comm/floor.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "runtime/descriptor.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

// A new name, which this process alone has. It keeps the floors that it has taken.
std::string new_name() {
  static int count = 0;
  return fmt::format("{} {}", ::getpid(), ++count);
}

TEST(Floor, TheFirstRankThatTakesItSaysHowTheOthersEnd) {
  const std::string name = new_name();
  const Floor floor(name), same(name), other(new_name());
  EXPECT_EQ(floor.taken(), std::nullopt);
  EXPECT_EQ(floor.take(Ending::wrong_usage), std::nullopt);
  EXPECT_EQ(same.taken(), Ending::wrong_usage);
  EXPECT_EQ(same.take(Ending::loss), Ending::wrong_usage);
  EXPECT_EQ(other.taken(), std::nullopt);
}

TEST(Floor, LongNamesAreToldApartByTheirEnds) {
  const std::string start = new_name() + std::string(300, 'x');
  EXPECT_EQ(Floor(start + "1").take(Ending::error), std::nullopt);
  EXPECT_EQ(Floor(start + "2").taken(), std::nullopt);
  EXPECT_EQ(Floor(start + "1").taken(), Ending::error);
}

TEST(Floor, RanksOfOneJobShareOne) {
  const std::string job = new_name(), other = new_name();
  EXPECT_EQ(floor_at("host:1", "run", job).take(Ending::error), std::nullopt);
  EXPECT_EQ(floor_at("host:1", "run", job).taken(), Ending::error);
  EXPECT_EQ(floor_at("host:1", "run", other).taken(), std::nullopt);
  EXPECT_EQ(floor_of_launcher(job).take(Ending::loss), std::nullopt);
  EXPECT_EQ(floor_of_launcher(job).taken(), Ending::loss);
  EXPECT_EQ(floor_of_launcher(other).taken(), std::nullopt);
}

// Binds the name of the floor of this run, as any program can. False if it has not got it.
bool bind_floor(int socket, const std::string& run, Ending ending) {
  const std::string name = fmt::format("warpwright {} {} {}", ::geteuid(), static_cast<int>(ending),
                                       checksum_of(std::as_bytes(std::span(run))));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

FileDescriptor stream_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

TEST(Floor, AProcessThatBindsTheNameAloneDoesNotHaveIt) {
  const std::string run = new_name();
  const FileDescriptor socket = stream_socket();
  ASSERT_TRUE(bind_floor(socket.get(), run, Ending::error));
  EXPECT_EQ(Floor(run).taken(), std::nullopt);
  EXPECT_EQ(Floor(run).take(Ending::error), std::nullopt);
  ASSERT_EQ(::listen(socket.get(), 9), 0);
  EXPECT_EQ(Floor(run).taken(), Ending::error);
}

// A child has the name, and listens as this user.
TEST(Floor, AProcessOfAnotherUserDoesNotHaveIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const uid_t user : {0u, 65534u}) {
    const std::string run = new_name();
    const FileDescriptor socket = stream_socket();
    ASSERT_TRUE(bind_floor(socket.get(), run, Ending::error));
    const pid_t child = ::fork();
    if (child == 0)
      ::_exit(::setuid(user) != 0 || ::listen(socket.get(), 9) != 0);  // the socket stays open here
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    const std::optional<Ending> expected = user == 0 ? std::optional(Ending::error) : std::nullopt;
    EXPECT_EQ(Floor(run).taken(), expected);
    EXPECT_EQ(Floor(run).take(Ending::error), expected);
  }
}

}  // namespace
}  // namespace warpwright
