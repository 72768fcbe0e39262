// The decoders that this version knows. HACKING.md, "Add a family", lists what a family is made of.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/decoder.hpp"

namespace warpwright {

// The decoder of a config.json. Throws Error, naming `where`, for a model that this version does not run.
std::shared_ptr<const Decoder> decoder_of_config(const nlohmann::json& config, const std::string& where);

// True for FAMILY:SIZE, which names sizes and no folder.
bool names_sizes(const std::string& model);
// The decoder of those sizes. UsageError for a name that is not known. vocab, context: in place of the
// family's own, if they are not 0.
std::shared_ptr<const Decoder> named_decoder(const std::string& model, std::int64_t vocab = 0,
                                             std::int64_t context = 0);
// The names of all sizes; gpt2:dN has N layers.
std::vector<std::string> size_names();
// "gpt2:124M, …, pythia:12B", for --help.
std::string known_sizes();

}  // namespace warpwright
