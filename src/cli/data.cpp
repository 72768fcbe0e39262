// warpwright data build.
#include <fmt/format.h>

#include <filesystem>

#include "cli/command.hpp"
#include "cli/skipped_files.hpp"
#include "core/error.hpp"
#include "data/build.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

void build(BuildOptions options, const fs::path& tokenizer_folder) {
  const auto tokenizer = text::Tokenizer::load(tokenizer_folder);
  if (!tokenizer.eos_id()) {
    throw Error("has no end-of-text token", tokenizer_folder.string(), "add <|endoftext|> to the tokenizer");
  }
  options.vocabulary_size = static_cast<std::int64_t>(tokenizer.vocab_size());
  options.end_of_text = static_cast<std::int32_t>(*tokenizer.eos_id());
  options.before_commit = [&](const fs::path& folder) { tokenizer.save(folder); };
  SkippedFiles skipped;
  options.skipped = [&](const fs::path& path, std::string_view kind) { skipped.add(path, kind); };
  ProgressLine line;
  const EncodeFunction encode = [&](std::string_view text, bool continues, std::vector<std::int32_t>& ids) {
    std::vector<text::TokenId> found;
    tokenizer.encode(text, found, text::SpecialTokens::as_text, continues);
    for (const text::TokenId id : found) ids.push_back(static_cast<std::int32_t>(id));
  };
  options.whole_documents = !tokenizer.cuts_at_spaces();
  const Manifest manifest = build_shards(options, encode, [&](const BuildProgress& p) {
    line.show(fmt::format("{} of {}, {} tokens", human_bytes(static_cast<double>(p.bytes_done)),
                          human_bytes(static_cast<double>(p.bytes_total)), human_count(p.tokens)));
  });
  line.clear();
  for (const Split split : {Split::train, Split::val}) {
    const SplitManifest& s = manifest.split(split);
    fmt::print("{:<6} {:>14} tokens {:>20} {:>10} {:>11}\n", name_of(split), human_count(s.tokens),
               counted(s.documents, "document"), human_bytes(static_cast<double>(s.bytes)),
               counted(std::ssize(s.shards), "shard"));
  }
  skipped.print();
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* command = app.add_subcommand("data", "Make token shards from text");
  command->require_subcommand(1);
  CLI::App* b = command->add_subcommand("build", "Encode text files, folders and JSONL into shards");
  auto options = std::make_shared<BuildOptions>();
  auto tokenizer = std::make_shared<fs::path>();
  b->add_option("--tokenizer", *tokenizer, "Folder of the tokenizer; it is copied into the data folder")
      ->required();
  b->add_option("--input", options->inputs,
                "Text files, JSONL files or folders of them; also compressed, as .gz or .zst")
      ->required();
  b->add_option("--out", options->out, "Folder for the shards and data.json")->required();
  b->add_flag("--force", options->force, "Replace the folder if it holds an earlier build and nothing else");
  b->add_option("--val-fraction", options->val_fraction,
                "Share of the documents that becomes the validation split; a single document's tail")
      ->capture_default_str();
  b->add_option("--field", options->field, "Key of the text in JSONL objects")->capture_default_str();
  b->add_flag("--binary", options->binary, "Also encode files that are not text, instead of skipping them");
  b->add_option("--shard-tokens", options->tokens_per_shard, "Tokens in a shard")->capture_default_str();
  b->add_option("--seed", options->seed, "Seed of the choice of validation documents")->capture_default_str();
  b->callback([options, tokenizer] { build(*options, *tokenizer); });
}

}  // namespace warpwright::cli
