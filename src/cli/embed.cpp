// warpwright embed: texts to vectors.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iterator>
#include <memory>

#include "cli/attention_flags.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/encoder_flags.hpp"
#include "cli/encoder_progress.hpp"
#include "cli/on_ranks.hpp"
#include "cli/standard_streams.hpp"
#include "cli/text_input.hpp"
#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

struct EmbedFlags {
  EncoderFlags encoder;
  AttentionFlags attention;
  TextInputFlags input;
  fs::path out;
  std::string format = "auto", pooling = "auto";
  bool normalize = false, no_normalize = false, json = false;
  PromptChoice prompt;
  OnRanksFlags ranks;
};

constexpr ops::Pooling kPoolings[] = {ops::Pooling::mean, ops::Pooling::cls, ops::Pooling::max,
                                      ops::Pooling::mean_sqrt};

std::vector<std::string> pooling_names() {
  std::vector<std::string> names = {"auto"};
  for (const ops::Pooling pooling : kPoolings) names.emplace_back(ops::name_of(pooling));
  return names;
}

// Receives the vectors in the order of the input.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const InputText& text, const EncodedText& report, std::span<const float> vector) = 0;
  virtual void commit() = 0;
};

// Writes one JSON object per line, to standard output (flushed after each line if asked to) or to a file that
// appears once it is complete.
class JsonLines : public Sink {
 public:
  JsonLines(const fs::path& path, bool at_once) : at_once_(at_once) {
    if (!path.empty()) file_ = std::make_unique<AtomicFile>(path);
  }

  void write(const InputText& text, const EncodedText& report, std::span<const float> vector) override {
    fmt::memory_buffer line;
    const auto out = std::back_inserter(line);
    fmt::format_to(out, "{{\"line\":{}", text.line);
    if (!text.id.is_null()) fmt::format_to(out, ",\"id\":{}", text.id.dump());
    if (!report.error.empty()) {
      const auto replace = nlohmann::json::error_handler_t::replace;
      fmt::format_to(out, ",\"error\":{}}}\n", nlohmann::json(report.error).dump(-1, ' ', false, replace));
    } else {
      fmt::format_to(out, ",\"tokens\":{}{},\"embedding\":[", report.tokens,
                     report.truncated ? ",\"truncated\":true" : "");
      for (std::size_t i = 0; i < vector.size(); ++i)
        fmt::format_to(out, "{}{}", i == 0 ? "" : ",", vector[i]);
      fmt::format_to(out, "]}}\n");
    }
    put({line.data(), line.size()});
  }

  void commit() override { file_ ? file_->commit() : require_whole_output(); }

 private:
  void put(std::string_view line) {
    file_ ? file_->file().write(line) : write_output(line);
    if (at_once_) require_whole_output();
  }

  std::unique_ptr<AtomicFile> file_;
  bool at_once_;
};

// Writes NumPy's format 1.0, fp32 (texts, size). A text without a vector becomes a row of zeros.
// Source: numpy/lib/format.py.
class Npy : public Sink {
 public:
  Npy(const fs::path& path, std::int64_t size) : file_(path, AtomicFile::Order::any), size_(size) {
    file_.file().write(header());
  }

  void write(const InputText&, const EncodedText&, std::span<const float> vector) override {
    file_.file().write(std::as_bytes(vector));
    ++rows_;
  }

  void commit() override {
    const std::string text = header();
    file_.file().write_at(0, std::as_bytes(std::span(text)));
    file_.commit();
  }

 private:
  // 128 bytes whatever the number of rows.
  std::string header() const {
    std::string dictionary =
        fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows_, size_);
    dictionary.resize(117, ' ');
    return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dictionary + "\n";
  }

  AtomicFile file_;
  std::int64_t rows_ = 0, size_ = 0;
};

// The format that a file name's ending means: "npy" or "jsonl"; "" for no ending, "?" for any other.
std::string format_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".npy") return "npy";
  if (ending == ".jsonl" || ending == ".ndjson") return "jsonl";
  return ending.empty() ? "" : "?";
}

