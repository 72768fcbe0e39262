// Texts of a caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace warpwright::capi {

inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 31;

// Throws an Error that names the argument if there are no pointers, if one is NULL, or if a text is too long.
// bytes: the texts' sizes; NULL: a 0 ends each.
std::vector<std::string_view> texts_of(std::string_view function, std::string_view argument,
                                       const char* const* texts, const std::size_t* bytes,
                                       std::int64_t count);

}  // namespace warpwright::capi
