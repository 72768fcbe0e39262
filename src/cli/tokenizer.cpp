// warpwright tokenizer train|encode|decode.
#include <fmt/format.h>

#include <filesystem>

#include "cli/command.hpp"
#include "cli/lines.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "data/documents.hpp"
#include "runtime/file.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  std::vector<fs::path> inputs;
  std::size_t vocab_size = 0;
  fs::path out;
  std::string field = "text";
};

// Every document of the inputs, mapped or, from JSONL, copied.
void train_tokenizer_on(const TrainFlags& flags) {
  std::vector<MappedFile> files;
  std::vector<std::string> copies;
  std::vector<std::string_view> documents;
  for (const InputFile& input : list_inputs(flags.inputs)) {
    files.emplace_back(input.path);
    const auto visit = [&](const RawDocument& document) {
      input.jsonl ? copies.push_back(jsonl_text(document, flags.field, input.path))
                  : documents.push_back(document.bytes);
    };
    for_each_document(files.back(), input.jsonl, visit);
  }
  documents.insert(documents.end(), copies.begin(), copies.end());
  ProgressLine line;
  text::TrainOptions options;
  options.vocab_size = flags.vocab_size;
  options.progress = [&](const text::TrainProgress& p) {
    const bool counting = p.phase == text::TrainProgress::Phase::counting;
    line.show(counting ? fmt::format("counting words: {:.0f}%",
                                     100.0 * static_cast<double>(p.done) /
                                         static_cast<double>(std::max<std::size_t>(p.total, 1)))
                       : fmt::format("merging: {} of {} tokens", p.done, p.total));
  };
  const text::Tokenizer tokenizer = text::train_tokenizer(documents, options);
  line.clear();
  tokenizer.save(flags.out);
  fmt::print("{} tokens, saved in {}\n", tokenizer.vocab_size(), flags.out.string());
  if (tokenizer.vocab_size() < flags.vocab_size) {
    fmt::print("fewer than the {} asked for: the text has no pair of tokens left to join\n",
               flags.vocab_size);
  }
}

struct CodeFlags {
  fs::path tokenizer, input;
  bool special = false;
};

void encode_lines(const CodeFlags& flags) {
  const auto tokenizer = text::Tokenizer::load(flags.tokenizer);
  const auto special = flags.special ? text::SpecialTokens::recognize : text::SpecialTokens::as_text;
  for_each_line(flags.input, [&](std::string_view line, std::int64_t) {
    std::string out;
    for (const text::TokenId id : tokenizer.encode(line, special))
      out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    write_output(out += '\n');
  });
}

void decode_lines(const CodeFlags& flags) {
  const auto tokenizer = text::Tokenizer::load(flags.tokenizer);
  for_each_line(flags.input, [&](std::string_view line, std::int64_t number) {
    write_output(tokenizer.decode(parse_ids(line, number, tokenizer.vocab_size())) + "\n");
  });
}

void add_code_flags(CLI::App& command, CodeFlags& flags, const char* input) {
  command
      .add_option("--tokenizer", flags.tokenizer, "Folder with tokenizer.json, or vocab.json and merges.txt")
      ->required();
  command.add_option("--input", flags.input, input);
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tokenizer", "Train a byte-level BPE tokenizer; text to ids and back");
  command->require_subcommand(1);

  CLI::App* train = command->add_subcommand("train", "Train a tokenizer on text");
  auto t = std::make_shared<TrainFlags>();
  train->add_option("--input", t->inputs, "Text files, JSONL files or folders of them")->required();
  train->add_option("--vocab-size", t->vocab_size, "Tokens, the 256 bytes and the end-of-text token included")
      ->required();
  train->add_option("--out", t->out, "Folder for tokenizer.json, vocab.json and merges.txt")->required();
  train->add_option("--field", t->field, "Key of the text in JSONL objects")->capture_default_str();
  train->callback([t] { train_tokenizer_on(*t); });

  CLI::App* encode = command->add_subcommand("encode", "Print the ids of each input line on a line");
  auto e = std::make_shared<CodeFlags>();
  add_code_flags(*encode, *e, "Text file; standard input where it is not given");
  encode->add_flag("--special", e->special, "Recognize special tokens spelled out in the text");
  encode->callback([e] { encode_lines(*e); });

  CLI::App* decode = command->add_subcommand("decode", "Print the text of each line of ids");
  auto d = std::make_shared<CodeFlags>();
  add_code_flags(*decode, *d, "File of ids; standard input where it is not given");
  decode->callback([d] { decode_lines(*d); });
}

}  // namespace warpwright::cli
