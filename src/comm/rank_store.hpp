// The store of a rank and its watchdog: each tells the other why the ranks cannot go on.
#pragma once

#include <memory>

#include "comm/launch.hpp"
#include "comm/store.hpp"
#include "comm/watchdog.hpp"

namespace warpwright {

StoreOptions store_options(const Launch& launch, const std::string& command);

class RankStore : public Store {
 public:
  RankStore(StoreOptions options, std::shared_ptr<Watchdog> watchdog);
  RankStore(const RankStore&) = delete;
  RankStore& operator=(const RankStore&) = delete;
  ~RankStore();

 private:
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace warpwright
