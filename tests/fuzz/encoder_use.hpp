// Checks the properties of every tokenizer for encoders, whatever files it was made from.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "text/encoder_tokenizer.hpp"

namespace warpwright {

inline void use_encoder_tokenizer(const text::EncoderTokenizer& tokenizer, std::string_view bytes) {
  const auto require = [](bool fact) {
    if (!fact) std::abort();
  };
  const auto check = [&](const text::Encoding& encoding) {
    require(encoding.ids.size() == encoding.types.size());
    for (const text::TokenId id : encoding.ids) require(id < tokenizer.vocab_size());
    for (const std::uint32_t type : encoding.types) require(type < tokenizer.type_count());
  };
  const std::string_view first = bytes.substr(0, 1000),
                         second = bytes.substr(bytes.size() / 2).substr(0, 1000);
  text::EncodeOptions options;
  const text::Encoding whole = tokenizer.encode(first);
  check(whole);
  options.in_text = text::SpecialTokens::as_text;
  check(tokenizer.encode(second, options));
  options = {.max_length = std::max<std::size_t>(tokenizer.special_tokens(false) + 5, 1)};
  const text::Encoding cut = tokenizer.encode(first, options);
  check(cut);
  require(cut.ids.size() == std::min(whole.ids.size(), options.max_length));
  require(cut.truncated == (cut.ids.size() < whole.ids.size()));
  for (const text::Truncation truncation :
       {text::Truncation::longest_first, text::Truncation::only_first, text::Truncation::only_second}) {
    options = {.max_length = tokenizer.special_tokens(true) + 9, .truncation = truncation};
    try {
      const text::Encoding pair = tokenizer.encode(first, second, options);
      check(pair);
      require(pair.ids.size() <= options.max_length);
    } catch (const Error&) {  // the strategy cannot shorten these texts
      require(truncation != text::Truncation::longest_first);
    }
  }
}

}  // namespace warpwright
