// Parses JSON written by tokenizer programs.
#pragma once

#include "runtime/json.hpp"

namespace warpwright::text {

nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth);

}  // namespace warpwright::text
