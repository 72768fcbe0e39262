// warpwright rank: a cross-encoder's scores of a query against each line, the best first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/encoder_flags.hpp"
#include "cli/encoder_progress.hpp"
#include "cli/named.hpp"
#include "cli/on_ranks.hpp"
#include "cli/standard_streams.hpp"
#include "cli/text_input.hpp"
#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "text/unicode.hpp"

namespace warpwright::cli {
namespace {

struct RankFlags {
  EncoderFlags encoder;
  TextInputFlags input;
  std::string query, activation = "auto", truncation = "longest_first";
  std::int64_t label = -1, top = 0;
  bool json = false;
  OnRanksFlags ranks;
};

struct Scored {
  float score = 0;
  InputText text;
  EncodedText report;
};

constexpr Word<text::Truncation> kTruncations[] = {{"longest_first", text::Truncation::longest_first},
                                                   {"only_first", text::Truncation::only_first},
                                                   {"only_second", text::Truncation::only_second}};

// True if a score is 1/(1 + e^−logit). If config.json names no activation, that is so for models with a
// single label, as in sentence-transformers.
bool takes_sigmoid(const RankFlags& flags, std::int64_t labels) {
  if (flags.activation == "sigmoid") return true;
  if (flags.activation == "none") return false;
  const std::filesystem::path path = flags.encoder.model / "config.json";
  const nlohmann::json config = parse_json(read_file(path, std::uint64_t{64} << 20), path.string(), 64,
                                           "use the config.json of a cross-encoder");
  nlohmann::json name = config.value("sbert_ce_default_activation_function", nlohmann::json());
  const nlohmann::json own = config.value("sentence_transformers", nlohmann::json());
  if (own.is_object() && own.contains("activation_fn")) name = own["activation_fn"];
  if (name.is_null()) return labels == 1;
  const std::string activation = name.is_string() ? name.get<std::string>() : name.dump();
  if (activation.ends_with(".Sigmoid")) return true;
  if (activation.ends_with(".Identity")) return false;
  throw Error(fmt::format("the activation of scores {} is not known here", quote(activation)), path.string(),
              "choose one with --activation");
}

void print(const Scored& scored) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  nlohmann::ordered_json line = {{"line", scored.text.line}};
  if (!scored.text.id.is_null()) line["id"] = scored.text.id;
  if (scored.report.error.empty()) {
    line["score"] = scored.score;
    line["text"] = text::repair_utf8(scored.text.text);
    if (scored.report.truncated) line["truncated"] = true;
  } else {
    line["error"] = scored.report.error;
  }
  write_output(line.dump(-1, ' ', false, replace) + "\n");
}

// The lines so far, the best first.
class Ranking {
 public:
  explicit Ranking(std::int64_t top) : top_(static_cast<std::size_t>(top)) {}

  void add(Scored scored) { (scored.report.error.empty() ? ranked_ : failed_).push_back(std::move(scored)); }
  // Drops lines that are no longer among the best.
  void keep_best() {
    if (top_ > 0) sort();
  }
  void print() {
    sort();
    for (const Scored& scored : ranked_) cli::print(scored);
    for (const Scored& scored : failed_) cli::print(scored);
    require_whole_output();
  }

