// warpwright eval: loss on shards, with baselines; multiple choice in HellaSwag's form.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/lines.hpp"
#include "cli/model_flags.hpp"
#include "cli/named.hpp"
#include "cli/on_ranks.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "data/manifest.hpp"
#include "data/ngram.hpp"
#include "infer/origin.hpp"
#include "infer/score.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

constexpr int kMostSequences = 1 << 20;  // as in training
constexpr int kLineDepth = 16;
constexpr Split kSplits[] = {Split::val, Split::train};

struct EvalFlags {
  std::filesystem::path model, tokenizer, data, choices;
  std::string split = "val", dtype = "auto";
  std::int64_t B = 4, T = 0, max_batches = 0;
  bool baselines = false, json = false;
  bool allow_data_change = false, allow_tokenizer_change = false;
  DeviceFlags device;
  OnRanksFlags ranks;
};

void compare_with_data(const EvalFlags& f, const Decoder& decoder) {
  std::vector<std::string> changed;
  fingerprint_of_data(f.data, f.allow_data_change ? &changed : nullptr);
  for (const std::string& line : changed) notify(line);
  const bool allow = f.allow_tokenizer_change;
  if (!f.tokenizer.empty()) load_tokenizer(f.model, f.tokenizer, decoder, allow);
  const std::filesystem::path& tokenizer = f.tokenizer.empty() ? f.model : f.tokenizer;
  notify(compare_tokenizers(tokenizer, decoder.vocab(), f.data, allow));
}

// As given, or as in training, so that the loss equals that of the run's validation.
std::int64_t sequence_of(const EvalFlags& f, const Decoder& decoder) {
  if (f.T > 0) return f.T;
  const auto origin = read_origin(f.model);
  const bool fits = origin && origin->sequence >= 1 && origin->sequence <= decoder.context();
  return fits ? origin->sequence : default_sequence(decoder);
}

// Rank 0 gets the results of all, and the others nothing.
nlohmann::json evaluate_shards(const EvalFlags& f, Context& context, const DecoderWeights& model,
                               const Comm& comm) {
  const Decoder& decoder = *model.decoder;
  const std::int64_t T = sequence_of(f, decoder);
  if (T > decoder.context()) {
    throw UsageError(fmt::format("{} is beyond the model's context of {}", T, decoder.context()), "--seq",
                     "give less");
  }
  const Split split = named(kSplits, f.split, "--split");
  const TokenStream stream(f.data, split, decoder.vocab());
  compare_with_data(f, decoder);
  std::optional<TokenStream> train;
  const bool leads = comm.rank() == 0;
  if (f.baselines && leads) {
    train.emplace(f.data, Split::train, decoder.vocab());
    train->check(train->tokens());
  }
  ProgressLine line;
  const LossReport report = evaluate_loss(
      context, model, stream, f.B, T, f.max_batches,
      [&](std::int64_t done, std::int64_t total) {
        if (leads) line.show(fmt::format("batch {} of {}", done, total));
      },
      share_of(comm));
  line.clear();
  if (!leads) return {};
  nlohmann::json out = {
      {"loss", report.loss}, {"perplexity", std::exp(report.loss)}, {"tokens", report.tokens}};
  if (const auto manifest = read_manifest(f.data)) {
    const SplitManifest& s = manifest->split(split);
    const double tokens_per_byte =
        static_cast<double>(s.tokens) / static_cast<double>(std::max<std::int64_t>(s.bytes, 1));
    out["bits_per_byte"] = report.loss * tokens_per_byte / std::log(2.0);
  }
  if (train) {
    const NgramLoss baseline = ngram_loss(*train, stream, T, report.tokens / T, decoder.vocab());
    out["unigram_loss"] = baseline.unigram;
    out["bigram_loss"] = baseline.bigram;
  }
  return out;
}

// The ids of a question with what the tokenizer puts before a text, or those of an ending that continues one.
std::vector<std::int32_t> encode(const text::Tokenizer& tokenizer, std::string_view text, bool continues) {
  std::vector<text::TokenId> ids;
  if (!continues) ids = tokenizer.spec().before;
  tokenizer.encode(text, ids, text::SpecialTokens::as_text, continues);
  return {ids.begin(), ids.end()};
}

// Reads a whole number, or its digits as text: HellaSwag's files contain both.
std::int64_t label_of(const nlohmann::json& question, const std::string& where) {
  constexpr const char* kRemedy = "give the index of the right ending";
  const auto label = question.find("label");
  if (label == question.end()) throw Error("has no \"label\"", where, kRemedy);
  const std::string text = label->is_string() ? label->get<std::string>() : label->dump();
  const char* end = text.data() + text.size();
  std::int64_t number = 0;
  if (std::from_chars(text.data(), end, number) != std::from_chars_result{end, std::errc()}) {
    throw Error("\"label\" is " + quote(text) + ", not a whole number", where, kRemedy);
  }
  return number;
}

