// Text of strangers (names of files, arguments, keys) as it may stand within one line of a message.
#pragma once

#include <string>
#include <string_view>

namespace warpwright {

// Control characters as \n, \t, \r or \xNN, so that neither a line ends nor a terminal obeys.
std::string one_line(std::string_view text);

}  // namespace warpwright
