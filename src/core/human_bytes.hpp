// Formats sizes of memory for people.
#pragma once

#include <string>

namespace warpwright {

std::string human_bytes(double bytes);  // "12 B", "1.5 GB"

}  // namespace warpwright
