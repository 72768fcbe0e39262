#include "comm/watchdog.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/host.hpp"
#include "core/error.hpp"

namespace warpwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterval(500);
constexpr const char* kSeeWhichIsStuck =
    "see which rank is slow or stuck; go on with --resume, and --collective-timeout for longer";

}  // namespace

Watchdog::Watchdog(int rank, std::chrono::seconds limit, Lost lost)
    : rank_(rank),
      limit_(limit),
      lost_(std::move(lost)),
      watching_([this](const std::stop_token& end) { watch(end); }),
      probing_([this](const std::stop_token& end) { probe_often(end); }) {}

void Watchdog::set_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void Watchdog::set_others(Others others) {
  const std::lock_guard lock(others_mutex_);
  others_ = std::move(others);
}

bool Watchdog::is_waiting() {
  const std::lock_guard lock(mutex_);
  return operation_.name != nullptr;
}

void Watchdog::set_probe(std::function<std::string()> probe) {
  const std::lock_guard lock(probe_mutex_);
  probe_ = std::move(probe);
}

Watchdog::Operation::Operation(Watchdog* watchdog, const char* name)
    : Operation(watchdog, name, watchdog ? watchdog->limit_ : std::chrono::seconds(), kSeeWhichIsStuck) {}

Watchdog::Operation::Operation(Watchdog* watchdog, const char* name, std::chrono::seconds limit,
                               const char* remedy)
    : watchdog_(watchdog) {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  outer_ = watchdog_->operation_;
  const Wait mine{name, limit, remedy, Clock::now()};
  if (!mine.outlasts(outer_)) watchdog_->operation_ = mine;
}

Watchdog::Operation::~Operation() {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  if (!outer_.name) watchdog_->in_operations_ += Clock::now() - watchdog_->operation_.since;
  watchdog_->operation_ = outer_;
}

bool Watchdog::Wait::outlasts(const Wait& other) const {
  if (!other.name || other.limit.count() == 0) return false;
  return limit.count() == 0 || since + limit > other.since + other.limit;
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
    where += fmt::format(", {}", operation_.name ? operation_.name : "own work");
  }
  lost_(Error(problem, where, remedy).what(), Ending::loss);
}

void Watchdog::fail(const std::string& problem, const std::string& remedy) {
  const std::lock_guard telling(others_mutex_);
  const auto told = others_.fail ? others_.fail() : std::nullopt;
  told ? lose_silently(*told) : lose(problem, remedy);
}

bool Watchdog::ask_others(std::chrono::seconds waited) {
  const std::lock_guard asking(others_mutex_);
  if (others_.wait_too_long) others_.wait_too_long(waited);
  return others_.wait_too_long != nullptr;
}

void Watchdog::lose_silently(Ending ending) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_lost_, true)) return;
  }
  lost_("", ending);
}

std::optional<Watchdog::Delay> Watchdog::delay() const {
  const Clock::time_point now = Clock::now();
  if (limit_.count() > 0 && probing_since_ != Clock::time_point() && now - probing_since_ > limit_) {
    return Delay{fmt::format("the GPU's driver has not answered within {} s", limit_.count()),
                 kSeeWhichIsStuck};
  }
  if (!operation_.name || operation_.limit.count() == 0 || now - operation_.since <= operation_.limit)
    return {};
  return Delay{
      fmt::format("another rank has kept this one waiting for more than {} s", operation_.limit.count()),
      operation_.remedy, operation_.limit};
}

void Watchdog::watch(const std::stop_token& end) {
  std::unique_lock lock(mutex_);
  while (!end.stop_requested()) {
    ended_.wait_for(lock, end, kInterval, [] { return false; });
    const std::optional<Delay> found = delay();
    if (!found || end.stop_requested()) continue;
    lock.unlock();
    if (found->waited && ask_others(*found->waited)) return;
    return fail(found->problem, found->remedy);
  }
}

void Watchdog::probe_often(const std::stop_token& end) {
  std::unique_lock lock(mutex_);
  while (!end.stop_requested()) {
    ended_.wait_for(lock, end, kInterval, [] { return false; });
    if (end.stop_requested()) return;
    probing_since_ = Clock::now();
    lock.unlock();
    std::string problem;
    {
      const std::lock_guard probing(probe_mutex_);
      if (probe_) problem = probe_();
    }
    if (!problem.empty()) return fail(problem, kSeeWhichIsStuck);
    lock.lock();
    probing_since_ = {};
  }
}

}  // namespace warpwright
