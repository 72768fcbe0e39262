#include "text/json.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/error.hpp"

namespace warpwright::text {
namespace {

constexpr const char* kRemedy = "check that the file is complete and was written by a tokenizer program";

}  // namespace

nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth) {
  using nlohmann::json;
  std::vector<std::size_t> keys;  // of each object that is open; duplicates leave it with fewer members
  std::string last_key;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > max_depth) throw Error(fmt::format("nests deeper than {} levels", max_depth), where, kRemedy);
    if (event == json::parse_event_t::object_start) keys.push_back(0);
    if (event == json::parse_event_t::key) {
      ++keys.back();
      last_key = value.get_ref<const std::string&>();
    }
    if (event == json::parse_event_t::object_end) {
      if (value.size() != keys.back()) {
        throw Error(fmt::format("a key stands twice in the object that ends with \"{}\"", last_key), where,
                    kRemedy);
      }
      keys.pop_back();
    }
    return true;
  };
  try {
    return json::parse(document.begin(), document.end(), check);
  } catch (const json::exception& error) {
    throw Error(fmt::format("is not JSON: {}", error.what()), where, kRemedy);
  }
}

}  // namespace warpwright::text
