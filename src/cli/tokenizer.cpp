// warpwright tokenizer train|encode|decode.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/lines.hpp"
#include "cli/skipped_files.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "data/documents.hpp"
#include "runtime/atomic_output.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostTrainingBytes = std::size_t{16} << 20, kMostPartBytes = std::size_t{1} << 20;

struct TokenizerTrainFlags {
  std::vector<fs::path> inputs;
  std::size_t vocab_size = 0;
  fs::path out;
  std::string field = "text";
  std::string pattern = "gpt2";
  bool binary = false, force = false;
};

// The patterns of a tokenizer to be trained.
void set_pattern(const std::string& name, text::TokenizerTraining& options) {
  using text::Pattern;
  if (name == "cl100k") options.patterns = {Pattern::cl100k};
  if (name == "qwen") options.patterns = {Pattern::qwen};
  if (name == "smollm") options.patterns = {Pattern::each_digit};
  options.use_regex = name == "gpt2" || name == "smollm";
}

// The files of a tokenizer's folder that may be replaced; nothing unless `force` is set.
std::optional<Replaceable> replaceable_tokenizer(bool force) {
  if (!force) return std::nullopt;
  return Replaceable{"a tokenizer", {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}};
}

// The inputs' documents, and how much of them has been read.
class TrainingText {
 public:
  explicit TrainingText(const TokenizerTrainFlags& flags)
      : flags_(flags), inputs_(list_inputs(flags.inputs)) {
    for (const InputFile& input : inputs_) total_ += file_bytes(input);
  }

  void read(const std::function<void(std::string_view)>& add) {
    for (const InputFile& input : inputs_) {
      if (const auto kind = reason_to_skip(input, flags_.binary)) {
        skipped_.add(input.path, *kind);
      } else {
        read_file(input, add);
      }
      done_ += file_bytes(input);
    }
  }
  double share() const {
    const double done = static_cast<double>(done_ + (current_ ? current_->consumed() : 0));
    return done / static_cast<double>(std::max<std::uint64_t>(total_, 1));
  }
  const SkippedFiles& skipped() const { return skipped_; }

 private:
  // A missing input is reported later.
  static std::uint64_t file_bytes(const InputFile& input) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(input.path, error);
    return error ? 0 : bytes;
  }

  void read_file(const InputFile& input, const std::function<void(std::string_view)>& add) {
    TextStream stream(input.path);
    current_ = &stream;
    if (input.jsonl) {
      for_each_jsonl_line(reader_of(stream), input.path,
                          [&](const RawDocument& line) { add(jsonl_text(line, flags_.field, input.path)); });
    } else {
      for_each_part(reader_of(stream), kMostTrainingBytes, [&](std::string_view part, bool) { add(part); });
    }
    current_ = nullptr;
  }

  const TokenizerTrainFlags& flags_;
  std::vector<InputFile> inputs_;
  SkippedFiles skipped_;
  const TextStream* current_ = nullptr;
  std::uint64_t done_ = 0, total_ = 0;
};

void train_tokenizer_on(const TokenizerTrainFlags& flags) {
  require_replaceable(flags.out, replaceable_tokenizer(flags.force));
  TrainingText training_text(flags);
  ProgressLine line;
  text::TokenizerTraining options;
  options.vocab_size = flags.vocab_size;
  set_pattern(flags.pattern, options);
  options.progress = [&](const text::TrainProgress& p) {
    const bool counting = p.phase == text::TrainProgress::Phase::counting;
    line.show(counting ? fmt::format("counting words: {:.0f}%", 100 * training_text.share())
                       : fmt::format("merging: {} of {} tokens", p.done, p.total));
  };
  const text::Tokenizer tokenizer =
      text::train_tokenizer([&](const auto& add) { training_text.read(add); }, options);
  line.clear();
  AtomicFolder folder(flags.out, replaceable_tokenizer(flags.force));
  tokenizer.save(folder.folder());
  folder.commit();
  fmt::print("{} tokens, saved in {}\n", tokenizer.vocab_size(), flags.out.string());
  if (tokenizer.vocab_size() < flags.vocab_size) {
    fmt::print("fewer than the {} asked for: the text has no pair of tokens left to join\n",
               flags.vocab_size);
  }
  training_text.skipped().print();
}

