// The fields of a config.json that describe rotary positions: rope_theta with rope_scaling, or
// rope_parameters of transformers 5.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "ops/rope/angles.hpp"

namespace warpwright {

// The values that rope_parameters or rope_scaling may override. share: the part of a head that is
// rotated.
struct RopeDefaults {
  double theta = 10000, share = 1;
};
// Types other than default, linear, llama3 and yarn, and fields that a type does not have, are refused by
// name and value; so are rope_scaling and rope_parameters if both are there and give other angles.
ops::RopeAngles rope_of(const nlohmann::json& config, std::int64_t head_size, const RopeDefaults& defaults,
                        const std::string& where);
// Throws Error, naming the place, for angles that cannot be.
void check_rope(const ops::RopeAngles& angles, const std::string& where);
// rope_scaling, which all versions of transformers read; null without scaling.
nlohmann::json rope_scaling_json(const ops::RopeAngles& angles);

}  // namespace warpwright
