#include "comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <future>
#include <mutex>

namespace warpwright {
namespace {

using namespace std::chrono_literals;

// The line of the first loss.
struct Loss {
  std::promise<std::string> promise;
  std::future<std::string> line = promise.get_future();
  Watchdog::Lost lost() {
    return [this](const std::string& text, Ending) { promise.set_value(text); };
  }
};

void expect_parts(const std::string& line, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(Watchdog, AnOperationThatTakesTooLongIsALoss) {
  Loss loss;
  Watchdog watchdog(3, 1s, loss.lost());
  watchdog.set_step(12);
  const Watchdog::Operation operation(&watchdog, "sum of gradients");
  ASSERT_EQ(loss.line.wait_for(20s), std::future_status::ready);
  expect_parts(loss.line.get(), {"rank 3 on ", ", step 12, sum of gradients: another rank has kept", "1 s",
                                 "--collective-timeout"});
}

TEST(Watchdog, ShortOperationsAndOwnWorkAreNoLoss) {
  Loss loss;
  Watchdog watchdog(0, 1s, loss.lost());
  for (int i = 0; i < 20; ++i) {
    const Watchdog::Operation operation(&watchdog, "short");
    std::this_thread::sleep_for(50ms);
  }
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(loss.line.wait_for(0s), std::future_status::timeout);
}

TEST(Watchdog, CountsTheTimeOfOperations) {
  Loss loss;
  Watchdog watchdog(0, 0s, loss.lost());
  EXPECT_EQ(watchdog.seconds_in_operations(), 0);
  {
    const Watchdog::Operation outer(&watchdog, "outer");
    const Watchdog::Operation inner(&watchdog, "inner");
    std::this_thread::sleep_for(50ms);
  }
  const double seconds = watchdog.seconds_in_operations();
  EXPECT_GE(seconds, 0.05);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(watchdog.seconds_in_operations(), seconds);
}

TEST(Watchdog, WithoutALimitItWaits) {
  Loss loss;
  Watchdog watchdog(0, 0s, loss.lost());
  const Watchdog::Operation operation(&watchdog, "long");
  EXPECT_EQ(loss.line.wait_for(1500ms), std::future_status::timeout);
}

TEST(Watchdog, AnOperationMayHaveALimitOfItsOwn) {
  Loss loss;
  Watchdog watchdog(2, 1s, loss.lost());
  const Watchdog::Operation outer(&watchdog, "outer", 600s, "wait");
  { const Watchdog::Operation short_one(&watchdog, "short", 1s, "wait"); }
  EXPECT_EQ(loss.line.wait_for(2s), std::future_status::timeout);
  const Watchdog::Operation start(&watchdog, "start of MPI", 1s, "see which rank has not started");
  ASSERT_EQ(loss.line.wait_for(20s), std::future_status::ready);
  const std::string line = loss.line.get();
  expect_parts(line,
               {"start of MPI: another rank has kept", "more than 1 s; see which rank has not started"});
  EXPECT_EQ(line.find("--collective-timeout"), std::string::npos) << line;
}

TEST(Watchdog, AnOperationWithinAnotherDoesNotProlongIt) {
  for (const auto limit : {600s, 0s}) {
    Loss loss;
    Watchdog watchdog(2, limit, loss.lost());
    const Watchdog::Operation outer(&watchdog, "start", 2s, "see which rank has not started");
    while (loss.line.wait_for(100ms) != std::future_status::ready) {
      const Watchdog::Operation inner(&watchdog, "exchange of texts");
      const bool is_lost = loss.line.wait_for(20s) == std::future_status::ready;
      ASSERT_TRUE(is_lost);
    }
    expect_parts(loss.line.get(), {"start: another rank has kept", "more than 2 s; see which rank"});
  }
}

TEST(Watchdog, AProbeReportsALossOnce) {
  Loss loss;
  Watchdog watchdog(1, 0s, loss.lost());
  watchdog.set_probe([] { return "the network is gone"; });
  ASSERT_EQ(loss.line.wait_for(20s), std::future_status::ready);
  expect_parts(loss.line.get(), {"rank 1 on ", ", start, own work: the network is gone"});
  watchdog.lose("again", "nothing");  // a second set_value would throw
  watchdog.lose_silently(Ending::error);
}

TEST(Watchdog, OtherRanksMaySayIt) {
  for (const bool other_says_it : {false, true}) {
    Loss loss;
    Watchdog watchdog(1, 0s, loss.lost());
    watchdog.set_others({.fail = [&] { return other_says_it ? std::optional(Ending::error) : std::nullopt; },
                         .wait_too_long = {}});
    watchdog.set_probe([] { return "the network is gone"; });
    ASSERT_EQ(loss.line.wait_for(20s), std::future_status::ready);
    EXPECT_EQ(loss.line.get().empty(), other_says_it);
  }
}

TEST(Watchdog, TheRanksFindOutForWhichOneItWaits) {
  Loss loss;
  std::promise<std::chrono::seconds> waited;
  Watchdog watchdog(1, 1s, loss.lost());
  watchdog.set_others({.fail = {}, .wait_too_long = [&](auto limit) { waited.set_value(limit); }});
  EXPECT_FALSE(watchdog.is_waiting());
  const Watchdog::Operation operation(&watchdog, "sum of gradients");
  EXPECT_TRUE(watchdog.is_waiting());
  EXPECT_EQ(waited.get_future().get(), 1s);
  EXPECT_EQ(loss.line.wait_for(0s), std::future_status::timeout);
}

// A probe that a driver blocks until the test ends.
struct BlockedProbe {
  std::promise<void> begun, end;
  std::shared_future<void> until = end.get_future().share();
  std::once_flag once;
  std::string operator()() {
    std::call_once(once, [this] { begun.set_value(); });
    until.wait();
    return "";
  }
};

TEST(Watchdog, ABlockedProbeHidesNoLoss) {
  BlockedProbe probe;
  Loss loss;
  Watchdog watchdog(0, 0s, loss.lost());
  watchdog.set_probe([&probe] { return probe(); });
  probe.begun.get_future().wait();
  watchdog.lose("rank 1 has ended", "see why");
  EXPECT_EQ(loss.line.wait_for(0s), std::future_status::ready);
  const Watchdog::Operation operation(&watchdog, "does not wait for the probe");
  probe.end.set_value();
}

TEST(Watchdog, ABlockedProbeHidesNoSlowOperation) {
  BlockedProbe probe;
  Loss loss;
  Watchdog watchdog(0, 0s, loss.lost());
  watchdog.set_probe([&probe] { return probe(); });
  probe.begun.get_future().wait();
  const Watchdog::Operation operation(&watchdog, "sum of gradients", 1s, "see why");
  EXPECT_EQ(loss.line.wait_for(20s), std::future_status::ready);
  probe.end.set_value();
}

TEST(Watchdog, AProbeThatTakesTooLongIsALoss) {
  BlockedProbe probe;
  Loss loss;
  Watchdog watchdog(1, 1s, loss.lost());
  watchdog.set_probe([&probe] { return probe(); });
  const bool is_lost = loss.line.wait_for(20s) == std::future_status::ready;
  probe.end.set_value();
  ASSERT_TRUE(is_lost);
  expect_parts(loss.line.get(), {"rank 1 on ", "driver has not answered within 1 s", "--collective-timeout"});
}

}  // namespace
}  // namespace warpwright
