// Reading JSON that strangers wrote: in linear time and bounded memory, with one Error for anything that is
// not a plain document of bounded depth.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace warpwright {

// Parses a document (UTF-8). Refuses nesting deeper than `max_depth`, a key that an object has twice, a NUL
// byte, and a document whose values would take more than 512 MiB of memory. `where` names the file in errors,
// `remedy` says what to do about them.
nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth,
                          const std::string& remedy);

// The same for one object of which only these members are wanted. Returns an object of those that it has. The
// other members are checked, but their values (and duplicates among those) take no memory.
nlohmann::json parse_json_members(std::string_view document, std::initializer_list<std::string_view> wanted,
                                  const std::string& where, int max_depth, const std::string& remedy);

// The library's message, without the error's name and without the last input, which can be anything.
std::string reason_of(const nlohmann::json::exception& error);

// A string from a file as an error message shows it: in quotation marks, ASCII on one line, cut if it is
// long.
std::string quote(std::string_view text);

}  // namespace warpwright
