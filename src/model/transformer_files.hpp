// A transformer's weights in Hugging Face folders, read and written.
//
// Padding rows of the vocabulary are 0 in memory and absent from a folder. A family's names say which
// parameters a folder keeps transposed, and which it keeps in parts: q, k and v, or gate and up, of one
// product.
#pragma once

#include <filesystem>

#include "model/transformer.hpp"

namespace warpwright {

// Fills the parameters from a folder: bit-exact if dtypes agree, else rounded to nearest even. Every tensor
// must be there in its shape; tensors that the model does not have, and a stored copy of a tied head that
// differs from the embedding, are an Error.
void load_transformer(const std::filesystem::path& folder, const TransformerDescription& d,
                      const ParameterWriter& write);

// The dtype of a folder's weights: fp32, bf16 or fp16 (that of the token embedding).
DType stored_dtype(const std::filesystem::path& folder, const TransformerDescription& d);

// Writes some or all parameters into a safetensors file of a folder. Only the names, dtypes and shapes of
// `parameters` count.
void write_transformer_weights(const std::filesystem::path& file, const TransformerDescription& d,
                               const DecoderParameters& parameters, const ParameterReader& read);

}  // namespace warpwright
