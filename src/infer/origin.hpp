// The origin of a model: warpwright.json in its folder, which `warpwright train` writes. It names the step,
// the sequence length, and the fingerprints of the tokenizer and the data, so that a model is not evaluated
// or trained further on another tokenizer's ids. Other programs ignore the file.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/fingerprint.hpp"
#include "text/fingerprint.hpp"

namespace warpwright {

struct ModelOrigin {
  std::int64_t step = 0;                                // steps done
  std::int64_t sequence = 0;                            // tokens of a sequence in training
  std::optional<text::TokenizerFingerprint> tokenizer;  // nothing if the data had no tokenizer
  DataFingerprint data;
};

nlohmann::json to_json(const ModelOrigin& origin);
// Throws a nlohmann::json::exception for a field that is missing or of another type.
ModelOrigin model_origin(const nlohmann::json& json);

void write_origin(const std::filesystem::path& model, const ModelOrigin& origin);
// Nothing for a folder without the file and for a .bin; an Error for a file that says something else.
std::optional<ModelOrigin> read_origin(const std::filesystem::path& model);

// Compares a model's tokenizer with that of a data folder, or of any folder: the one it was trained with or,
// if nothing recorded it, the one in its folder. A difference is an Error that says what differs, unless it
// is allowed. If either has none, the data's vocabulary must fit in the model's. Returns a line for people if
// the difference was allowed or if no tokenizers could be compared, else "".
std::string compare_tokenizers(const std::filesystem::path& model, std::int64_t model_vocabulary,
                               const std::filesystem::path& data, bool allow_change);

}  // namespace warpwright
