// Any bytes as a JSON document and as a file of JSON lines give an Error or the library's result, and never
// more than the requested members.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "data/documents.hpp"
#include "runtime/json.hpp"

using namespace warpwright;

namespace {

void require(bool fact) {
  if (!fact) std::abort();
}

void read_document(std::string_view bytes) {
  try {
    const nlohmann::json value = parse_json(bytes, "fuzz", 16, "");
    require(value == nlohmann::json::parse(bytes));
    const nlohmann::json members = parse_json_members(bytes, {"text", "id"}, "fuzz", 16, "");
    require(value.is_object());
    for (const auto& [key, member] : members.items()) require(value.at(key) == member);
    require(members.size() == value.count("text") + value.count("id"));
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() < 1500);
  }
}

void read_line(const RawDocument& line) {
  try {
    const std::string text = jsonl_text(line, "text", "fuzz");
    require(nlohmann::json::parse(line.bytes).at("text") == text);
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() < 1500);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_document({reinterpret_cast<const char*>(data), size});
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t length = std::min(rest.find('\n'), rest.size());
    read_line({rest.substr(0, length), number});
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return 0;
}
