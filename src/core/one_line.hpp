// Makes untrusted text (file names, arguments, keys) safe to quote in a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace warpwright {

// Writes control characters as \n, \t, \r or \xNN. The result has no line break and no terminal escape
// sequence.
std::string one_line(std::string_view text);

}  // namespace warpwright
