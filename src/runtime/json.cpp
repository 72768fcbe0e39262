#include "runtime/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runtime/json_clearer.hpp"

namespace warpwright {
namespace {

using nlohmann::json;

constexpr std::size_t kMostMemory = std::size_t{512} << 20;  // of the values, estimated

// Estimates of what values take on the heap. An array may have twice the room that its elements need.
constexpr std::size_t kElementBytes = 2 * sizeof(json);
constexpr std::size_t kMemberBytes = 128;  // a node of the map with its key
constexpr std::size_t kContainerBytes = 64;
constexpr std::size_t kStringBytes = 48;

// Builds a document from the parser's events. The library's own builder is not used, because with a callback
// (the only way to bound the depth) it looks through a whole container after each element, and because it
// silently keeps the last of equal keys.
class DocumentReader : public nlohmann::json_sax<json> {
 public:
  // Keeps all members, or of the outermost object only those that are wanted.
  DocumentReader(const std::string& where, int max_depth, const std::string& remedy,
                 std::optional<std::span<const std::string_view>> wanted = std::nullopt)
      : where_(where), remedy_(remedy), max_depth_(static_cast<std::size_t>(max_depth)), wanted_(wanted) {}
  ~DocumentReader() override { clear_json(root_); }

  json read(std::string_view document) {
    // The parser takes a NUL for the end.
    if (const std::size_t nul = document.find('\0'); nul != std::string_view::npos)
      fail(fmt::format("is not JSON: byte {} is a NUL", nul));
    json::sax_parse(document.begin(), document.end(), this);
    return std::move(root_);
  }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool binary(binary_t&) override { fail("is not JSON: holds binary data"); }
  bool string(string_t& value) override {
    spend(kStringBytes + value.size());
    return put(std::move(value));
  }

  bool start_object(std::size_t) override { return open(json::value_t::object); }
  bool start_array(std::size_t) override { return open(json::value_t::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    if (depth_ == 1 && wanted_)
      skipping_ = std::find(wanted_->begin(), wanted_->end(), key) == wanted_->end();
    if (skipping_) return true;
    spend(kMemberBytes + key.size());
    auto [member, is_new] = open_.back()->get_ref<json::object_t&>().emplace(std::move(key), nullptr);
    if (!is_new) fail(fmt::format("has the key {} twice in one object", quote(member->first)));
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    fail("is not JSON: " + reason_of(error));
  }

 private:
  [[noreturn]] void fail(const std::string& fact) const { throw Error(fact, where_, remedy_); }

  void spend(std::size_t bytes) {
    if (skipping_) return;
    memory_ += bytes;
    if (memory_ > kMostMemory) fail(fmt::format("holds more values than fit in {} MiB", kMostMemory >> 20));
  }

  bool put(json value) {
    if (skipping_) return true;
    place(std::move(value));
    return true;
  }

  json* place(json value) {
    if (open_.empty()) {
      if (wanted_ && !value.is_object()) fail("is not a JSON object");
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    spend(kElementBytes);
    return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
  }

  bool open(json::value_t type) {
    if (++depth_ > max_depth_) fail(fmt::format("nests deeper than {} levels", max_depth_));
    if (skipping_) return true;
    spend(kContainerBytes);
    open_.push_back(place(json(type)));
    return true;
  }

  bool close() {
    if (--depth_ == 0) skipping_ = false;
    if (!skipping_) open_.pop_back();
    return true;
  }

  const std::string& where_;
  const std::string& remedy_;
  std::size_t max_depth_, depth_ = 0, memory_ = 0;
  std::optional<std::span<const std::string_view>> wanted_;
  bool skipping_ = false;  // the value of a member that is not wanted
  json root_;
  std::vector<json*> open_;  // containers from the outermost; only the innermost one grows
  json* member_ = nullptr;   // of the innermost object: where its next value goes
};

}  // namespace

// From the innermost values outwards, so that no destructor meets a nested value.
void clear_json(json& document) noexcept {
  if (document.is_array()) {
    for (json& element : document.get_ref<json::array_t&>()) clear_json(element);
    document.clear();
  } else if (document.is_object()) {
    for (auto& [key, value] : document.get_ref<json::object_t&>()) clear_json(value);
    document.clear();
  }
}

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
  return DocumentReader(where, max_depth, remedy).read(document);
}

nlohmann::json parse_json_members(std::string_view document, std::initializer_list<std::string_view> wanted,
                                  const std::string& where, int max_depth, const std::string& remedy) {
  return DocumentReader(where, max_depth, remedy, wanted).read(document);
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const nlohmann::json cut = text.substr(0, kLongest);
  const std::string quoted = cut.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() > kLongest ? quoted + " and so on" : quoted;
}

}  // namespace warpwright
