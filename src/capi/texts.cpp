#include "capi/texts.hpp"

#include <fmt/format.h>

#include <string>

#include "capi/guard.hpp"

namespace warpwright::capi {

std::vector<std::string_view> texts_of(std::string_view function, std::string_view argument,
                                       const char* const* texts, const std::size_t* bytes,
                                       std::int64_t count) {
  std::vector<std::string_view> views;
  if (count == 0) return views;
  check_place(function, argument, texts);
  if (bytes) check_place(function, "the lengths of " + std::string(argument), bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!texts[i]) fail(function, fmt::format("{}[{}] is NULL", argument, i));
    views.push_back(bytes ? std::string_view(texts[i], bytes[i]) : std::string_view(texts[i]));
    if (views.back().size() > kMostTextBytes) {
      fail(function, fmt::format("{}[{}] has {} bytes", argument, i, views.back().size()),
           fmt::format("give at most {}", kMostTextBytes));
    }
  }
  return views;
}

}  // namespace warpwright::capi