// True if vectors are written as .npy, false if as JSONL.
bool writes_npy(const EmbedFlags& flags) {
  const std::string ending = format_of(flags.out);
  if (flags.format == "auto") {
    if (ending != "?") return ending == "npy";
    throw UsageError(
        fmt::format("ends in {}, which cannot be written", quote(flags.out.extension().string())), "--out",
        "end it in .npy, .jsonl or .ndjson, or choose with --format jsonl or npy");
  }
  if ((ending == "npy" || ending == "jsonl") && ending != flags.format) {
    throw UsageError(fmt::format("is {}, and --out ends in {}", flags.format, flags.out.extension().string()),
                     "--format", "change one of them");
  }
  if (flags.format == "npy" && flags.out.empty()) {
    throw UsageError("npy needs the number of texts at its beginning", "--format", "name a file with --out");
  }
  return flags.format == "npy";
}

// Refuses to replace the texts by their vectors.
void check_out(const EmbedFlags& flags) {
  if (flags.out.empty()) return;
  std::error_code neither_is_there;
  if (fs::equivalent(flags.input.input, flags.out, neither_is_there)) {
    throw UsageError("is the file that --input names", "--out", "name another one");
  }
  if (flags.input.stream) {
    throw UsageError("answers on standard output, not to a file", "--stream", "leave out --stream or --out");
  }
}

EncoderOptions options_of(const EmbedFlags& flags, const DeviceInfo& info) {
  EncoderOptions options = flags.encoder.options(info);
  for (const ops::Pooling pooling : kPoolings) {
    if (flags.pooling == ops::name_of(pooling)) options.model.pooling = pooling;
  }
  if (flags.normalize || flags.no_normalize) options.model.normalize = flags.normalize;
  return options;
}

// The vectors of the window's texts; zeros for a text that failed. A rank without a sink computes its share.
void embed_window(Encoder& encoder, const PromptChoice& prompt, const TextWindow& window, Sink* sink,
                  EncoderProgress& progress) {
  const auto size = static_cast<std::size_t>(encoder.vector_size());
  std::vector<std::string_view> views;  // the texts of the lines that hold one
  for (const InputText& text : window.texts) {
    if (text.error.empty()) views.push_back(text.text);
  }
  std::vector<float> vectors(views.size() * size);
  progress.begin(window);
  const std::vector<EncodedText> reports = encoder.embed(views, vectors, prompt);
  if (!sink) return;
  const std::vector<float> zeros(size, 0.0f);
  std::size_t next = 0;
  for (const InputText& text : window.texts) {
    const bool is_text = text.error.empty();
    const EncodedText report = is_text ? reports[next] : EncodedText{0, false, text.error};
    const std::span<const float> vector =
        is_text ? std::span<const float>(vectors).subspan(next * size, size) : zeros;
    sink->write(text, report, vector);
    next += is_text;
    if (!report.error.empty()) progress.report(text.line, report.error);
  }
  progress.end(window);
}

std::unique_ptr<Sink> sink_of(const EmbedFlags& flags, std::int64_t size) {
  if (writes_npy(flags)) return std::make_unique<Npy>(flags.out, size);
  return std::make_unique<JsonLines>(flags.out, flags.input.stream);
}

// The model's folder, and those of the dense layers after its pooling.
std::vector<fs::path> weights_of(const fs::path& model) {
  std::vector<fs::path> folders = {model};
  for (const BertDense& dense : read_bert_pooling(model, read_bert_config(model)).dense) {
    folders.push_back(dense.folder);
  }
  return folders;
}

