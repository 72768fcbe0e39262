// Watchdog: ends a rank whose exchange with the others cannot end.
//
// A rank that waits for another one in a system call or on a GPU cannot be interrupted, so the watchdog's
// threads report the loss and leave it to the program to end the process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "comm/ending.hpp"

namespace warpwright {

class Watchdog {
 public:
  // Takes the line that says why this rank cannot go on, or "" if another rank says it, and how it ends.
  // Called once, from any thread.
  using Lost = std::function<void(const std::string& line, Ending ending)>;

  // limit: how long an operation may take; 0: no limit.
  Watchdog(int rank, std::chrono::seconds limit, Lost lost);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  std::chrono::seconds limit() const { return limit_; }

  // The line names the step, besides rank and host.
  void set_step(std::int64_t step);

  // The other ranks hear by these calls of a loss that this watchdog notes.
  struct Others {
    std::function<std::optional<Ending>()> fail;                    // Store::fail()
    std::function<void(std::chrono::seconds limit)> wait_too_long;  // Store::wait_too_long()
  };
  // Without them, this rank alone ends. Waits until a call under way has ended.
  void set_others(Others others);
  // True during an operation.
  bool is_waiting();

  // Ends this rank: its line says where it is, what has happened and what to do.
  void lose(const std::string& problem, const std::string& remedy);
  // Ends it without a line, like the rank that says why.
  void lose_silently(Ending ending);

  // The operation that a thread waits for.
  struct Wait {
    const char* name = nullptr;  // null: nothing
    std::chrono::seconds limit{};
    const char* remedy = nullptr;
    std::chrono::steady_clock::time_point since{};

    // True if this one would still be within its limit when the other exceeds its own.
    bool outlasts(const Wait& other) const;
  };
  // While it lives, this thread waits for other ranks. An operation within another cannot exceed that one's
  // limit.
  class Operation {
   public:
    // With the watchdog's limit.
    Operation(Watchdog* watchdog, const char* name);
    // With a limit of its own (0: no limit), and what to do if it is exceeded.
    Operation(Watchdog* watchdog, const char* name, std::chrono::seconds limit, const char* remedy);
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    ~Operation();

   private:
    Watchdog* watchdog_;
    Wait outer_;
  };
  // Seconds that operations have taken so far, without those within others.
  double seconds_in_operations();

  // Called every half second by a thread of its own, because a driver may block it; returns why this rank
  // cannot go on, or "". A probe that takes longer than the limit is a loss, too. An empty function: none.
  // Waits until a probe under way has ended.
  void set_probe(std::function<std::string()> probe);

 private:
  // lose(), unless another rank says why they end.
  void fail(const std::string& problem, const std::string& remedy);
  // Lets the ranks find out which of them the others wait for. False if this rank has no others.
  bool ask_others(std::chrono::seconds waited);
  void watch(const std::stop_token& end);
  void probe_often(const std::stop_token& end);
  // The operation or probe that takes too long, if one does.
  struct Delay {
    std::string problem;
    const char* remedy;
    std::optional<std::chrono::seconds> waited{};  // for other ranks
  };
  std::optional<Delay> delay() const;

  const int rank_;
  const std::chrono::seconds limit_;
  const Lost lost_;
  std::mutex mutex_;
  std::condition_variable_any ended_;  // wakes the threads when they are asked to stop
  bool has_lost_ = false;
  std::int64_t step_ = 0;
  Wait operation_;
  std::chrono::steady_clock::duration in_operations_{};
  std::chrono::steady_clock::time_point probing_since_;  // the epoch: no probe is under way
  std::mutex others_mutex_;                              // guards others_, and is held while it is called
  Others others_;
  std::mutex probe_mutex_;  // guards probe_, and is held while it runs
  std::function<std::string()> probe_;
  std::jthread watching_, probing_;  // probing_ ends first, while the other still watches it
};

}  // namespace warpwright
