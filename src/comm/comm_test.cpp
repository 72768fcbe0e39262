#include "comm/comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "comm/store.hpp"
#include "core/error.hpp"
#include "runtime/test_folder.hpp"

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
  comm.all_to_all({{0, first}, {0, second}}, {{0, got_first}, {0, got_second}}, Stream());
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
  EXPECT_EQ(comm.all_gather("text"), std::vector<std::string>{"text"});
  EXPECT_EQ(gathered(comm, {1.5, -2}), (std::vector<double>{1.5, -2}));
  EXPECT_TRUE(gathered(comm, {}).empty());
}

TEST(Comm, ASingleRankMustReceiveWhatItSends) {
  const Comm& comm = single_rank();
  std::array<std::byte, 3> three{};
  std::array<std::byte, 2> two{};
  EXPECT_THROW(comm.all_to_all({{0, three}}, {{0, two}}, Stream()), Error);
  EXPECT_THROW(comm.all_to_all({{0, three}}, {}, Stream()), Error);
  EXPECT_THROW(comm.all_to_all({}, {{0, two}}, Stream()), Error);
  EXPECT_THROW(comm.all_to_all({{1, two}}, {{0, two}}, Stream()), Error);
}

TEST(Comm, ATextThatIsTooLongIsRefused) {
  const Comm& comm = single_rank();
  const std::string longest(kMostText, 'x');
  EXPECT_EQ(comm.all_gather(longest), std::vector<std::string>{longest});
  EXPECT_NE(message_of([&] { comm.all_gather(longest + "x"); }).find("has 1048577 bytes"), std::string::npos);
}

TEST(Comm, APreparedExchangeSendsWhatIsThereWhenItRuns) {
  const Comm& comm = single_rank();
  std::array<std::byte, 2> sent{}, got{};
  const auto exchange = comm.prepare({{0, sent}}, {{0, got}});
  for (const int value : {1, 2}) {
    sent.fill(std::byte(value));
    exchange->run(Stream());
    EXPECT_EQ(got, sent);
  }
}

TEST(Comm, ASingleRanksSumIsWhatItHas) {
  const Comm& comm = single_rank();
  std::array<float, 3> values{1, -2, 3};
  const std::array<float, 3> before = values;
  comm.reduce({{0, values}}, Stream());
  comm.prepare_reduce({{0, values}})->run(Stream());
  EXPECT_EQ(values, before);
}

TEST(Comm, APlannedRankExchangesNothing) {
  const auto comm = imagined_rank(1, 3);
  std::array<float, 3> values{};
  EXPECT_THROW(comm->all_to_all({}, {}, Stream()), Error);
  EXPECT_THROW(comm->reduce({{0, values}}, Stream()), Error);
  const auto sum = comm->prepare_reduce({{0, values}});  // may be prepared
  EXPECT_THROW(sum->run(Stream()), Error);
}

TEST(Comm, WithoutALauncherAProcessIsAlone) {
  EXPECT_EQ(connect_ranks({})->size(), 1);
}

TEST(Comm, AStoreCarriesTextsAndNoTensorsOfCpus) {
  const int port = free_local_port();
  const auto rank = [port](int r) {
    return connect_ranks(
        {.by = Launch::By::store, .rank = r, .ranks = 2, .address = "127.0.0.1", .port = port});
  };
  const std::string large(3'000'000, 'x');  // more than one message
  std::thread other([&] {
    const auto comm = rank(1);
    EXPECT_EQ(comm->all_gather("b"), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(comm->gather(large).empty());
    EXPECT_TRUE(comm->gather("").empty());
  });
  {
    const auto comm = rank(0);
    EXPECT_EQ(comm->rank(), 0);
    EXPECT_EQ(comm->size(), 2);
    EXPECT_EQ(comm->all_gather("a"), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(comm->gather("small") == (std::vector<std::string>{"small", large}));
    EXPECT_EQ(comm->gather(""), std::vector<std::string>(2));
    EXPECT_THROW(comm->all_to_all({}, {}, Stream()), Error);
    EXPECT_THROW(comm->reduce({}, Stream()), Error);
  }
  other.join();
}

#ifndef WARPWRIGHT_MPI
TEST(Comm, RanksNeedMpi) {
  EXPECT_THROW(connect_ranks({.by = Launch::By::mpi, .ranks = 2}), Error);
}
#endif

}  // namespace
}  // namespace warpwright
