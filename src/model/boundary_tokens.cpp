#include "model/boundary_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace warpwright {
namespace {

constexpr const char *kBos = "bos_token_id", *kEos = "eos_token_id";

[[noreturn]] void refuse(const char* key, const nlohmann::json& value, const std::string& where) {
  throw Error(fmt::format("\"{}\" is {}, not a token's id", key, value.dump()), where,
              "write the tokenizer's id, or null for none");
}

// `value`: one id of the field, which has it all in `field`.
std::int64_t id_of(const char* key, const nlohmann::json& value, const nlohmann::json& field,
                   const std::string& where) {
  const bool is_id = value.is_number_integer() &&
                     !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (!is_id) refuse(key, field, where);
  return value.get<std::int64_t>();
}

}  // namespace

BoundaryTokens BoundaryTokens::with_eos(std::int64_t id) const {
  BoundaryTokens tokens = id;
  if (bos && std::ranges::find(eos, *bos) == eos.end()) tokens.bos = bos;
  if (eos.size() > 1) std::ranges::remove_copy(eos, std::back_inserter(tokens.eos), id);
  return tokens;
}

BoundaryTokens BoundaryTokens::from_json(const nlohmann::json& config, const std::string& where) {
  BoundaryTokens tokens;
  const nlohmann::json bos = config.value(kBos, nlohmann::json()), eos = config.value(kEos, nlohmann::json());
  if (!bos.is_null()) tokens.bos = id_of(kBos, bos, bos, where);
  if (eos.is_null()) return tokens;
  for (const nlohmann::json& id : eos.is_array() ? eos : nlohmann::json::array({eos}))
    tokens.eos.push_back(id_of(kEos, id, eos, where));
  return tokens;
}

void BoundaryTokens::write_to(nlohmann::json& config) const {
  config[kBos] = bos ? nlohmann::json(*bos) : nlohmann::json();
  config[kEos] = eos.empty()       ? nlohmann::json()
                 : eos.size() == 1 ? nlohmann::json(eos.front())
                                   : nlohmann::json(eos);
}

}  // namespace warpwright
