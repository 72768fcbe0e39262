// Releases JSON documents without allocating memory.
//
// nlohmann's destructor moves nested values into a vector, and ends the process if there is no memory for it.
// parse_json() and parse_json_members() release in this way what they do not return. Whoever holds a large
// document that a stranger wrote clears it so, too. Copies of nested values keep the plain destructor.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace warpwright {

// Empties a document of bounded depth.
void clear_json(nlohmann::json& document) noexcept;

// Clears a document at the end of its scope, whether by return or by an exception.
class JsonClearer {
 public:
  explicit JsonClearer(nlohmann::json& document) : document_(document) {}
  JsonClearer(const JsonClearer&) = delete;
  JsonClearer& operator=(const JsonClearer&) = delete;
  ~JsonClearer() { clear_json(document_); }

 private:
  nlohmann::json& document_;
};

}  // namespace warpwright
