#include "ops/cuda/flag_sets.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "core/error.hpp"

namespace warpwright::ops::gpu {
namespace {

// Owns one of the kFlagSets sets of flags. A Context returns its set after the stream's work is done.
class FlagSet {
 public:
  FlagSet() {
    const std::lock_guard lock(mutex());
    while (index_ < kFlagSets && taken()[static_cast<std::size_t>(index_)]) ++index_;
    if (index_ == kFlagSets) {
      throw Error(fmt::format("more than {} contexts use them at once", kFlagSets),
                  "flags of partial results", "use fewer at once, or force a variant that has none");
    }
    taken()[static_cast<std::size_t>(index_)] = true;
  }
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;
  ~FlagSet() {
    const std::lock_guard lock(mutex());
    taken()[static_cast<std::size_t>(index_)] = false;
  }
  int index() const { return index_; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::array<bool, kFlagSets>& taken() {
    static std::array<bool, kFlagSets> sets{};
    return sets;
  }
  int index_ = 0;
};

}  // namespace

int flag_set_of(const Context& context) {
  static constexpr char kOwner = 0;
  return made_in<FlagSet>(context.kept(&kOwner)).index();
}

}  // namespace warpwright::ops::gpu
