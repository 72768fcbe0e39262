#include "core/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/one_line.hpp"

namespace warpwright {

Error::Error(std::string what, std::string where, std::string remedy)
    : std::runtime_error(one_line(fmt::format("{}: {}; {}", where.empty() ? "''" : where, what, remedy))),
      problem_(std::move(what)),
      where_(std::move(where)),
      remedy_(std::move(remedy)) {}

void throw_system_error(const std::string& action, const std::string& where, const std::string& remedy) {
  const int code = errno;
  throw Error(fmt::format("cannot {}: {}", action, std::strerror(code)), where, remedy);
}

}  // namespace warpwright
