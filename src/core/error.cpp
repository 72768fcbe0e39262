#include "core/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/one_line.hpp"
#include "core/system_error.hpp"

namespace warpwright {
namespace {

// A message may quote names, keys and paths of any length. This removes the middle of a long part.
std::string bounded(std::string part) {
  constexpr std::size_t kLongest = 1000, kHead = 700, kTail = 200;
  if (part.size() <= kLongest) return part;
  const auto continues_character = [&](std::size_t i) {
    return (static_cast<unsigned char>(part[i]) & 0xc0u) == 0x80u;
  };
  std::size_t head = kHead, tail = part.size() - kTail;
  for (int i = 0; i < 3 && continues_character(head); ++i) --head;
  for (int i = 0; i < 3 && continues_character(tail); ++i) ++tail;
  return fmt::format("{} … {}", std::string_view(part).substr(0, head), std::string_view(part).substr(tail));
}

}  // namespace

Error::Error(std::string what, std::string where, std::string remedy)
    : std::runtime_error(one_line(
          fmt::format("{}: {}; {}", where.empty() ? "''" : bounded(where), bounded(what), bounded(remedy)))),
      problem_(bounded(std::move(what))),
      where_(bounded(std::move(where))),
      remedy_(bounded(std::move(remedy))) {}

SystemError::SystemError(int code, std::string what, std::string where, std::string remedy)
    : Error(std::move(what), std::move(where), std::move(remedy)), code_(code) {}

void throw_system_error(const std::string& action, const std::string& where, const std::string& remedy) {
  const int code = errno;
  throw SystemError(code, fmt::format("cannot {}: {}", action, std::strerror(code)), where, remedy);
}

}  // namespace warpwright
