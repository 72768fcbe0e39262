// Reads and writes the files of a Hugging Face tokenizer: tokenizer.json, vocab.json, merges.txt and
// tokenizer_config.json.
#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "text/json.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_config.hpp"
#include "text/tokenizer_json.hpp"

namespace warpwright::text {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{64} << 20;
constexpr const char* kConfigRemedy =
    "correct the file, or use a folder whose tokenizer.json says everything";
// The token that ends a text in the tokenizers of GPT-2, Llama 3 and Llama 2.
constexpr const char* kEndsOfText[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

bool is_added(const TokenizerSpec& spec, std::string_view content) {
  for (const AddedToken& token : spec.added) {
    if (token.content == content) return true;
  }
  return false;
}

// Reads vocab.json, merges.txt and what only tokenizer_config.json says.
TokenizerSpec read_vocab_and_merges(const fs::path& folder, const TokenizerConfig& config) {
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (const fs::path added = folder / "added_tokens.json"; path_exists(added)) {
    throw Error("is not read", added.string(), "save the tokenizer with tokenizer.json, or remove the file");
  }
  TokenizerSpec spec = parse_vocab_and_merges(read_file(vocab, kLargestFile), vocab.string(),
                                              read_file(merges, kLargestFile), merges.string());
  config.complete(spec);
  return spec;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return path_exists(folder / "tokenizer.json") || path_exists(folder / "vocab.json");
}

Tokenizer Tokenizer::load(const fs::path& directory) {
  constexpr const char* kRemedy =
      "name the folder of a Hugging Face tokenizer, or train one with `warpwright tokenizer train`";
  if (!is_folder(directory)) throw Error("is not a folder", directory.string(), kRemedy);
  const fs::path whole = directory / "tokenizer.json";
  const fs::path vocab = directory / "vocab.json";
  const fs::path config_file = directory / "tokenizer_config.json";
  const std::string config_where = config_file.string();
  const TokenizerConfig config(path_exists(config_file) ? read_file(config_file, kLargestFile) : "",
                               config_where, kConfigRemedy);
  TokenizerSpec spec;
  std::string where = whole.string();
  if (path_exists(whole)) {
    spec = parse_tokenizer_json(read_file(whole, kLargestFile), where);
  } else if (path_exists(vocab) && path_exists(directory / "merges.txt")) {
    where = vocab.string();
    spec = read_vocab_and_merges(directory, config);
  } else {
    throw Error("holds neither tokenizer.json nor both vocab.json and merges.txt", directory.string(),
                kRemedy);
  }
  std::optional<std::string> eos = config.token("eos_token");
  if (eos && !eos->empty() && !is_added(spec, *eos)) {
    throw Error(fmt::format("eos_token is {}, which is not among the added tokens", quote(*eos)),
                config_where, "name one of them, or add it to the tokenizer's added tokens");
  }
  for (const char* token : kEndsOfText) {
    if (!eos && is_added(spec, token)) eos = token;
  }
  spec.end_of_text = eos.value_or("");
  return Tokenizer(std::move(spec), where);
}

void Tokenizer::save(const fs::path& directory) const {
  create_folders(directory);
  if (is_vocab_and_merges(spec_)) {
    write_file_atomically(directory / "vocab.json", format_vocab(spec_));
    write_file_atomically(directory / "merges.txt", format_merges(spec_));
  }
  write_file_atomically(directory / "tokenizer_config.json", format_tokenizer_config(spec_));
  write_file_atomically(directory / "tokenizer.json", format_tokenizer_json(spec_));
}

}  // namespace warpwright::text
