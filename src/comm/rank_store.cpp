#include "comm/rank_store.hpp"

#include <utility>

namespace warpwright {
namespace {

StoreOptions asking(StoreOptions options, const std::shared_ptr<Watchdog>& watchdog) {
  options.is_waiting = [watchdog] { return watchdog->is_waiting(); };
  return options;
}

}  // namespace

StoreOptions store_options(const Launch& launch) {
  StoreOptions options{.rank = launch.rank, .ranks = launch.ranks, .address = launch.address};
  options.port = launch.port;
  options.session = launch.session;
  options.speaks = launch.speaks();
  return options;
}

RankStore::RankStore(StoreOptions options, std::shared_ptr<Watchdog> watchdog)
    : Store(asking(std::move(options), watchdog),
            [watchdog](const std::string& problem) {
              problem.empty() ? watchdog->lose_silently() : watchdog->lose(problem, kSeeThatRank);
            }),
      watchdog_(std::move(watchdog)) {
  watchdog_->set_others({.fail = [this] { return fail(); },
                         .wait_too_long = [this](std::chrono::seconds limit) { wait_too_long(limit); }});
}

RankStore::~RankStore() {
  watchdog_->set_others({});
}

}  // namespace warpwright
