#include "comm/watchdog.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/host.hpp"
#include "core/error.hpp"

namespace warpwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterval(500);

}  // namespace

Watchdog::Watchdog(int rank, std::chrono::seconds limit, Lost lost)
    : rank_(rank), limit_(limit), lost_(std::move(lost)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Watchdog::set_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void Watchdog::set_probe(std::function<std::string()> probe) {
  const std::lock_guard lock(mutex_);
  probe_ = std::move(probe);
}

Watchdog::Operation::Operation(Watchdog* watchdog, const char* name)
    : Operation(watchdog, name, watchdog ? watchdog->limit_ : std::chrono::seconds()) {}

Watchdog::Operation::Operation(Watchdog* watchdog, const char* name, std::chrono::seconds limit)
    : watchdog_(watchdog) {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  outer_ = std::exchange(watchdog_->operation_, name);
  outer_limit_ = std::exchange(watchdog_->operation_limit_, limit);
  begun_ = watchdog_->since_ = Clock::now();
}

Watchdog::Operation::~Operation() {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  watchdog_->operation_ = outer_;
  watchdog_->operation_limit_ = outer_limit_;
  watchdog_->since_ = Clock::now();
  if (!outer_) watchdog_->in_operations_ += watchdog_->since_ - begun_;
}

double Watchdog::seconds_in_operations() {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(in_operations_).count();
}

void Watchdog::lose(const std::string& problem, const std::string& remedy) {
  std::string where = rank_on_host(rank_);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_lost_, true)) return;
    where += step_ > 0 ? fmt::format(", step {}", step_) : ", start";
    where += fmt::format(", {}", operation_ ? operation_ : "own work");
  }
  lost_(Error(problem, where, remedy).what());
}

void Watchdog::lose_silently() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_lost_, true)) return;
  }
  lost_("");
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kInterval, [this] { return ending_; })) {
    std::string problem = probe_ ? probe_() : "";
    if (problem.empty() && operation_ && operation_limit_.count() > 0 &&
        Clock::now() - since_ > operation_limit_) {
      problem =
          fmt::format("another rank keeps this one waiting for more than {} s", operation_limit_.count());
    }
    if (problem.empty()) continue;
    const bool is_usual = operation_limit_ == limit_;
    lock.unlock();
    lose(problem, is_usual ? "see which rank is slow or stuck; go on with --resume, and "
                             "--collective-timeout for longer"
                           : "see which rank has not started, and start all again");
    return;
  }
}

}  // namespace warpwright
