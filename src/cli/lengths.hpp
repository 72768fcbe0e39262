// The option --lengths of benches: tokens of texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warpwright::cli {

// "5,17x3" is one text of 5 tokens and three of 17; "@FILE" has one length on a line. Throws UsageError for
// anything else, and if there is no token.
std::vector<std::int64_t> parse_lengths(std::string text);

}  // namespace warpwright::cli
