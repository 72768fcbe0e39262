// Tells text from other files by their first bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace warpwright {

inline constexpr std::size_t kKindSampleBytes = std::size_t{1} << 16;

// The kind of a file ("ZIP archive") if its first bytes (up to kKindSampleBytes) are not text. Empty if they
// are.
//
// The bytes are not text in three cases: they hold a NUL, they begin like a PDF, or more than 3 in 10 of them
// are control characters or outside a UTF-8 character. White space and escape do not count as control
// characters. Latin-1 text passes. UTF-16 does not, nor do old encodings that put all letters above 127.
std::optional<std::string_view> kind_if_not_text(std::string_view sample);

// The same, but only for known formats: empty if the bytes begin like none of them.
std::optional<std::string_view> known_format(std::string_view sample);

}  // namespace warpwright
