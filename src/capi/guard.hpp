// Wraps every function of the C ABI, so that exceptions become a status and the thread's message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "runtime/out_of_memory.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

// Sets the calling thread's message for warpwright_last_error(). Makes it valid UTF-8 and cuts it to the
// buffer's size.
void set_last_error(std::string_view message) noexcept;
const char* last_error_message() noexcept;

// True if this process was forked from a process that had created a context. OpenMP's workers do not survive
// a fork, so a parallel region of the child would wait for them forever.
bool forked() noexcept;
// Detects forks from now on. Called before the first context is created.
void watch_for_forks();

// Runs `work` and turns an exception into a status. `work` sets its argument, the status of any later Error.
template <class F>
warpwright_status guarded(F&& work) noexcept {
  warpwright_status meaning = WARPWRIGHT_INVALID_ARGUMENT;
  try {
    if (forked()) {
      set_last_error(
          "this process was forked from one that had used warpwright, whose threads it lacks; start it anew "
          "(exec, Python's multiprocessing with \"spawn\"), or make the first context after the fork");
      return WARPWRIGHT_FAILED;
    }
    work(meaning);
    return WARPWRIGHT_OK;
  } catch (const OutOfMemory& error) {
    set_last_error(error.what());
    return WARPWRIGHT_OUT_OF_MEMORY;
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return WARPWRIGHT_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return meaning;
  } catch (...) {
    set_last_error("an unknown failure");
    return WARPWRIGHT_FAILED;
  }
}

[[noreturn]] void throw_missing(std::string_view function, std::string_view argument);
[[noreturn]] void throw_misaligned(std::string_view function, std::string_view argument, const void* pointer,
                                   std::size_t alignment);
[[noreturn]] void throw_wrong_size(std::string_view function, std::string_view argument, std::size_t size,
                                   std::size_t known);

inline void check_alignment(std::string_view function, std::string_view argument, const void* pointer,
                            std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0) return;
  throw_misaligned(function, argument, pointer, alignment);
}

inline constexpr std::int64_t kMostCount = std::numeric_limits<std::int32_t>::max();

[[noreturn]] inline void fail(std::string_view function, const std::string& what,
                              const std::string& remedy = "see warpwright.h") {
  throw Error(what, std::string(function), remedy);
}

// Checks a pointer to a result: not NULL, and aligned.
template <class T>
void check_place(std::string_view function, std::string_view argument, const T* pointer) {
  if (!pointer) throw_missing(function, argument);
  check_alignment(function, argument, pointer, alignof(T));
}

// Checks that a reserved field is 0, so that a later version may give it a meaning.
void check_reserved(std::string_view function, std::string_view argument, std::int32_t value);

// No structure of this major version is larger, so a larger size is not read.
inline constexpr std::size_t kMostStructureBytes = 4096;

// A caller's structure in this library's version. Fields that an older caller lacks become 0. A newer
// caller's structure is accepted if all fields unknown to this library are 0. `oldest`: its size in the first
// minor version.
template <class Args>
Args known_part(std::string_view function, std::string_view argument, const Args* args,
                std::size_t oldest = sizeof(Args)) {
  check_place(function, argument, args);
  const std::size_t size = args->size;
  if (size < oldest || size > kMostStructureBytes) throw_wrong_size(function, argument, size, sizeof(Args));
  const auto* bytes = reinterpret_cast<const unsigned char*>(args);
  for (std::size_t i = sizeof(Args); i < size; ++i) {
    if (bytes[i] != 0) throw_wrong_size(function, argument, size, sizeof(Args));
  }
  Args known{};
  std::memcpy(&known, args, size < sizeof(Args) ? size : sizeof(Args));
  return known;
}

}  // namespace warpwright::capi
