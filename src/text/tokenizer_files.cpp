// Reads and writes the files of a Hugging Face tokenizer: tokenizer.json, vocab.json, merges.txt and
// tokenizer_config.json.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "text/json.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_json.hpp"

namespace warpwright::text {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestFile = std::uint64_t{64} << 20;
// The token that ends a text in the tokenizers of GPT-2, Llama 3 and Llama 2.
constexpr const char* kEndsOfText[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

// The end-of-text token named by tokenizer_config.json, if any.
std::optional<std::string> read_eos_token(const fs::path& path) {
  const json config = parse_json(read_file(path, kLargestFile), path.string(), kMaxJsonDepth);
  if (!config.is_object())
    throw Error("is not a JSON object", path.string(), "replace its content with {}, or remove the file");
  if (!config.contains("eos_token") || config["eos_token"].is_null()) return std::nullopt;
  const json& token = config["eos_token"];
  const json& content = token.is_object() && token.contains("content") ? token["content"] : token;
  if (!content.is_string()) {
    throw Error("eos_token is not a string", path.string(),
                "give the token's content, such as \"<|endoftext|>\"");
  }
  return content.get<std::string>();
}

// Also true if the file cannot be examined. Reading it then reports the reason.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || error;
}

bool is_added(const TokenizerSpec& spec, std::string_view content) {
  for (const AddedToken& token : spec.added) {
    if (token.content == content) return true;
  }
  return false;
}

// True if vocab.json and merges.txt say everything but the flags of added tokens.
bool is_gpt2_like(const TokenizerSpec& spec) {
  return spec.normalizer.empty() && spec.patterns.empty() && !spec.characters && spec.before.empty() &&
         spec.after.empty();
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
  const fs::path merges = directory / "merges.txt";
  const fs::path config = directory / "tokenizer_config.json";
  TokenizerSpec spec;
  std::string where = whole.string();
  if (is_there(whole)) {
    spec = parse_tokenizer_json(read_file(whole, kLargestFile), where);
  } else if (is_there(vocab) && is_there(merges)) {
    where = vocab.string();
    spec = parse_vocab_and_merges(read_file(vocab, kLargestFile), where, read_file(merges, kLargestFile),
                                  merges.string());
  } else {
    throw Error("holds neither tokenizer.json nor both vocab.json and merges.txt", directory.string(),
                kRemedy);
  }
  std::optional<std::string> eos;
  if (is_there(config)) eos = read_eos_token(config);
  for (const char* token : kEndsOfText) {
    if (!eos && is_added(spec, token)) eos = token;
  }
  spec.end_of_text = eos.value_or("");
  return Tokenizer(std::move(spec), where);
}

void Tokenizer::save(const fs::path& directory) const {
  create_folders(directory);
  if (is_gpt2_like(spec_)) {
    write_file_atomically(directory / "vocab.json", format_vocab(spec_));
    write_file_atomically(directory / "merges.txt", format_merges(spec_));
  }
  write_file_atomically(directory / "tokenizer_config.json", format_tokenizer_config(spec_));
  write_file_atomically(directory / "tokenizer.json", format_tokenizer_json(spec_));
}

}  // namespace warpwright::text
