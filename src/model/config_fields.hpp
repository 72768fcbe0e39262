// Fields of a Hugging Face config.json, checked as they are read.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warpwright {

inline constexpr const char* kModelRemedy =
    "give the folder of a model in Hugging Face's form; none is downloaded by its name";

// The config.json of a model's folder. Throws if there is none.
std::filesystem::path config_in(const std::filesystem::path& folder);

enum class Network : std::uint8_t { decoder, encoder };
// The model_types that this version runs.
std::vector<std::string_view> model_types(Network network);
// The config's model_type. Throws unless it is one that this version runs, and a decoder (gpt2, llama, …) or
// an encoder (bert, roberta and their kin), as the caller wants. No model_type: "gpt2" if there is
// n_embd, because its first configs had none.
std::string require_network(const nlohmann::json& config, Network wanted, const std::string& where);

// Throws: "key" is value, REASON.
[[noreturn]] void refuse_value(std::string_view key, const nlohmann::json& value, std::string_view reason,
                               const std::string& where,
                               const std::string& remedy = "use a model of the plain architecture");
// Refuses a field that is neither one of these nor one of those that every model has, unless it is null.
void refuse_unknown_fields(const nlohmann::json& config, std::span<const std::string_view> known,
                           const std::string& where);
// Refuses a field that is set to anything but the one supported value.
void require_value(const nlohmann::json& config, std::string_view key, const nlohmann::json& value,
                   const std::string& where);

// A whole number. Throws if it is missing, of another type or beyond 63 bits.
std::int64_t config_integer(const nlohmann::json& config, const char* key, const std::string& where);
// The same; nothing if it is missing or null.
std::optional<std::int64_t> optional_config_integer(const nlohmann::json& config, const char* key,
                                                    const std::string& where);
// true or false; `otherwise` if it is missing or null.
bool config_flag(const nlohmann::json& config, const char* key, bool otherwise, const std::string& where);
// A string; `otherwise` if it is missing or null.
std::string config_string(const nlohmann::json& config, const char* key, const std::string& otherwise,
                          const std::string& where);
// Generous bounds on the sizes of a model, so that products of a few of them cannot overflow 63 bits, and
// positions have 31.
inline constexpr std::int64_t kMostLayers = 10'000, kMostChannels = 1 << 20,
                              kMostVocab = std::int64_t{1} << 31, kMostContext = 1 << 30;

// Throws for a size that is not between 1 and `most`.
void check_size(const char* name, std::int64_t size, std::int64_t most, const std::string& where);

// A number; `otherwise` if it is missing or null.
double config_number(const nlohmann::json& config, std::string_view key, double otherwise,
                     const std::string& where);
// The double with the fewest digits that rounds to this float: 1e-05, not 9.999999747378752e-06.
double shortest_number(float value);
// A number between the least normal float and 1; `otherwise` if it is missing or null.
float config_epsilon(const nlohmann::json& config, const char* key, float otherwise,
                     const std::string& where);

}  // namespace warpwright