 private:
  void sort() {
    std::stable_sort(ranked_.begin(), ranked_.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    if (top_ > 0 && ranked_.size() > top_) ranked_.resize(top_);
  }

  const std::size_t top_;  // 0: all
  std::vector<Scored> ranked_, failed_;
};

// The label to score by, of those that the model has.
std::size_t label_of(const RankFlags& flags, std::int64_t labels) {
  if (labels == 0) {
    throw Error("has no classification head", flags.encoder.model.string(),
                "name the folder of a cross-encoder");
  }
  if (flags.label >= labels || (flags.label < 0 && labels > 1)) {
    throw UsageError(fmt::format("the model scores {} labels", labels), "--label",
                     fmt::format("choose one from 0 to {}", labels - 1));
  }
  return static_cast<std::size_t>(std::max<std::int64_t>(flags.label, 0));
}

// The pairs of the query with the lines that have a text.
std::vector<TextPair> pairs_of(const std::string& query, const TextWindow& window) {
  std::vector<TextPair> pairs;
  for (const InputText& text : window.texts) {
    if (text.error.empty()) pairs.push_back({query, text.text});
  }
  return pairs;
}

void rank(const RankFlags& flags, const Comm& comm) {
  Context context(flags.encoder.device.context_options(flags.encoder.dtype), flags.encoder.device.place());
  EncoderOptions options = flags.encoder.options(context.device());
  options.truncation = named(kTruncations, flags.truncation, "--truncation").value;
  require_same_work(comm, flags.ranks, context);
  require_same_input(comm, flags.input.input, "--input");
  Encoder encoder = naming_flags([&] { return Encoder(context, flags.encoder.model, options); });
  require_same_weights(comm, {flags.encoder.model});
  const auto labels = static_cast<std::size_t>(encoder.labels());
  const std::size_t label = label_of(flags, encoder.labels());
  const bool sigmoid = takes_sigmoid(flags, encoder.labels());
  encoder.share_with(share_of(comm));
  const bool leads = comm.rank() == 0;
  EncoderProgress progress(ErrorsAre::in_the_output, flags.input, leads);
  encoder.set_progress([&](const EncodeProgress& done) { progress.show(done); });
  Ranking ranking(flags.top);
  flags.input.for_each_window([&](const TextWindow& window) {
    const std::vector<TextPair> pairs = pairs_of(flags.query, window);
    std::vector<float> logits(pairs.size() * labels);
    progress.begin(window);
    const std::vector<EncodedText> reports = encoder.classify(pairs, logits);
    if (!leads) return;
    std::size_t next = 0;
    for (const InputText& text : window.texts) {
      Scored scored{0, text, text.error.empty() ? reports[next] : EncodedText{0, false, text.error}};
      if (text.error.empty()) scored.score = logits[next++ * labels + label];
      if (sigmoid) scored.score = 1 / (1 + std::exp(-scored.score));
      if (!scored.report.error.empty()) progress.report(text.line, scored.report.error);
      ranking.add(std::move(scored));
    }
    ranking.keep_best();
    progress.end(window);
  });
  ranking.print();
  progress.finish(encoder.wasted_tokens(), flags.json, false);
}

void run(RankFlags& flags, const CLI::App& command) {
  run_on_ranks(
      flags.ranks,
      [&](const Launch& launch) {
        choose_device(flags.ranks, flags.encoder.device, command, launch, Exchanged::texts);
      },
      [&](const Comm& comm) { rank(flags, comm); });
}

}  // namespace

void add_rank(CLI::App& app) {
  CLI::App* command = app.add_subcommand("rank", "Rank texts against a query with a cross-encoder");
  auto f = std::make_shared<RankFlags>();
  f->encoder.add_to(*command);
  f->input.add_to(
      *command, "One text per line, or JSONL if the name ends in .jsonl or .ndjson; default: standard input");
  command->add_option("--query", f->query, "Text to score each line against")->required();
  command->add_option("--top", f->top, "Print only this many of the best; 0: all")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_option("--label", f->label, "Label to score by, counted from 0; default: the only one")
      ->check(at_least(0));
  command
      ->add_option("--activation", f->activation,
                   "Activation of scores: sigmoid, none, or auto (as config.json says, else sigmoid for a "
                   "single label)")
      ->capture_default_str()
      ->check(one_of({"sigmoid", "none", "auto"}));
  command
      ->add_option("--truncation", f->truncation,
                   "Text to shorten in a pair that is too long: longest_first, only_first (the query) or "
                   "only_second (the text)")
      ->capture_default_str()
      ->check(one_of(names_of(kTruncations)));
  command->add_flag("--json", f->json,
                    "Print the summary on standard error as JSON, as the scores always are");
  f->ranks.add_to(*command);
  command->callback([f, command] { run(*f, *command); });
}

}  // namespace warpwright::cli
