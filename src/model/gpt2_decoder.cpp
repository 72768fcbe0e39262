#include "model/gpt2_decoder.hpp"

#include "model/gpt2_llmc.hpp"
#include "model/llmc_file.hpp"
#include "runtime/file.hpp"

namespace warpwright {

DType GPT2Decoder::stored_dtype(const std::filesystem::path& source) const {
  return is_folder(source) ? TransformerDecoder::stored_dtype(source) : LlmcFile(source).config().dtype;
}

void GPT2Decoder::load(const std::filesystem::path& source, const ParameterWriter& write) const {
  is_folder(source) ? TransformerDecoder::load(source, write) : load_gpt2_llmc(source, config_, write);
}

}  // namespace warpwright
