// The ids in config.json of the tokens that begin and end a text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warpwright {

struct BoundaryTokens {
  BoundaryTokens() = default;
  BoundaryTokens(std::int64_t both) : bos(both), eos{both} {}

  std::optional<std::int64_t> bos;  // none: null
  std::vector<std::int64_t> eos;    // each of them ends a text; none: null, one: a number, several: a list

  // The same with this end of text: in the place of one, and before those of several. A bos that was also the
  // eos, or was not there, follows it.
  BoundaryTokens with_eos(std::int64_t id) const;

  // "bos_token_id" and "eos_token_id" of a config.json. Throws Error for anything but ids.
  static BoundaryTokens from_json(const nlohmann::json& config, const std::string& where);
  void write_to(nlohmann::json& config) const;
};

}  // namespace warpwright
