// GPT-2 in files: Hugging Face folders (config.json, model.safetensors) and llm.c's .bin, read and written.
//
// Hugging Face keeps the weights of a block's linear layers as (in, out), this project and llm.c as (out,
// in): they are transposed on the way. Padding rows of the vocabulary are 0 in memory and in .bin, and absent
// from a folder.
#pragma once

#include <filesystem>

#include "model/gpt2.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

// The model's sizes, from a folder or a .bin.
GPT2Config read_gpt2_config(const std::filesystem::path& source);
// The ids in a folder's config.json.
BoundaryTokens read_boundary_tokens(const std::filesystem::path& folder);
// The dtype of its weights: fp32, bf16 or fp16 (that of wte).
DType stored_dtype(const std::filesystem::path& source);

// Fills the parameters of this config: bit-exact if dtypes agree, else rounded to nearest even. Every tensor
// must be there in its shape; tensors that no GPT-2 has are an Error.
void load_gpt2(const std::filesystem::path& source, const GPT2Config& config, const ParameterWriter& write);

// Writes some or all parameters into a safetensors file of a folder. Only the names, dtypes and shapes of
// `parameters` count.
void write_gpt2_weights(const std::filesystem::path& file, const GPT2Config& config,
                        const DecoderParameters& parameters, const ParameterReader& read);
// Writes a .bin of version 3 (fp32) or 5 (bf16), by the parameters' dtype; the parameters as the stream
// leaves them.
void write_gpt2_llmc(const std::filesystem::path& file, const GPT2Config& config,
                     const DecoderParameters& parameters, const Stream& stream);

}  // namespace warpwright
