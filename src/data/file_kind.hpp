// Telling text from other files by their first bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace warpwright {

inline constexpr std::size_t kKindSampleBytes = std::size_t{1} << 16;

// The kind of a file ("ZIP archive") if its first bytes (up to kKindSampleBytes) are not text; nothing if
// they are.
//
// They are not text if they hold a NUL, if they begin as PDF does, or if more than 3 in 10 bytes are control
// characters (other than those for space, and escape) or no part of a UTF-8 character. Text in Latin-1
// passes; UTF-16, and scripts whose letters old encodings put above 127, do not.
std::optional<std::string_view> kind_if_not_text(std::string_view sample);

// The same, but nothing for bytes that do not begin like a known format.
std::optional<std::string_view> known_format(std::string_view sample);

}  // namespace warpwright
