#include "infer/decoder_texts.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "model/decoder_files.hpp"
#include "runtime/file.hpp"

namespace warpwright {

DType dtype_of_model(const std::filesystem::path& source) {
  return stored_dtype(source) == DType::bf16 ? DType::bf16 : DType::f32;
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder, const Decoder& decoder) {
  text::Tokenizer tokenizer = text::Tokenizer::load(folder);
  if (static_cast<std::int64_t>(tokenizer.vocab_size()) <= decoder.vocab()) return tokenizer;
  throw Error(fmt::format("has {} tokens, but the model has {}", tokenizer.vocab_size(), decoder.vocab()),
              folder.string(), "use the tokenizer of this model");
}

std::vector<std::int32_t> prompt_ids(const text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<text::TokenId> ids = tokenizer.spec().before;  // such as Llama's <s>
  tokenizer.encode(text, ids);
  if (ids.empty() && tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  return {ids.begin(), ids.end()};
}

std::vector<std::int32_t> end_of_text_tokens(const std::filesystem::path& source, const Decoder& decoder,
                                             const text::Tokenizer* tokenizer) {
  const BoundaryTokens tokens = is_folder(source) ? read_boundary_tokens(source) : BoundaryTokens();
  const auto check = [&](const char* name, std::int64_t id, const std::filesystem::path& file) {
    if (id >= 0 && id < decoder.vocab()) return;
    throw Error(fmt::format("\"{}\" is {}, but the vocabulary has ids below {}", name, id, decoder.vocab()),
                file.string(), "write the tokenizer's id, or null for none");
  };
  if (tokens.bos) check("bos_token_id", *tokens.bos, source / "config.json");
  for (const std::int64_t id : tokens.eos) check("eos_token_id", id, file_of_eos(source));
  std::vector<std::int32_t> ids(tokens.eos.begin(), tokens.eos.end());
  if (tokenizer && tokenizer->eos_id()) ids.push_back(static_cast<std::int32_t>(*tokenizer->eos_id()));
  return ids;
}

BoundaryTokens boundary_tokens(const std::filesystem::path& source, const Decoder& decoder,
                               const text::Tokenizer* tokenizer) {
  constexpr std::int64_t kGpt2Vocab = 50257;
  const bool has_config = is_folder(source);
  if (!has_config && !tokenizer && decoder.vocab() == kGpt2Vocab) return kGpt2Vocab - 1;
  const BoundaryTokens tokens = has_config ? read_boundary_tokens(source) : BoundaryTokens();
  return tokenizer && tokenizer->eos_id() ? tokens.with_eos(*tokenizer->eos_id()) : tokens;
}

}  // namespace warpwright
