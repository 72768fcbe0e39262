#include "text/json.hpp"

namespace warpwright::text {

nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth) {
  return warpwright::parse_json(document, where, max_depth,
                                "check that the file is complete and was written by a tokenizer program");
}

}  // namespace warpwright::text
