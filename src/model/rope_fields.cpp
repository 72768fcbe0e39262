#include "model/rope_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.hpp"
#include "model/config_fields.hpp"

namespace warpwright {
namespace {

// The fields of each rope_type.
struct ScalingFields {
  std::string_view name;
  ops::RopeScaling scaling;
  // Besides these: rope_theta, partial_rotary_factor and the type.
  std::vector<std::string_view> required, optional;
};
const std::vector<ScalingFields>& scalings() {
  static const std::vector<ScalingFields> kScalings = {
      {"default", ops::RopeScaling::none, {}, {}},
      {"linear", ops::RopeScaling::linear, {"factor"}, {}},
      {"llama3",
       ops::RopeScaling::llama3,
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
       {}},
      {"yarn",
       ops::RopeScaling::yarn,
       {"factor", "original_max_position_embeddings"},
       {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}}};
  return kScalings;
}

const ScalingFields& scaling_of(const nlohmann::json& rope, const std::string& where) {
  const char* key = rope.contains("rope_type") ? "rope_type" : "type";
  const std::string name = config_string(rope, key, "default", where);
  const auto found = std::ranges::find(scalings(), name, &ScalingFields::name);
  if (found != scalings().end()) return *found;
  refuse_value(key, rope.at(key), "only default, linear, llama3 and yarn are supported", where);
}

void check_fields(const nlohmann::json& rope, const ScalingFields& fields, const std::string& where) {
  constexpr std::string_view kAlways[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  const auto is_in = [](const auto& names, const std::string& key) {
    return std::ranges::find(names, key) != std::end(names);
  };
  for (const auto& [key, value] : rope.items()) {
    if (!is_in(kAlways, key) && !is_in(fields.required, key) && !is_in(fields.optional, key))
      refuse_value(key, value, fmt::format("a field that rope_type {} does not have", fields.name), where);
  }
  for (const std::string_view key : fields.required) {
    const auto found = rope.find(key);
    if (found == rope.end() || found->is_null())
      throw Error(fmt::format("\"{}\" is missing, and rope_type {} needs it", key, fields.name), where,
                  "use the model's own config.json");
  }
  if (rope.contains("type") && rope.contains("rope_type") && rope["type"] != rope["rope_type"])
    refuse_value("type", rope["type"], fmt::format("and rope_type is {}", rope["rope_type"].dump()), where);
}

// rope: rope_parameters, or rope_scaling of earlier versions.
void read_scaling(const nlohmann::json& rope, ops::RopeAngles& angles, const std::string& where) {
  if (!rope.is_object())
    throw Error("rope's parameters are not an object", where, "use the model's own config.json");
  const ScalingFields& fields = scaling_of(rope, where);
  check_fields(rope, fields, where);
  angles.scaling = fields.scaling;
  const auto read = [&](const char* key, double& number) {
    number = config_number(rope, key, number, where);
  };
  read("rope_theta", angles.theta);
  read("factor", angles.factor);
  read("low_freq_factor", angles.low_freq_factor);
  read("high_freq_factor", angles.high_freq_factor);
  read("beta_fast", angles.beta_fast);
  read("beta_slow", angles.beta_slow);
  read("mscale", angles.mscale);
  read("mscale_all_dim", angles.mscale_all_dim);
  if (rope.contains("attention_factor") && !rope["attention_factor"].is_null())
    read("attention_factor", angles.attention_factor.emplace());
  // transformers takes null for false here, and its absence for true.
  if (const auto found = rope.find("truncate"); found != rope.end() && found->is_null())
    refuse_value("truncate", *found, "neither true nor false", where, "write one of them");
  angles.truncate = config_flag(rope, "truncate", true, where);
  if (const auto L = optional_config_integer(rope, "original_max_position_embeddings", where))
    angles.original_positions = *L;
}

ops::RopeAngles angles_of(const nlohmann::json& rope, std::int64_t head_size, const RopeDefaults& defaults,
                          const std::string& where) {
  ops::RopeAngles angles{.theta = defaults.theta};
  read_scaling(rope, angles, where);
  const double share = config_number(rope, "partial_rotary_factor", defaults.share, where);
  if (!(share > 0 && share <= 1))
    throw Error(fmt::format("a share of {} of each head is rotated", share), where,
                "give more than 0 and at most 1");
  angles.R = static_cast<std::int64_t>(static_cast<double>(head_size) * share);
  return angles;
}

}  // namespace

ops::RopeAngles rope_of(const nlohmann::json& config, std::int64_t head_size, const RopeDefaults& defaults,
                        const std::string& where) {
  const nlohmann::json none = nlohmann::json::object();
  const auto given = [&](const char* key) {
    const auto found = config.find(key);
    return found == config.end() || found->is_null() ? nullptr : &*found;
  };
  const nlohmann::json *scaling = given("rope_scaling"), *parameters = given("rope_parameters");
  const nlohmann::json& rope = scaling ? *scaling : parameters ? *parameters : none;
  const ops::RopeAngles angles = angles_of(rope, head_size, defaults, where);
  if (scaling && parameters && angles_of(*parameters, head_size, defaults, where) != angles) {
    throw Error(
        fmt::format("\"rope_scaling\" is {}, and \"rope_parameters\", which says something else, is {}",
                    scaling->dump(), parameters->dump()),
        where,
        "keep the one that the model was trained with; without a rope_theta in it, the one outside counts");
  }
  return angles;
}

void check_rope(const ops::RopeAngles& angles, const std::string& where) {
  try {
    rope_frequencies(angles);
    rope_attention_factor(angles);
  } catch (const Error& error) {
    throw Error(error.problem(), where, error.remedy());
  }
}

nlohmann::json rope_scaling_json(const ops::RopeAngles& angles) {
  switch (angles.scaling) {
    case ops::RopeScaling::linear:
      return {{"rope_type", "linear"}, {"factor", angles.factor}};
    case ops::RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", angles.factor},
              {"low_freq_factor", angles.low_freq_factor},
              {"high_freq_factor", angles.high_freq_factor},
              {"original_max_position_embeddings", angles.original_positions}};
    case ops::RopeScaling::yarn: {
      nlohmann::json scaling = {{"rope_type", "yarn"},
                                {"factor", angles.factor},
                                {"original_max_position_embeddings", angles.original_positions},
                                {"beta_fast", angles.beta_fast},
                                {"beta_slow", angles.beta_slow},
                                {"truncate", angles.truncate}};
      if (angles.attention_factor) scaling["attention_factor"] = *angles.attention_factor;
      if (angles.mscale != 0) scaling["mscale"] = angles.mscale;
      if (angles.mscale_all_dim != 0) scaling["mscale_all_dim"] = angles.mscale_all_dim;
      return scaling;
    }
    default:
      return nullptr;
  }
}

}  // namespace warpwright
