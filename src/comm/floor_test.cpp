#include "comm/floor.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace warpwright
