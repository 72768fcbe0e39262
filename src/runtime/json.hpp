// Reading JSON that strangers wrote: one Error for anything that is not a plain document of bounded depth.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace warpwright {

// Parses a document (UTF-8) and refuses what the library would let pass: nesting deeper than `max_depth`, on
// which its functions recurse until the stack ends, and a key that stands twice in one object. `where` names
// the file in errors, `remedy` says what to do about them.
nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth,
                          const std::string& remedy);

// The library's message without its name for the error and without what it read last, which can be anything.
std::string reason_of(const nlohmann::json::exception& error);

// A string from a file as an error message shows it: in quotation marks, ASCII on one line, cut where it is
// long.
std::string quote(std::string_view text);

}  // namespace warpwright
