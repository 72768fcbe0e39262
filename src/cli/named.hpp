// Options whose value is one of several names.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {

// A name and its value, for values that have no name_of().
template <class T>
struct Word {
  std::string_view word;
  T value;

  friend std::string_view name_of(const Word& w) { return w.word; }
};

template <class T, std::size_t count>
std::vector<std::string> names_of(const T (&values)[count]) {
  std::vector<std::string> names;
  for (const T& value : values) names.emplace_back(name_of(value));
  return names;
}

// The value of this name; UsageError, which lists the names, for any other.
template <class T, std::size_t count>
T named(const T (&values)[count], const std::string& name, const char* flag) {
  for (const T& value : values) {
    if (name == name_of(value)) return value;
  }
  throw UsageError(fmt::format("{} is not one of its values", quote(name)), flag,
                   fmt::format("use one of {}", fmt::join(names_of(values), ", ")));
}

}  // namespace warpwright::cli
