// Reads a tokenizer's JSON member by member, with errors that name the place.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "text/bpe.hpp"
#include "text/json.hpp"

namespace warpwright::text {

// A JSON value that knows its path in the file, for errors such as "tokenizer.json: model.dropout is 0.1; …".
class JsonField {
 public:
  using json = nlohmann::json;

  // Every error about the value ends with `remedy`.
  JsonField(const json& value, std::string path, const std::string& where, const char* remedy)
      : value_(value), path_(std::move(path)), where_(where), remedy_(remedy) {}

  const json& value() const { return value_; }
  const std::string& path() const { return path_; }
  const std::string& where() const { return where_; }

  [[noreturn]] void fail(const std::string& fact) const {
    throw Error(fmt::format("{} {}", path_.empty() ? "the document" : path_, missing_ ? "is missing" : fact),
                where_, remedy_);
  }

  // The member, or null if it is missing. Any error about a missing one says that it is.
  JsonField member(const std::string& key) const {
    static const json null;
    const auto found = value_.find(key);
    const bool missing = found == value_.end();
    JsonField field(missing ? null : *found, path_.empty() ? key : path_ + "." + key, where_, remedy_);
    field.missing_ = missing;
    return field;
  }

  // The same for a key chosen by the file, which errors quote.
  JsonField foreign_member(const std::string& key) const {
    return {value_[key], fmt::format("{}[{}]", path_, quote(key)), where_, remedy_};
  }

  JsonField element(std::size_t index) const {
    return {value_[index], fmt::format("{}[{}]", path_, index), where_, remedy_};
  }

  const JsonField& require_object(std::initializer_list<std::string_view> known) const {
    if (!value_.is_object()) fail("is not an object");
    for (const auto& [key, ignored] : value_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        foreign_member(key).fail("is not a known field");
    }
    return *this;
  }

  const JsonField& require_array() const {
    if (!value_.is_array()) fail("is not an array");
    return *this;
  }

  const std::string& string() const {
    if (!value_.is_string()) fail("is not a string");
    return value_.get_ref<const std::string&>();
  }

  bool boolean() const {
    if (!value_.is_boolean()) fail("is not true or false");
    return value_.get<bool>();
  }

  bool boolean_or(bool missing) const { return value_.is_null() ? missing : boolean(); }

  TokenId id() const {
    if (!is_id(value_)) fail("is not an id below 2^31");
    return value_.get<TokenId>();
  }

  std::uint32_t count() const {
    if (!is_id(value_)) fail("is not a count below 2^31");
    return value_.get<std::uint32_t>();
  }

  static bool is_id(const json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() <= 0x7fffffff;
  }

  void require_null() const {
    if (!value_.is_null()) fail("is set, and not supported");
  }
  void require_empty() const {
    if (!value_.is_null() && value_ != "") fail("is set, and not supported");
  }
  void require_type(const char* type) const {
    if (member("type").string() != type) member("type").fail(fmt::format("is not \"{}\"", type));
  }

 private:
  const json& value_;
  std::string path_;
  const std::string& where_;
  const char* remedy_;
  bool missing_ = false;
};

}  // namespace warpwright::text
