// Scratch memory that outlives a call, so that its caches stay warm. Calls that run at the same time get
// different scratch.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace warpwright::text {

template <class Scratch>
class ScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    Lease(const Lease&) = delete;
    ~Lease() { pool_.give(std::move(scratch_)); }
    Scratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  std::unique_ptr<Scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
      idle_.reserve(++made_);  // so that give() cannot fail
    }
    return std::make_unique<Scratch>();
  }
  void give(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
  std::size_t made_ = 0;
};

}  // namespace warpwright::text
