#include "runtime/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"

namespace warpwright {

std::string reason_of(const nlohmann::json::exception& error) {
  std::string reason = error.what();
  if (const std::size_t name_end = reason.find("] "); name_end != std::string::npos)
    reason.erase(0, name_end + 2);
  reason.resize(std::min(reason.find("; last read"), reason.size()));
  if (reason.size() > 200) reason.resize(200);
  return reason;
}

nlohmann::json parse_json(std::string_view document, const std::string& where, int max_depth,
                          const std::string& remedy) {
  using nlohmann::json;
  const auto fail = [&](const std::string& fact) { throw Error(fact, where, remedy); };
  std::vector<std::size_t> keys;  // of each object that is open; duplicates leave it with fewer members
  std::string last_key;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > max_depth) fail(fmt::format("nests deeper than {} levels", max_depth));
    if (event == json::parse_event_t::object_start) keys.push_back(0);
    if (event == json::parse_event_t::key) {
      ++keys.back();
      last_key = value.get_ref<const std::string&>();
    }
    if (event == json::parse_event_t::object_end) {
      if (value.size() != keys.back()) {
        fail("has a key twice in the object that ends with " + quote(last_key));
      }
      keys.pop_back();
    }
    return true;
  };
  try {
    return json::parse(document.begin(), document.end(), check);
  } catch (const json::exception& error) {
    fail("is not JSON: " + reason_of(error));
  }
  return {};  // not reached: fail() throws
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const nlohmann::json cut = text.substr(0, kLongest);
  const std::string quoted = cut.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() > kLongest ? quoted + " and so on" : quoted;
}

}  // namespace warpwright
