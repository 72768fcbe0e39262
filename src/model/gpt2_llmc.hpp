// GPT-2 in llm.c's .bin files, read and written (llmc_file.hpp has the format). Padding rows of the
// vocabulary are 0 in memory and in the file.
#pragma once

#include <filesystem>

#include "model/decoder.hpp"
#include "model/gpt2_config.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

GPT2Config read_gpt2_llmc_config(const std::filesystem::path& path);

// Fills the parameters of this config: bit-exact if dtypes agree, else rounded to nearest even.
void load_gpt2_llmc(const std::filesystem::path& path, const GPT2Config& config,
                    const ParameterWriter& write);

// Writes a .bin of version 3 (fp32) or 5 (bf16), by the parameters' dtype; the parameters as the stream
// leaves them.
void write_gpt2_llmc(const std::filesystem::path& path, const GPT2Config& config,
                     const DecoderParameters& parameters, const Stream& stream);

}  // namespace warpwright
