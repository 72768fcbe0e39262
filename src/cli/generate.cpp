// warpwright generate: continue a prompt, token by token.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/standard_streams.hpp"
#include "cli/text_input.hpp"
#include "core/error.hpp"
#include "infer/decoder_texts.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/decoding_memory.hpp"
#include "infer/text_sequences.hpp"
#include "runtime/file.hpp"
#include "text/unicode.hpp"

namespace warpwright::cli {
namespace {

constexpr std::int64_t kMostAtOnce = 65536, kMostSamples = 1000000000;
constexpr std::uint64_t kMostPromptBytes = std::uint64_t{64} << 20;

struct GenerateFlags {
  std::filesystem::path model, tokenizer;
  TextInputFlags input;
  std::string prompt, dtype = "auto";
  CLI::Option* prompt_option = nullptr;
  std::vector<std::string> stops;
  std::int64_t samples = 1;
  GenerationOptions options;
  std::int64_t batch = 64;
  bool json = false, batch_invariant = false, allow_tokenizer_change = false;
  DeviceFlags device;
};

struct Prompt {
  std::string text, where;  // where: names its source in messages
  std::int64_t line = 0;    // of --input, from 1
  nlohmann::json id{};      // the JSONL object's "id", or null
};

// True if standard input is a pipe or a file, not a terminal or /dev/null.
bool input_is_given() {
  struct stat status {};
  return ::fstat(STDIN_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

// `echo` and editors add a newline ("\n" or "\r\n") at the end.
Prompt read_prompt(const GenerateFlags& flags) {
  const bool given = flags.prompt_option->count() > 0;
  if (given ? flags.prompt != "-" : !input_is_given()) return {.text = flags.prompt, .where = "--prompt"};
  Prompt prompt{.text = "", .where = "standard input"};
  FileReader input = FileReader::standard_input();
  std::vector<char> chunk(std::size_t{1} << 16);
  while (const std::size_t got = input.read(chunk)) {
    prompt.text.append(chunk.data(), got);
    if (prompt.text.size() > kMostPromptBytes) {
      throw Error(fmt::format("is longer than {} MiB", kMostPromptBytes >> 20), prompt.where,
                  "give a shorter prompt");
    }
  }
  if (prompt.text.ends_with('\n')) {
    prompt.text.pop_back();
    if (prompt.text.ends_with('\r')) prompt.text.pop_back();
  }
  return prompt;
}

// One prompt, or those of the lines of --input.
std::vector<Prompt> read_prompts(const GenerateFlags& flags) {
  const TextInputFlags& input = flags.input;
  if (input.input.empty()) return {read_prompt(flags)};
  std::vector<Prompt> prompts;
  input.for_each_window([&](const TextWindow& window) {
    if (window.end > kMostPromptBytes) {
      throw Error(fmt::format("holds more than {} MiB of prompts", kMostPromptBytes >> 20), input.name(),
                  "divide it into several files");
    }
    for (const InputText& text : window.texts) {
      const std::string where = fmt::format("{}, line {}", input.name(), text.line);
      if (!text.error.empty()) throw Error(text.error, where, "write one JSON object per line");
      prompts.push_back({text.text, where, text.line, text.id});
    }
  });
  return prompts;
}

void print_now(std::string_view text) {
  write_output(text);
  require_whole_output();
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A sample under way.
struct Sample {
  void take(const TextSequences::Event& event) {
    if (event.token && ++tokens == 1) first_token_seconds = seconds_since(begin_);
    text += event.text;
    if (event.end != TextEnd::none) finish(event.end);
  }
  void finish(TextEnd why) {
    end = why;
    seconds = seconds_since(begin_);
  }
  bool finished() const { return end != TextEnd::none; }
  // The text that has come since the last call.
  std::string_view news() { return std::string_view(text).substr(std::exchange(told_, text.size())); }

  std::string text;
  std::int64_t tokens = 0;
  TextEnd end = TextEnd::none;
  double seconds = 0;
  double first_token_seconds = 0;  // until the first token was there; 0 without tokens

 private:
  Clock::time_point begin_ = Clock::now();
  std::size_t told_ = 0;
};

void print_json(const Prompt& prompt, std::uint64_t seed, const Sample& sample) {
  nlohmann::json out = {{"prompt", text::repair_utf8(prompt.text)},
                        {"text", text::repair_utf8(sample.text)},
                        {"tokens", sample.tokens},
                        {"seconds", sample.seconds},
                        {"first_token_seconds", sample.first_token_seconds},
                        {"tokens_per_second", static_cast<double>(sample.tokens) / sample.seconds},
                        {"seed", seed},
                        {"end", name_of(sample.end)}};
  if (prompt.line > 0) out["line"] = prompt.line;
  if (!prompt.id.is_null()) out["id"] = prompt.id;
  print_now(out.dump() + "\n");
}

std::vector<std::int32_t> ids_of(const Prompt& prompt, const text::Tokenizer& tokenizer,
                                 const Decoder& decoder) {
  std::vector<std::int32_t> ids = prompt_ids(tokenizer, prompt.text);
  if (ids.empty()) {
    throw UsageError("has no tokens, and the tokenizer has no end-of-text token to begin with", prompt.where,
                     "give a text");
  }
  if (static_cast<std::int64_t>(ids.size()) > decoder.context()) {
    throw UsageError(
        fmt::format("has {} tokens, but the model's context is {}", ids.size(), decoder.context()),
        prompt.where, "shorten it");
  }
  return ids;
}

// All samples of all prompts, in the order in which they are printed: sample i of prompt p is number
// p · samples + i.
class Samples {
 public:
  // most: samples that are generated at once
  Samples(const GenerateFlags& flags, std::int64_t most, const std::vector<Prompt>& prompts,
          const std::vector<std::vector<std::int32_t>>& ids)
      : flags_(flags),
        most_(most),
        prompts_(prompts),
        ids_(ids),
        json_(flags.json || !flags.input.input.empty()) {}

  void run(DecodingEngine& engine, const text::Tokenizer& tokenizer) {
    TextSequences sequences(engine, &tokenizer);
    const std::size_t count = ids_.size() * static_cast<std::size_t>(flags_.samples);
    while (printed_ < count) {
      while (begun_ < count && engine.running() + engine.waiting() < most_ &&
             begun_ - printed_ < kMostUnprinted) {
        begin_next(sequences);
      }
      for (const TextSequences::Event& event : sequences.step()) take(event);
      print();
    }
  }

 private:
  static constexpr std::size_t kMostUnprinted = std::size_t{1} << 18;  // they wait for those before them

  std::uint64_t seed_of(std::size_t number) const {
    return flags_.options.sampling.seed + number % static_cast<std::size_t>(flags_.samples);
  }
  std::size_t prompt_of(std::size_t number) const {
    return number / static_cast<std::size_t>(flags_.samples);
  }

  void begin_next(TextSequences& sequences) {
    Sample& sample = under_way_[begun_];
    GenerationOptions options = flags_.options;
    options.sampling.seed = seed_of(begun_);
    if (options.max_tokens == 0) {
      sample.finish(TextEnd::length);
    } else {
      numbers_[sequences.add(ids_[prompt_of(begun_)], options, flags_.stops)] = begun_;
    }
    ++begun_;
  }

  void take(const TextSequences::Event& event) {
    const std::size_t number = numbers_.at(event.sequence);
    if (event.error) {
      throw Error(event.error->problem(),
                  fmt::format("{}, seed {}", prompts_[prompt_of(number)].where, seed_of(number)),
                  event.error->remedy());
    }
    under_way_.at(number).take(event);
    if (event.end != TextEnd::none) numbers_.erase(event.sequence);
  }

  // The text of the first sample that has not ended, as it comes; the others follow in their order.
  void print() {
    for (auto first = under_way_.find(printed_); first != under_way_.end();
         first = under_way_.find(printed_)) {
      Sample& sample = first->second;
      if (!json_) print_text(sample);
      if (!sample.finished()) return;
      if (json_) print_json(prompts_[prompt_of(printed_)], seed_of(printed_), sample);
      under_way_.erase(first);
      ++printed_;
    }
  }
  void print_text(Sample& sample) {
    if (!std::exchange(titled_, true)) {
      if (flags_.samples > 1)
        print_now(fmt::format("{}--- seed {}\n", printed_ == 0 ? "" : "\n", seed_of(printed_)));
      print_now(prompts_[prompt_of(printed_)].text);
    }
    print_now(sample.news());
    if (!sample.finished()) return;
    print_now("\n");
    titled_ = false;
  }

  const GenerateFlags& flags_;
  const std::int64_t most_;
  const std::vector<Prompt>& prompts_;
  const std::vector<std::vector<std::int32_t>>& ids_;
  const bool json_;
  std::map<std::size_t, Sample> under_way_;
  std::map<TextSequences::Id, std::size_t> numbers_;
  std::size_t begun_ = 0, printed_ = 0;
  bool titled_ = false;
};

// As many sequences as there are, as the flag allows and as the memory holds.
DecodingOptions decoding_options(Context& context, const DecoderWeights& model, const GenerateFlags& flags,
                                 const std::vector<std::vector<std::int32_t>>& prompts) {
  DecodingOptions options{.batch_invariant = flags.batch_invariant};
  const auto longest = std::ranges::max_element(prompts, {}, [](const auto& ids) { return ids.size(); });
  const std::int64_t whole = model.decoder->context();
  const std::int64_t most = std::min(flags.options.max_tokens, whole);  // the sum must not overflow
  options.context = context_for(
      *model.decoder, longest == prompts.end() ? 1 : static_cast<std::int64_t>(longest->size()) + most);
  const auto samples = static_cast<std::int64_t>(prompts.size()) * flags.samples;
  options.sequences = std::max<std::int64_t>(1, std::min(flags.batch, samples));
  return with_sequences_that_fit(context, model, options);
}

// Throws UsageError, which names the flag, for a value out of range or options that exclude each other.
void check(const SamplingOptions& sampling) {
  try {
    sampling.validate();
  } catch (const UsageError& error) {
    std::string flag = "--" + error.where();
    std::ranges::replace(flag, '_', '-');
    throw UsageError(error.problem(), flag, error.remedy());
  }
}

void run(const GenerateFlags& given) {
  GenerateFlags flags = given;
  check(flags.options.sampling);
  Context context(flags.device.context_options(flags.dtype), flags.device.place());
  const DecoderWeights model = load_model(context, flags.model, flags.dtype);
  const text::Tokenizer tokenizer =
      load_tokenizer(flags.model, flags.tokenizer, *model.decoder, flags.allow_tokenizer_change);
  flags.options.end_of_text = end_of_text_tokens(flags.model, *model.decoder, &tokenizer);
  const std::vector<Prompt> prompts = read_prompts(flags);
  std::vector<std::vector<std::int32_t>> ids;  // all are checked before the first is run
  for (const Prompt& prompt : prompts) ids.push_back(ids_of(prompt, tokenizer, *model.decoder));
  const DecodingOptions decoding = decoding_options(context, model, flags, ids);
  DecodingEngine engine(context, model, decoding);
  Samples(flags, decoding.sequences, prompts, ids).run(engine, tokenizer);
}

void add_prompt_flags(CLI::App& command, GenerateFlags& f) {
  f.prompt_option =
      command.add_option("--prompt", f.prompt,
                         "Text to continue; -: standard input, without the newline at its end; default: "
                         "standard input if that is a pipe or a file, else no text. With no text, "
                         "generation starts from the end-of-text token");
  CLI::Option* input = f.input.add_to(
      command,
      "File with a prompt on each line, or JSONL if the name ends in .jsonl or .ndjson; -: standard input; "
      "default: none. Prints a line with a JSON object for each sample, in the order of the prompts. A blank "
      "line is a prompt with no text, and JSONL skips it");
  input->excludes(f.prompt_option);
  for (const char* of_input : {"--jsonl", "--field"}) command.get_option(of_input)->needs(input);
  command
      .add_option("--stop", f.stops,
                  "End before this text, which is not printed; may be given several times; default: none")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_sample_flags(CLI::App& command, GenerateFlags& f) {
  command.add_option("--max-tokens", f.options.max_tokens, "Most tokens to generate")
      ->capture_default_str()
      ->check(at_least(0));
  command
      .add_option(
          "--num-samples", f.samples,
          "Samples to generate. Sample i (from 0) has the seed --seed + i; with --batch-invariant, each "
          "can be reproduced alone")
      ->capture_default_str()
      ->check(at_least(1))
      ->check(CLI::Range(std::int64_t{1}, kMostSamples));
  command
      .add_option("--batch", f.batch,
                  "Most samples that are generated at once; fewer if the memory does not hold them")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kMostAtOnce));
  command.add_flag("--batch-invariant", f.batch_invariant,
                   "A sample does not depend on those that are generated with it; slower");
}

void add_sampling_flags(CLI::App& command, SamplingOptions& sampling) {
  command
      .add_option("--temperature", sampling.temperature,
                  "0 takes the most likely token each time, without --top-k, --top-p and --min-p")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Choose among the k most likely tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p,
                  "Choose among the most likely tokens that together reach this probability")
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "Choose among the tokens that have this share of the most likely one's probability; 0: all")
      ->capture_default_str();
  command
      .add_option(
          "--repetition-penalty", sampling.repetition_penalty,
          "Divide the positive logits of tokens that the text already has, and multiply negative ones; "
          "1: none")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "Seed of the sampling")->capture_default_str();
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  auto f = std::make_shared<GenerateFlags>();
  command->add_option("--model", f->model, "Model folder (RUN/model), or an llm.c .bin")->required();
  command->add_option("--tokenizer", f->tokenizer, "Folder of the tokenizer; default: the model's");
  add_tokenizer_change_flag(*command, f->allow_tokenizer_change);
  add_prompt_flags(*command, *f);
  add_sample_flags(*command, *f);
  add_sampling_flags(*command, f->options.sampling);
  add_dtype_flag(*command, f->dtype, {"int8", "auto"});
  command->add_flag("--json", f->json, "Print a line with a JSON object for each sample");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
