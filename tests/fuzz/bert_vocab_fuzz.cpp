// Any bytes as vocab.txt, tokenizer_config.json and a text, separated by zero bytes, give an Error or a
// tokenizer. Its ids and types are within its bounds, and its sequences within their length.
#include <cstddef>
#include <cstdint>

#include "encoder_use.hpp"
#include "text/encoder_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const std::size_t zero = std::min(rest.find('\0'), rest.size());
    const std::string_view part = rest.substr(0, zero);
    rest.remove_prefix(std::min(zero + 1, rest.size()));
    return part;
  };
  const std::string_view vocab = next(), config = next();
  try {
    const warpwright::text::EncoderTokenizer tokenizer(
        warpwright::text::parse_bert_vocab(vocab, "vocab", config, "config"), "vocab");
    warpwright::use_encoder_tokenizer(tokenizer, rest);
    warpwright::use_encoder_tokenizer(tokenizer, vocab);
  } catch (const warpwright::Error&) {
  }
  return 0;
}