struct CodeFlags {
  fs::path tokenizer, input;
  bool special = false, with_template = false;
};

void encode_lines(const CodeFlags& flags) {
  const auto tokenizer = text::Tokenizer::load(flags.tokenizer);
  const auto special = flags.special ? text::SpecialTokens::recognize : text::SpecialTokens::as_text;
  for_each_line(flags.input, [&](std::string_view line, std::int64_t number) {
    std::string out;
    const auto print = [&](std::span<const text::TokenId> ids) {
      for (const text::TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    };
    bool continues = false;
    std::vector<text::TokenId> ids;
    const auto take = [&](std::string_view part, bool) {
      ids.clear();
      try {
        tokenizer.encode(part, ids, special, std::exchange(continues, true));
      } catch (const Error& error) {
        throw Error(fmt::format("cannot be encoded: {}: {}", error.where(), error.problem()),
                    fmt::format("line {}", number), error.remedy());
      }
      print(ids);
    };
    if (flags.with_template) print(tokenizer.spec().before);
    // Encodes a long line in parts, which saves memory, unless a cut could change ids.
    const bool in_parts = !flags.special && tokenizer.cuts_at_spaces();
    in_parts ? for_each_part(line, kMostPartBytes, take) : take(line, true);
    if (flags.with_template) print(tokenizer.spec().after);
    write_output(out += '\n');
  });
}

void decode_lines(const CodeFlags& flags) {
  const auto tokenizer = text::Tokenizer::load(flags.tokenizer);
  for_each_line(flags.input, [&](std::string_view line, std::int64_t number) {
    const auto ids = parse_ids(line, number, tokenizer.vocab_size());
    for (const text::TokenId id : ids) {
      if (!tokenizer.bytes_of(id).empty()) continue;
      throw Error(fmt::format("the vocabulary has no token {}", id), fmt::format("line {}", number),
                  "decode with the tokenizer that made these ids");
    }
    write_output(tokenizer.decode(ids) + "\n");
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
  auto t = std::make_shared<TokenizerTrainFlags>();
  train
      ->add_option("--input", t->inputs,
                   "Text files, JSONL files or folders of them; also compressed, as .gz or .zst")
      ->required();
  train
      ->add_option("--vocab-size", t->vocab_size,
                   "Number of tokens, including the 256 bytes and the end-of-text token")
      ->required();
  train
      ->add_option("--pattern", t->pattern,
                   "Cut text into pieces as GPT-2's tokenizer does, Llama 3's (cl100k), Qwen's or SmolLM's")
      ->check(one_of({"gpt2", "cl100k", "qwen", "smollm"}))
      ->capture_default_str();
  train->add_option("--out", t->out, "Folder for the tokenizer's files")->required();
  train->add_flag("--force", t->force, "Replace the folder if it holds a tokenizer and nothing else");
  train->add_option("--field", t->field, "Key of the text in JSONL objects")->capture_default_str();
  train->add_flag("--binary", t->binary, "Also train on files that are not text, instead of skipping them");
  train->callback([t] { train_tokenizer_on(*t); });

  CLI::App* encode = command->add_subcommand(
      "encode", "Print the ids of each input line, without its \"\\n\" or \"\\r\\n\", on a line");
  auto e = std::make_shared<CodeFlags>();
  add_code_flags(*encode, *e, "Text file; default: standard input");
  encode->add_flag("--special", e->special, "Recognize special tokens spelled out in the text");
  encode->add_flag("--template", e->with_template,
                   "Also print what tokenizer.json's post_processor puts around a text, such as Llama's <s>");
  encode->callback([e] { encode_lines(*e); });

  CLI::App* decode = command->add_subcommand("decode", "Print the text of each line of ids");
  auto d = std::make_shared<CodeFlags>();
  add_code_flags(*decode, *d, "File of ids; default: standard input");
  decode->callback([d] { decode_lines(*d); });
}

}  // namespace warpwright::cli
