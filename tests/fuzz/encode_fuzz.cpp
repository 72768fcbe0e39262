// Any bytes are a valid text. Encoding loses nothing, parts for workers give the ids of the whole, and
// decoding id by id gives the same bytes. A special token appears only if it was requested.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "text/pretokenize.hpp"
#include "text/stream_decoder.hpp"
#include "text/train.hpp"

using namespace warpwright::text;

namespace {

void require(bool fact) {
  if (!fact) std::abort();
}

Tokenizer make_tokenizer() {
  constexpr std::string_view kText =
      "It's we're they've I'm you'll he'd the then there  12 123\n\n\n\t\taaaa aaaaaaaa ---- -------- é éé "
      "日本日本 日本";
  TokenizerTraining options;
  options.vocab_size = 320;
  TokenizerSpec spec = train_tokenizer(std::span(&kText, 1), options).spec();
  for (const char* content : {"<|pad|>", "  ", "s'", "日本語"}) {
    AddedToken token;
    token.content = content;
    token.id = static_cast<TokenId>(spec.tokens.size());
    token.special = token.content == "<|pad|>";
    token.normalized = token.content == "s'";
    spec.tokens.push_back(token.content);
    spec.added.push_back(token);
  }
  return Tokenizer(std::move(spec));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<TokenId> ids = tokenizer.encode(text);
  require(tokenizer.decode(ids) == text);
  require(tokenizer.decode(tokenizer.encode(text, SpecialTokens::recognize)) == text);
  for (const AddedToken& token : tokenizer.spec().added) {
    require(!token.special || std::find(ids.begin(), ids.end(), token.id) == ids.end());
  }

  std::vector<std::size_t> ends, ends_in_parts;
  for (std::size_t end = 0; end < size;) ends.push_back(end = pretoken_end(text, end));
  for (const std::string_view part : split_for_workers(text, 5)) {
    const auto offset = static_cast<std::size_t>(part.data() - text.data());
    for (std::size_t end = 0; end < part.size();)
      ends_in_parts.push_back(offset + (end = pretoken_end(part, end)));
  }
  require(ends == ends_in_parts);

  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) streamed += decoder.push(id);
  require(streamed + decoder.finish() == text);
  return 0;
}
