// The handles given to callers. An invalid handle is recognized without being dereferenced.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "capi/guard.hpp"

namespace warpwright::capi {

// A value that no handle of any type has had. No object has such an address (it is not canonical), so a
// handle is never mistaken for another pointer, and using it as one fails at once.
inline std::uintptr_t new_handle() {
  static std::atomic<std::uintptr_t> last = std::uintptr_t{1} << 62;
  return last += 16;
}

template <class T>
class Handles {
 public:
  // All handles of this type. Never destroyed, since destructors of other libraries may make late calls.
  static Handles& all() {
    static auto* handles = new Handles;
    return *handles;
  }

  T* add(std::shared_ptr<T> object) {
    const std::scoped_lock held(mutex_);
    T* const handle = reinterpret_cast<T*>(new_handle());
    live_.emplace(handle, std::move(object));
    return handle;
  }
  // Throws an Error that names the argument if the handle is invalid.
  std::shared_ptr<T> find(std::string_view function, std::string_view argument, const T* handle) {
    if (!handle) throw_missing(function, argument);
    const std::scoped_lock held(mutex_);
    const auto found = live_.find(handle);
    if (found != live_.end()) return found->second;
    throw_unknown(function, argument, handle);
  }
  // Like find(), and removes the handle. The object lives on until the running calls end.
  std::shared_ptr<T> remove(std::string_view function, std::string_view argument, const T* handle) {
    const std::scoped_lock held(mutex_);
    const auto found = live_.find(handle);
    if (found == live_.end()) throw_unknown(function, argument, handle);
    std::shared_ptr<T> object = std::move(found->second);
    live_.erase(found);
    return object;
  }

 private:
  [[noreturn]] static void throw_unknown(std::string_view function, std::string_view argument,
                                         const void* handle) {
    throw Error(fmt::format("{} is {}, which this library did not make or has destroyed", argument, handle),
                std::string(function), "use a handle between its creation and its destruction");
  }

  std::mutex mutex_;
  std::unordered_map<const T*, std::shared_ptr<T>> live_;
};

}  // namespace warpwright::capi