void embed(const EmbedFlags& flags, const Comm& comm) {
  if (flags.input.stream && comm.size() > 1) {
    throw UsageError("answers from one process", "--stream", "start one process, or leave it out");
  }
  Context context(flags.encoder.device.context_options(flags.encoder.dtype), flags.encoder.device.place());
  require_same_work(comm, flags.ranks, context);
  require_same_input(comm, flags.input.input, "--input");
  EncoderOptions options = options_of(flags, context.device());
  Buffer bias;
  options.model.attention = flags.attention.load(context, read_bert_config(flags.encoder.model),
                                                 options.weights.precision.dtype, bias);
  Encoder encoder = naming_flags([&] { return Encoder(context, flags.encoder.model, options); });
  require_same_weights(comm, weights_of(flags.encoder.model));
  flags.attention.require_length(options.model.attention, encoder.max_length());
  encoder.prompt(flags.prompt);  // refuses a missing prompt before any text is read
  encoder.share_with(share_of(comm));
  const bool leads = comm.rank() == 0;
  const std::unique_ptr<Sink> sink = leads ? sink_of(flags, encoder.vector_size()) : nullptr;
  EncoderProgress progress(writes_npy(flags) ? ErrorsAre::in_rows_of_zeros : ErrorsAre::in_the_output,
                           flags.input, leads);
  encoder.set_progress([&](const EncodeProgress& done) { progress.show(done); });
  flags.input.for_each_window(
      [&](const TextWindow& window) { embed_window(encoder, flags.prompt, window, sink.get(), progress); });
  if (sink) sink->commit();
  progress.finish(encoder.wasted_tokens(), flags.json, !flags.out.empty());
}

void run(EmbedFlags& flags, const CLI::App& command) {
  writes_npy(flags);  // refuses what cannot be written before other ranks wait for this one
  check_out(flags);
  run_on_ranks(
      flags.ranks,
      [&](const Launch& launch) {
        choose_device(flags.ranks, flags.encoder.device, command, launch, Exchanged::texts);
      },
      [&](const Comm& comm) { embed(flags, comm); });
}

}  // namespace

void add_embed(CLI::App& app) {
  CLI::App* command = app.add_subcommand("embed", "Turn texts into vectors with a BERT-family encoder");
  auto f = std::make_shared<EmbedFlags>();
  f->encoder.add_to(*command);
  f->input.add_to(
      *command, "One text per line, or JSONL if the name ends in .jsonl or .ndjson; default: standard input");
  command->add_flag(
      "--stream", f->input.stream,
      "Answer each line as soon as it arrives, for a program at the other end of a pipe. Lines that arrive "
      "together share a batch; with --batch-invariant the bits do not depend on that");
  command->add_option("--out", f->out,
                      "File for the vectors: .npy, .jsonl or .ndjson; default: JSONL on standard output");
  command
      ->add_option("--format", f->format, "Format of the vectors; auto: by the ending of --out, else jsonl")
      ->capture_default_str()
      ->check(one_of({"auto", "jsonl", "npy"}));
  command->add_flag(
      "--json", f->json,
      "Print the summary as JSON: on standard output with --out, else on standard error after the vectors");
  command
      ->add_option("--pooling", f->pooling,
                   "Pooling of token vectors into one; auto: as the model's files say")
      ->capture_default_str()
      ->check(one_of(pooling_names()));
  CLI::Option* normalize = command->add_flag("--normalize", f->normalize,
                                             "Scale vectors to length 1, whatever the model's files say");
  command->add_flag("--no-normalize", f->no_normalize, "Do not scale vectors, whatever the model's files say")
      ->excludes(normalize);
  CLI::Option* prompt = command->add_option("--prompt", f->prompt.text,
                                            "Text to put before each input; \"\": none, even if the model "
                                            "has a default prompt; default: --prompt-name");
  command
      ->add_option("--prompt-name", f->prompt.name,
                   "The model's prompt of this name (config_sentence_transformers.json); default, if "
                   "--prompt is not given: the model's default prompt")
      ->excludes(prompt);
  f->attention.add_to(*command);
  f->ranks.add_to(*command);
  command->callback([f, command] { run(*f, *command); });
}

}  // namespace warpwright::cli
