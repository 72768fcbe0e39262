#include "ops/cuda/flag_sets.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "core/error.hpp"

namespace warpwright::ops::gpu {
namespace {

constexpr const char* kWhere = "flags of partial results";
constexpr const char* kOtherVariant = "use fewer at once, or force a variant that has none";

// Owns one of the kFlagSets sets of flags. A Context returns its set after the stream's work is done.
class FlagSet {
 public:
  FlagSet() {
    const std::lock_guard lock(mutex());
    while (index_ < kFlagSets && taken()[static_cast<std::size_t>(index_)]) ++index_;
    if (index_ == kFlagSets) {
      throw Error(fmt::format("more than {} contexts use them at once", kFlagSets), kWhere, kOtherVariant);
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

int flag_set_of(const Context& context, int flags) {
  if (flags > kFlagsOfSet) {
    throw Error(fmt::format("a launch needs {}, a set has {}", flags, kFlagsOfSet), kWhere, kOtherVariant);
  }
  static constexpr char kOwner = 0;
  return made_in<FlagSet>(context.kept(&kOwner)).index();
}

}  // namespace warpwright::ops::gpu
