#include "comm/rank_store.hpp"

#include <utility>

namespace warpwright {
namespace {

StoreOptions asking(StoreOptions options, const std::shared_ptr<Watchdog>& watchdog) {
  options.is_waiting = [watchdog] { return watchdog->is_waiting(); };
  return options;
}

}  // namespace

StoreOptions store_options(const Launch& launch, const std::string& command) {
  StoreOptions options{.rank = launch.rank, .ranks = launch.ranks, .address = launch.address};
  options.port = launch.port;
  options.session = launch.session;
  options.job = launch.job;
  options.command = command;
  return options;
}

RankStore::RankStore(StoreOptions options, std::shared_ptr<Watchdog> watchdog)
    : Store(asking(std::move(options), watchdog),
            [watchdog](const Verdict& verdict) {
              verdict.reason ? watchdog->lose(verdict.reason->problem, verdict.reason->remedy)
                             : watchdog->lose_silently(verdict.ending);
            }),
      watchdog_(std::move(watchdog)) {
  watchdog_->set_others({.fail = [this] { return fail(Ending::loss); },
                         .wait_too_long = [this](std::chrono::seconds limit) { wait_too_long(limit); }});
}

RankStore::~RankStore() {
  watchdog_->set_others({});
}

}  // namespace warpwright
