// Any bytes as vocab.json and merges.txt, separated by a zero byte, give an Error or a tokenizer. The
// tokenizer returns text unchanged and is the same after writing and reading.
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_json.hpp"

using namespace warpwright::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  const std::string_view vocab = bytes.substr(0, zero);
  const std::string_view merges = bytes.substr(std::min(zero + 1, bytes.size()));
  try {
    const Tokenizer tokenizer(parse_vocab_and_merges(vocab, "vocab", merges, "merges"), "fuzz");
    const std::string_view text = bytes.substr(0, 2000);
    if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
    const TokenizerSpec& spec = tokenizer.spec();
    const TokenizerSpec again =
        parse_vocab_and_merges(format_vocab(spec), "vocab", format_merges(spec), "merges");
    if (again.tokens != spec.tokens || again.merges != spec.merges || again.added != spec.added) std::abort();
  } catch (const warpwright::Error&) {
  }
  return 0;
}
