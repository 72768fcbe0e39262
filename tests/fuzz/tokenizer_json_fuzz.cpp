// Any bytes as tokenizer.json give an Error or a tokenizer. The tokenizer returns text unchanged, except for
// what its options add, strip and rewrite. It never makes a special token of plain text, streams what it
// decodes, and is the same after saving and reading.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "text/stream_decoder.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_json.hpp"

using namespace warpwright::text;

namespace {

void require(bool fact) {
  if (!fact) std::abort();
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const TokenizerSpec& spec = tokenizer.spec();
  const bool strips = std::any_of(spec.added.begin(), spec.added.end(),
                                  [](const AddedToken& token) { return token.lstrip || token.rstrip; });
  const std::vector<TokenId> ids = tokenizer.encode(text);
  const std::string decoded = tokenizer.decode(ids);
  const bool rewrites = spec.add_prefix_space || !spec.normalizer.empty() || spec.characters;
  if (!strips && !rewrites) require(decoded == text);
  StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) streamed += stream.push(id);
  require(streamed + stream.finish() == decoded);
  for (const AddedToken& token : spec.added) {
    require(!token.special || std::find(ids.begin(), ids.end(), token.id) == ids.end());
  }
  tokenizer.decode(tokenizer.encode(text, SpecialTokens::recognize));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view document(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer tokenizer(parse_tokenizer_json(document, "fuzz"), "fuzz");
    use(tokenizer, document.substr(0, 2000));
    const TokenizerSpec& spec = tokenizer.spec();
    const TokenizerSpec again = parse_tokenizer_json(format_tokenizer_json(spec), "fuzz");
    require(again.tokens == spec.tokens && again.merges == spec.merges && again.added == spec.added);
    require(again.add_prefix_space == spec.add_prefix_space && again.use_regex == spec.use_regex &&
            again.ignore_merges == spec.ignore_merges && again.normalizer == spec.normalizer &&
            again.patterns == spec.patterns && again.characters == spec.characters &&
            again.before == spec.before && again.after == spec.after);
  } catch (const warpwright::Error&) {
  }
  return 0;
}