// Reads {"ctx": "…", "endings": ["…", …], "label": 0}, HellaSwag's fields. A space separates text and ending.
Choice parse_choice(std::string_view line, const std::string& where, const text::Tokenizer& tokenizer,
                    std::int64_t context) {
  const std::string remedy = "give {\"ctx\": TEXT, \"endings\": [TEXT, …], \"label\": INDEX}";
  const nlohmann::json json =
      parse_json_members(line, {"ctx", "endings", "label"}, where, kLineDepth, remedy);
  const auto fail = [&](const char* what) { throw Error(what, where, remedy); };
  if (!json.contains("ctx") || !json["ctx"].is_string()) fail("has no text \"ctx\"");
  if (!json.contains("endings") || !json["endings"].is_array() || json["endings"].empty())
    fail("has no \"endings\"");
  Choice choice;
  choice.text = encode(tokenizer, json["ctx"].get<std::string>(), false);
  if (choice.text.empty()) fail("has an empty \"ctx\"");
  for (const auto& ending : json["endings"]) {
    if (!ending.is_string()) fail("has an ending that is not text");
    choice.endings.push_back(encode(tokenizer, " " + ending.get<std::string>(), true));
    const std::size_t length = choice.text.size() + choice.endings.back().size();
    if (static_cast<std::int64_t>(length) > context + 1) fail("is longer than the model's context");
  }
  choice.label = label_of(json, where);
  const auto endings = static_cast<std::int64_t>(choice.endings.size());
  if (choice.label < 0 || choice.label >= endings) {
    throw Error(fmt::format("\"label\" is {}, but there are {} endings", choice.label, endings), where,
                fmt::format("give 0 to {}", endings - 1));
  }
  return choice;
}

nlohmann::json evaluate_multiple_choice(const EvalFlags& f, Context& context, const DecoderWeights& model,
                                        const Comm& comm) {
  require_same_input(comm, f.choices, "--choices");
  const bool allow = f.allow_tokenizer_change;
  const text::Tokenizer tokenizer = load_tokenizer(f.model, f.tokenizer, *model.decoder, allow);
  if (f.tokenizer.empty()) notify(compare_tokenizers(f.model, model.decoder->vocab(), f.model, allow));
  std::vector<Choice> choices;
  for_each_line(f.choices, [&](std::string_view line, std::int64_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    const std::string where = fmt::format("{}:{}", f.choices.string(), number);
    choices.push_back(parse_choice(line, where, tokenizer, model.decoder->context()));
  });
  if (choices.empty()) throw Error("holds no question", f.choices.string(), "give one JSON object a line");
  ProgressLine line;
  const auto show = [&](std::int64_t done) {
    if (comm.rank() == 0) line.show(fmt::format("question {} of {}", done, choices.size()));
  };
  const ChoiceReport report = evaluate_choices(context, model, choices, show, share_of(comm));
  line.clear();
  const double n = static_cast<double>(report.questions);
  return {{"questions", report.questions},
          {"accuracy", static_cast<double>(report.right) / n},
          {"accuracy_normalized", static_cast<double>(report.right_normalized) / n}};
}

// The fingerprint of the data; "" without data.
std::string contents_of_data(const EvalFlags& f) {
  std::vector<std::string> changed;
  return f.data.empty() ? "" : to_json(fingerprint_of_data(f.data, &changed)).dump();
}

void evaluate(const EvalFlags& f, const Comm& comm) {
  Context context(f.device.context_options(f.dtype), f.device.place());
  require_same_work(comm, f.ranks, context, comm.size() > 1 ? contents_of_data(f) : "");
  const DecoderWeights model = load_model(context, f.model, f.dtype);
  require_same_weights(comm, {f.model});
  const nlohmann::json out = f.data.empty() ? evaluate_multiple_choice(f, context, model, comm)
                                            : evaluate_shards(f, context, model, comm);
  if (comm.rank() != 0) return;
  if (f.json) {
    fmt::print("{}\n", out.dump());
    return;
  }
  for (const auto& [key, value] : out.items()) {
    fmt::print("{:<20} {}\n", key,
               value.is_number_float() ? fmt::format("{:.4f}", value.get<double>()) : value.dump());
  }
}

void run(EvalFlags& f, const CLI::App& command) {
  if (f.data.empty() == f.choices.empty()) {
    throw UsageError("give one of the two", "--data, --choices", "give shards, or a JSONL of questions");
  }
  run_on_ranks(
      f.ranks,
      [&](const Launch& launch) { choose_device(f.ranks, f.device, command, launch, Exchanged::texts); },
      [&](const Comm& comm) { evaluate(f, comm); });
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eval", "Loss, perplexity and bits per byte on shards; multiple choice");
  auto f = std::make_shared<EvalFlags>();
  command->add_option("--model", f->model, "Model folder, or an llm.c .bin")->required();
  command->add_option("--data", f->data, "Folder of token shards; default: none, with --choices");
  command->add_option("--split", f->split, "val or train")
      ->capture_default_str()
      ->check(one_of(names_of(kSplits)));
  command->add_flag(
      "--baselines", f->baselines,
      "Also the losses of unigram and bigram (interpolated Kneser-Ney) models of the training split");
  command->add_option("--choices", f->choices,
                      "JSONL of questions in HellaSwag's form; default: none, with --data");
  command->add_option("--tokenizer", f->tokenizer, "Folder of the tokenizer; default: the model's");
  command->add_option("--batch", f->B, "Sequences in a batch")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostSequences));
  command
      ->add_option("--seq", f->T,
                   "Tokens in a sequence; default: as in training, or the model's context, at most 2048")
      ->check(at_least(1));
  command
      ->add_option("--max-batches", f->max_batches, "Evaluate at most this many batches; 0: the whole split")
      ->capture_default_str()
      ->check(at_least(0));
  add_dtype_flag(*command, f->dtype, {"int8", "auto"});
  command->add_flag("--json", f->json, "Print JSON");
  add_data_change_flag(*command, f->allow_data_change);
  add_tokenizer_change_flag(*command, f->allow_tokenizer_change);
  f->device.add_to(*command);
  f->ranks.add_to(*command);
  command->callback([f, command] { run(*f, *command); });
}

}  // namespace warpwright::cli
