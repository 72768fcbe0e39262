#include "capi/guard.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>

#include "text/unicode.hpp"

namespace warpwright::capi {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char last_error[kMessageBytes];

std::atomic<bool> watched = false, was_forked = false;

// The number of bytes of the message that fit, without a partial character. The later bytes of a UTF-8
// character begin with the bits 10.
std::size_t fitting(std::string_view message) {
  std::size_t bytes = std::min(message.size(), kMessageBytes - 1);
  while (bytes < message.size() && bytes > 0 && (message[bytes] & 0xc0) == 0x80) --bytes;
  return bytes;
}

void keep(std::string_view message) noexcept {
  const std::size_t bytes = fitting(message);
  std::memcpy(last_error, message.data(), bytes);
  last_error[bytes] = '\0';
}

}  // namespace

void set_last_error(std::string_view message) noexcept {
  message = message.substr(0, fitting(message));
  try {
    keep(text::is_utf8(message) ? std::string(message) : text::repair_utf8(message));
  } catch (const std::exception&) {
    keep("an error whose message does not fit into memory");
  }
}

const char* last_error_message() noexcept {
  return last_error;
}

bool forked() noexcept {
  return was_forked.load(std::memory_order_relaxed);
}

void watch_for_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    const int code = pthread_atfork(nullptr, nullptr, [] { was_forked = watched.load(); });
    if (code != 0) throw std::bad_alloc();  // the only possible failure
  });
  watched = true;
}

void throw_missing(std::string_view function, std::string_view argument) {
  throw Error(fmt::format("{} is NULL", argument), std::string(function), "see warpwright.h");
}

void throw_misaligned(std::string_view function, std::string_view argument, const void* pointer,
                      std::size_t alignment) {
  throw Error(fmt::format("{} is {}, which is not aligned to {} bytes", argument, pointer, alignment),
              std::string(function), "use memory that is aligned for its type");
}

void throw_wrong_size(std::string_view function, std::string_view argument, std::size_t size,
                      std::size_t known) {
  throw Error(fmt::format("{}.size is {}, this library ({}) knows {} bytes", argument, size,
                          warpwright_version(), known),
              std::string(function),
              size < known || size > kMostStructureBytes ? "set it to sizeof of the structure"
                                                         : "use a library as new as the program's header");
}

void check_reserved(std::string_view function, std::string_view argument, std::int32_t value) {
  if (value == 0) return;
  throw Error(fmt::format("{} is {}", argument, value), std::string(function), "set it to 0");
}

}  // namespace warpwright::capi
