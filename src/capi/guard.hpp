// What every function of the C ABI goes through: exceptions end here, as a status and the thread's message.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "core/error.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

// Of the calling thread, for warpwright_last_error(). Cut where it is longer than what is kept.
void set_last_error(std::string_view message) noexcept;

// Runs `work`, which is given a status to set as it goes on: what an Error from there on means.
template <class F>
warpwright_status guarded(F&& work) noexcept {
  warpwright_status meaning = WARPWRIGHT_INVALID_ARGUMENT;
  try {
    work(meaning);
    return WARPWRIGHT_OK;
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
[[noreturn]] void throw_wrong_size(std::string_view function, std::size_t size, std::size_t known);

// A caller's structure as this library knows it: what an older caller does not have is 0. A newer caller's is
// taken where what is not known here is 0. `oldest`: the size in the first minor version.
template <class Args>
Args known_part(std::string_view function, const Args* args, std::size_t oldest = sizeof(Args)) {
  if (!args) throw_missing(function, "args");
  const std::size_t size = args->size;
  if (size < oldest) throw_wrong_size(function, size, sizeof(Args));
  const auto* bytes = reinterpret_cast<const unsigned char*>(args);
  for (std::size_t i = sizeof(Args); i < size; ++i) {
    if (bytes[i] != 0) throw_wrong_size(function, size, sizeof(Args));
  }
  Args known{};
  std::memcpy(&known, args, size < sizeof(Args) ? size : sizeof(Args));
  return known;
}

}  // namespace warpwright::capi
