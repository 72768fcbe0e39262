#include "comm/comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "core/error.hpp"

namespace warpwright {
namespace {

TEST(Comm, ASingleRankGetsWhatItSends) {
  const Comm& comm = single_rank();
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  const std::array<std::byte, 3> first{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array<std::byte, 1> second{std::byte{4}};
  std::array<std::byte, 3> got_first{};
  std::array<std::byte, 1> got_second{};
  comm.all_to_all({{0, first}, {0, second}}, {{0, got_first}, {0, got_second}});
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
  EXPECT_EQ(comm.all_gather("text"), std::vector<std::string>{"text"});
  EXPECT_EQ(gathered(comm, {1.5, -2}), (std::vector<double>{1.5, -2}));
  EXPECT_TRUE(gathered(comm, {}).empty());
}

TEST(Comm, WithoutALauncherAProcessIsAlone) {
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ::unsetenv("PMI_SIZE");
  EXPECT_EQ(connect_ranks()->size(), 1);
  ::setenv("PMI_SIZE", "1", 1);
  EXPECT_EQ(connect_ranks()->size(), 1);
}

#ifndef WARPWRIGHT_MPI
TEST(Comm, RanksNeedMpi) {
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_THROW(connect_ranks(), Error);
}
#endif

}  // namespace
}  // namespace warpwright
