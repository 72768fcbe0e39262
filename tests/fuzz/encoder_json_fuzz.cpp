// Any bytes as an encoder's tokenizer.json give an Error or a tokenizer. Its ids and types are within its
// bounds, and its sequences within their length.
#include <cstddef>
#include <cstdint>

#include "encoder_use.hpp"
#include "text/encoder_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view document(reinterpret_cast<const char*>(data), size);
  try {
    const warpwright::text::EncoderTokenizer tokenizer(warpwright::text::parse_encoder_json(document, "fuzz"),
                                                       "fuzz");
    warpwright::use_encoder_tokenizer(tokenizer, document);
  } catch (const warpwright::Error&) {
  }
  return 0;
}
