#include "runtime/load.hpp"

#include <sched.h>
#include <unistd.h>

#include <thread>

#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using OtherLoadTest = TestFolder;

TEST_F(OtherLoadTest, CountsBusyAndStolenTimeOfTheProcessorsInTheMask) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  int inside = 0, outside = 0;
  while (!CPU_ISSET(inside, &mask)) ++inside;
  while (CPU_ISSET(outside, &mask)) ++outside;
  const auto stat = [&](int user, int idle, int steal, int elsewhere) {
    put("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu" + std::to_string(inside) + " " + std::to_string(user) +
                         " 0 0 " + std::to_string(idle) + " 0 0 0 " + std::to_string(steal) + " 0 0\ncpu" +
                         std::to_string(outside) + " " + std::to_string(elsewhere) +
                         " 0 0 0 0 0 0 0 0 0\nintr 12345\n");
  };
  stat(1000, 0, 500, 0);
  const OtherLoad load(folder);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stat(1000, 900000, 500, 900000);  // idle time, and other processors' time
  EXPECT_EQ(load.processors(), 0);
  stat(1000 + 10000 * static_cast<int>(::sysconf(_SC_CLK_TCK)), 0, 500, 0);
  EXPECT_GT(load.processors(), 10);
  stat(1000, 0, 500 + 10000 * static_cast<int>(::sysconf(_SC_CLK_TCK)), 0);
  EXPECT_GT(load.processors(), 10);
}

TEST_F(OtherLoadTest, NeedsNoProcStat) {
  const OtherLoad load(folder);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_EQ(load.processors(), 0);
}

TEST(Disturbance, IsFoundBeyondItsLimits) {
  EXPECT_FALSE(Disturbance{}.found());
  EXPECT_FALSE((Disturbance{0.05, 0.1}).found());
  EXPECT_TRUE((Disturbance{1.5, 0}).found());
  EXPECT_TRUE((Disturbance{0, 0.4}).found());
  EXPECT_EQ((Disturbance{1.5, 0.4}).describe().find("other programs used 1.50 of this process's CPUs"), 0u);
}

}  // namespace
}  // namespace warpwright
