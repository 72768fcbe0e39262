// Reading JSON that strangers wrote: one Error for anything that is not a plain document of bounded depth.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace warpwright::text {

// Parses a document (UTF-8) and refuses what the library would let pass: nesting deeper than `max_depth`, and
// a key that stands twice in one object. `where` names the file in errors.
nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth);

// A string from a file as an error message shows it: in quotation marks, ASCII on one line, cut where it is
// long.
std::string quote(std::string_view text);

}  // namespace warpwright::text
