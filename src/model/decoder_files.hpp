// Decoders in files, of any family.
#pragma once

#include <filesystem>
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

// A folder that holds what Decoder::save, copy_tokenizer and `convert` write, and nothing else. It may be
// missing.
Replaceable replaceable_model_folder(const std::filesystem::path& folder);

// A folder's chat template: chat_template.jinja, else "chat_template" of tokenizer_config.json, and of
// several there the one named default. "" without one.
std::string read_chat_template(const std::filesystem::path& folder);

// Copies the files of the tokenizer from one folder to another, those that are there. If they have no chat
// template, writes this one, unless it is "".
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::string& chat_template = "");
// Copies generation_config.json if `from` is a folder that has one.
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace warpwright
