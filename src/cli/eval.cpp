// warpwright eval: loss on shards, with baselines; multiple choice in HellaSwag's form.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/lines.hpp"
#include "cli/model_flags.hpp"
#include "core/error.hpp"
#include "data/manifest.hpp"
#include "data/ngram.hpp"
#include "infer/score.hpp"

namespace warpwright::cli {
namespace {

constexpr int kMostSequences = 1 << 20;  // as in training

struct Flags {
  std::filesystem::path model, tokenizer, data, choices;
  std::string split = "val", dtype = "auto";
  std::int64_t B = 4, T = 0, max_batches = 0;
  bool baselines = false, json = false;
  DeviceFlags device;
};

nlohmann::json evaluate_shards(const Flags& f, Context& context, const GPT2Model& model) {
  const GPT2Config& config = model.config();
  const std::int64_t T = f.T > 0 ? f.T : config.context;
  if (T > config.context) {
    throw UsageError(fmt::format("{} is beyond the model's context of {}", T, config.context), "--seq",
                     "give less");
  }
  const Split split = f.split == "train" ? Split::train : Split::val;
  const TokenStream stream(f.data, split, config.vocab);
  ProgressLine line;
  const LossReport report = evaluate_loss(
      context, config, model.parameters(), stream, f.B, T, f.max_batches,
      [&](std::int64_t done, std::int64_t total) { line.show(fmt::format("batch {} of {}", done, total)); });
  line.clear();
  nlohmann::json out = {
      {"loss", report.loss}, {"perplexity", std::exp(report.loss)}, {"tokens", report.tokens}};
  if (const auto manifest = read_manifest(f.data)) {
    const SplitManifest& s = manifest->split(split);
    const double tokens_per_byte =
        static_cast<double>(s.tokens) / static_cast<double>(std::max<std::int64_t>(s.bytes, 1));
    out["bits_per_byte"] = report.loss * tokens_per_byte / std::log(2.0);
  }
  if (f.baselines) {
    const NgramLoss baseline = ngram_loss(TokenStream(f.data, Split::train, config.vocab), stream, T,
                                          report.tokens / T, config.vocab);
    out["unigram_loss"] = baseline.unigram;
    out["bigram_loss"] = baseline.bigram;
  }
  return out;
}

std::vector<std::int32_t> encode(const text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const text::TokenId id : tokenizer.encode(text)) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

// {"ctx": "…", "endings": ["…", …], "label": 0}: HellaSwag's own fields. An ending follows its text after a
// space.
Choice parse_choice(std::string_view line, const std::string& where, const text::Tokenizer& tokenizer,
                    std::int64_t context) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  const auto fail = [&](const char* what) {
    throw Error(what, where, "give {\"ctx\": TEXT, \"endings\": [TEXT, …], \"label\": INDEX}");
  };
  if (!json.is_object()) fail("is not a JSON object");
  if (!json.contains("ctx") || !json["ctx"].is_string()) fail("has no text \"ctx\"");
  if (!json.contains("endings") || !json["endings"].is_array() || json["endings"].empty())
    fail("has no \"endings\"");
  Choice choice;
  choice.text = encode(tokenizer, json["ctx"].get<std::string>());
  if (choice.text.empty()) fail("has an empty \"ctx\"");
  for (const auto& ending : json["endings"]) {
    if (!ending.is_string()) fail("has an ending that is not text");
    choice.endings.push_back(encode(tokenizer, " " + ending.get<std::string>()));
    const std::size_t length = choice.text.size() + choice.endings.back().size();
    if (static_cast<std::int64_t>(length) > context + 1) fail("is longer than the model's context");
  }
  const auto label = json.find("label");
  const bool is_text = label != json.end() && label->is_string();  // HellaSwag's test files have "0"
  if (label == json.end() || (!label->is_number_integer() && !is_text)) fail("has no \"label\"");
  choice.label = is_text ? std::atoll(label->get<std::string>().c_str()) : label->get<std::int64_t>();
  if (choice.label < 0 || choice.label >= static_cast<std::int64_t>(choice.endings.size()))
    fail("has no such label");
  return choice;
}

nlohmann::json evaluate_multiple_choice(const Flags& f, Context& context, const GPT2Model& model) {
  const text::Tokenizer tokenizer = load_tokenizer(f.model, f.tokenizer, model.config());
  std::vector<Choice> choices;
  for_each_line(f.choices, [&](std::string_view line, std::int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const std::string where = fmt::format("{}:{}", f.choices.string(), number);
    choices.push_back(parse_choice(line, where, tokenizer, model.config().context));
  });
  if (choices.empty()) throw Error("holds no question", f.choices.string(), "give one JSON object a line");
  ProgressLine line;
  const ChoiceReport report = evaluate_choices(
      context, model.config(), model.parameters(), choices,
      [&](std::int64_t done) { line.show(fmt::format("question {} of {}", done, choices.size())); });
  line.clear();
  const double n = static_cast<double>(report.questions);
  return {{"questions", report.questions},
          {"accuracy", static_cast<double>(report.right) / n},
          {"accuracy_normalized", static_cast<double>(report.right_normalized) / n}};
}

void run(const Flags& f) {
  if (f.data.empty() == f.choices.empty()) {
    throw UsageError("give one of the two", "--data, --choices", "give shards, or a JSONL of questions");
  }
  Context context(f.device.context_options(f.dtype), f.device.place());
  const GPT2Model model = load_model(f.model, f.dtype, f.device.place());
  const nlohmann::json out =
      f.data.empty() ? evaluate_multiple_choice(f, context, model) : evaluate_shards(f, context, model);
  if (f.json) {
    fmt::print("{}\n", out.dump());
    return;
  }
  for (const auto& [key, value] : out.items()) {
    fmt::print("{:<20} {}\n", key,
               value.is_number_float() ? fmt::format("{:.4f}", value.get<double>()) : value.dump());
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eval", "Loss, perplexity and bits per byte on shards; multiple choice");
  auto f = std::make_shared<Flags>();
  command->add_option("--model", f->model, "Model folder, or an llm.c .bin")->required();
  command->add_option("--data", f->data, "Folder of token shards");
  command->add_option("--split", f->split, "val or train")
      ->capture_default_str()
      ->check(CLI::IsMember({"val", "train"}));
  command->add_flag(
      "--baselines", f->baselines,
      "Also the losses of unigram and bigram (interpolated Kneser-Ney) models of the training split");
  command->add_option("--choices", f->choices, "JSONL of questions in HellaSwag's form");
  command->add_option("--tokenizer", f->tokenizer, "Folder of the tokenizer, where it is not the model's");
  command->add_option("--batch", f->B, "Sequences at once")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostSequences));
  command->add_option("--seq", f->T, "Tokens in a sequence; default: the model's context")
      ->check(at_least(1));
  command->add_option("--max-batches", f->max_batches, "Most batches; 0: the whole split")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_option("--dtype", f->dtype, "fp32, tf32 (GPU), bf16 or auto (as stored)")
      ->capture_default_str();
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
