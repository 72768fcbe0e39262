// Decoders in files, of any family.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "model/decoder.hpp"
#include "runtime/file.hpp"

namespace warpwright {

// RUN/model for the folder RUN of a training run; any other path as it is.
std::filesystem::path model_folder(const std::filesystem::path& source);

// The decoder of a model's folder or llm.c file, by its config.
std::shared_ptr<const Decoder> read_decoder(const std::filesystem::path& source);

inline constexpr const char* kGenerationConfig = "generation_config.json";

// The ids in a folder's config.json. As for transformers' generate, the ids of the end of text are those of
// generation_config.json instead, if the folder has one with ids.
BoundaryTokens read_boundary_tokens(const std::filesystem::path& folder);
// The file with the ids of the end of text, for messages.
std::filesystem::path file_of_eos(const std::filesystem::path& folder);
// Decoder::stored_dtype of the decoder that is there.
DType stored_dtype(const std::filesystem::path& source);

// Compares the files of a training run's checkpoint with the checksums in its trainer.json, all but the
// optimizer's. Other sources have none. Throws Error if a file is damaged, or of another checkpoint.
void verify_model(const std::filesystem::path& source);

// The same decoder with its weights, verified, in this dtype whatever the file has.
DecoderWeights load_weights(const std::filesystem::path& source, DType dtype, Device device = {});

// A folder that holds what Decoder::save, write_tokenizer_files and `convert` write, and nothing else. It may
// be missing.
Replaceable replaceable_model_folder(const std::filesystem::path& folder);

// The files of a folder's tokenizer that are there: their contents by their names.
using TokenizerFiles = std::map<std::string, std::string>;
TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder);
// Adds the chat template of a model's folder, as chat_template.jinja, if the files have none.
void add_chat_template(TokenizerFiles& files, const std::filesystem::path& folder);
void write_tokenizer_files(const TokenizerFiles& files, const std::filesystem::path& folder);
// Copies them from one folder to another.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);
// Copies generation_config.json if `from` is a folder that has one.
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace warpwright
