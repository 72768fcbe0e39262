#include "infer/encode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

// sentence-transformers can lower a text before its tokenizer sees it; the tokenizer here has to do that
// itself.
void check_lowercase(const std::filesystem::path& folder, const text::EncoderTokenizer& tokenizer) {
  const std::filesystem::path path = folder / "sentence_bert_config.json";
  if (tokenizer.lowercases() || !path_exists(path)) return;
  const nlohmann::json config = parse_json(read_file(path, std::uint64_t{1} << 20), path.string(), 16,
                                           "use the file as sentence-transformers wrote it");
  if (config.is_object() && config.contains("do_lower_case") && config["do_lower_case"] == true) {
    throw Error("do_lower_case is true, and the tokenizer keeps capitals", path.string(),
                "set lowercase in tokenizer.json's normalizer, or do_lower_case to false");
  }
}

// Reads the config first: for a folder that is no encoder's, its error says more than the tokenizer's.
text::EncoderTokenizer tokenizer_of_encoder(const std::filesystem::path& folder) {
  read_bert_config(folder);
  return text::EncoderTokenizer::load(folder);
}

std::string without_place(const Error& error) {
  return fmt::format("{}; {}", error.problem(), error.remedy());
}

void append(PackedBatch& batch, const text::Encoding& encoding) {
  const std::vector<std::int32_t> ids(encoding.ids.begin(), encoding.ids.end());
  const std::vector<std::int32_t> types(encoding.types.begin(), encoding.types.end());
  batch.append(ids, types);
}

}  // namespace

Encoder::Encoder(Context& context, const std::filesystem::path& folder, const EncoderOptions& options,
                 std::shared_ptr<const BertWeights> weights)
    : context_(context),
      options_(options),
      tokenizer_(tokenizer_of_encoder(folder)),
      model_(context,
             weights ? std::move(weights)
                     : std::make_shared<const BertWeights>(context, folder, options.weights),
             options.model),
      prompts_(Prompts::read(folder)) {
  const BertConfig& config = model_.config();
  if (static_cast<std::int64_t>(tokenizer_.vocab_size()) > config.vocab) {
    throw Error(fmt::format("the tokenizer has {} tokens, but the model's embedding has {}",
                            tokenizer_.vocab_size(), config.vocab),
                folder.string(), "use the tokenizer of this model");
  }
  check_lowercase(folder, tokenizer_);
  max_length_ = options.max_length > 0 ? options.max_length : model_.max_length();
  if (max_length_ > config.max_length()) {
    throw UsageError(
        fmt::format("is {}, but the model has positions for {}", max_length_, config.max_length()),
        "max_length", "lower it");
  }
  if (const auto special = static_cast<std::int64_t>(tokenizer_.special_tokens(false));
      max_length_ < special) {
    throw UsageError(fmt::format("is {}, but a text has {} special tokens", max_length_, special),
                     "max_length", "raise it");
  }
  if (max_length_ > model_.options().max_batch_tokens) {
    const std::int64_t most = model_.options().max_batch_tokens;
    throw UsageError(fmt::format("is {}, but a text may have {} tokens", most, max_length_), "batch_tokens",
                     fmt::format("raise it, or limit texts to {} tokens", most));
  }
}

std::string_view Encoder::prompt(const PromptChoice& choice) const {
  const std::string_view text = prompts_.text_of(choice);
  if (!text.empty() && !model_.pooling().include_prompt && model_.pooling().kind != ops::Pooling::cls) {
    throw Error("the model leaves prompts out of its pooling (\"include_prompt\" is false)", "prompt",
                "this version cannot: give \"\" for no prompt, or use another model");
  }
  return text;
}

std::vector<EncodedText> Encoder::embed(std::span<const std::string_view> texts, std::span<float> vectors,
                                        const PromptChoice& choice) {
  const std::string_view before = prompt(choice);
  return encode(
      texts.size(), vector_size(), vectors,
      [&](std::size_t i, const text::EncodeOptions& options) {
        if (before.empty()) return tokenizer_.encode(texts[i], options);
        return tokenizer_.encode(std::string(before).append(texts[i]), options);
      },
      [&](const PackedBatch& batch, std::span<float> out) { model_.embed(batch, out); });
}

void Encoder::require_head() const {
  if (labels() > 0) return;
  throw Error("the model has no classification head", "classify",
              "use the folder of a cross-encoder or a classifier");
}

std::vector<EncodedText> Encoder::classify(std::span<const std::string_view> texts, std::span<float> logits) {
  require_head();
  return encode(
      texts.size(), labels(), logits,
      [&](std::size_t i, const text::EncodeOptions& options) { return tokenizer_.encode(texts[i], options); },
      [&](const PackedBatch& batch, std::span<float> out) { model_.classify(batch, out); });
}

std::vector<EncodedText> Encoder::classify(std::span<const TextPair> pairs, std::span<float> logits) {
  require_head();
  if (tokenizer_.type_count() > static_cast<std::uint64_t>(model_.config().types)) {
    throw Error(fmt::format("the tokenizer gives pairs {} token types, but the model has {}",
                            tokenizer_.type_count(), model_.config().types),
                "classify", "use the tokenizer of this model");
  }
  return encode(
      pairs.size(), labels(), logits,
      [&](std::size_t i, const text::EncodeOptions& options) {
        return tokenizer_.encode(pairs[i].first, pairs[i].second, options);
      },
      [&](const PackedBatch& batch, std::span<float> out) { model_.classify(batch, out); });
}

std::vector<EncodedText> Encoder::encode(std::size_t count, std::int64_t width, std::span<float> out,
                                         const Tokenize& tokenize, const Run& run) {
  if (out.size() != count * static_cast<std::size_t>(width)) {
    throw Error(fmt::format("has room for {} numbers", out.size()), "the encoder's output",
                fmt::format("give {} × {}", count, width));
  }
  std::fill(out.begin(), out.end(), 0.0f);
  Call call{.tokenize = tokenize, .run = run, .width = static_cast<std::size_t>(width), .out = out};
  call.encodings.resize(count);
  call.reports.resize(count);
  Members texts;  // this process's share, to learn their lengths
  for (std::size_t i = 0; i < count; ++i) {
    if (share_.has(static_cast<std::int64_t>(i))) texts.push_back(i);
  }
  tokenize_texts(texts, call);
  if (share_.ranks > 1) exchange_lengths(call);
  const std::vector<Members> batches = batches_of(call);
  call_done_ = call_tokens_ = 0;
  texts.clear();  // those of its batches that another process has tokenized
  for (std::size_t b = 0; b < batches.size(); ++b) {
    if (!share_.has(static_cast<std::int64_t>(b))) continue;
    for (const std::size_t text : batches[b]) {
      call_tokens_ += call.reports[text].tokens;
      if (!share_.has(static_cast<std::int64_t>(text))) texts.push_back(text);
    }
  }
  tokenize_texts(texts, call);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    if (share_.has(static_cast<std::int64_t>(b))) run_batch(batches[b], call);
  }
  if (share_.ranks > 1) gather_results(batches, call);
  return std::move(call.reports);
}

void Encoder::tokenize_texts(const Members& texts, Call& call) {
  const text::EncodeOptions options{.max_length = static_cast<std::size_t>(max_length_),
                                    .truncation = options_.truncation,
                                    .add_special_tokens = true,
                                    .in_text = options_.in_text};
#pragma omp parallel for schedule(dynamic, 16) num_threads(context_.threads())
  for (std::size_t t = 0; t < texts.size(); ++t) {
    text::Encoding& encoding = call.encodings[texts[t]];
    EncodedText& report = call.reports[texts[t]];
    try {
      encoding = call.tokenize(texts[t], options);
      report.tokens = static_cast<std::int64_t>(encoding.ids.size());
      report.truncated = encoding.truncated;
      if (report.truncated && options_.over_limit == OverLimit::refuse) {
        report.error = fmt::format("has more than {} tokens; shorten it, or have it truncated", max_length_);
      }
    } catch (const Error& error) {
      report.error = without_place(error);
    } catch (const std::bad_alloc&) {
      report.error = "there is no memory to tokenize it; shorten it";
    }
  }
}

// A text that has failed elsewhere fails here, too, and then has its error.
void Encoder::exchange_lengths(Call& call) {
  constexpr std::int64_t kFailed = -1;
  const auto ranks = static_cast<std::size_t>(share_.ranks), count = call.reports.size();
  std::vector<std::int64_t> mine;  // twice the tokens, plus 1 if truncated
  for (auto i = static_cast<std::size_t>(share_.rank); i < count; i += ranks) {
    const EncodedText& report = call.reports[i];
    mine.push_back(report.error.empty() ? 2 * report.tokens + (report.truncated ? 1 : 0) : kFailed);
  }
  const char* bytes = reinterpret_cast<const char*>(mine.data());
  const std::vector<std::string> all = share_.all_gather({bytes, mine.size() * sizeof(std::int64_t)});
  Members failed;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& of_process = all[i % ranks];
    const std::size_t at = i / ranks * sizeof(std::int64_t);
    if (of_process.size() != (count - i % ranks + ranks - 1) / ranks * sizeof(std::int64_t)) {
      throw Error("the processes have different texts", "input", "give all of them the same file");
    }
    if (i % ranks == static_cast<std::size_t>(share_.rank)) continue;
    std::int64_t length = 0;
    std::memcpy(&length, of_process.data() + at, sizeof length);
    if (length == kFailed) failed.push_back(i);
    call.reports[i].tokens = length / 2;
    call.reports[i].truncated = length % 2 == 1;
  }
  tokenize_texts(failed, call);
}

// The longest texts first: texts of about the same length share a batch, and the last batch is the smallest.
std::vector<Encoder::Members> Encoder::batches_of(const Call& call) const {
  Members order;
  for (std::size_t i = 0; i < call.reports.size(); ++i) {
    if (call.reports[i].error.empty()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return call.reports[a].tokens > call.reports[b].tokens;
  });
  const BertOptions& limits = model_.options();
  std::vector<Members> batches;
  std::int64_t tokens = 0;  // of the last batch
  for (const std::size_t text : order) {
    const std::int64_t more = call.reports[text].tokens;
    const bool fits = !batches.empty() && tokens + more <= limits.max_batch_tokens &&
                      static_cast<std::int64_t>(batches.back().size()) < limits.max_batch_sequences;
    if (!fits) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(text);
    tokens += more;
  }
  return batches;
}

// If the batch fails, each of its texts is tried alone, so that one bad text does not fail the others.
void Encoder::run_batch(std::span<const std::size_t> members, Call& call) {
  PackedBatch batch;
  for (const std::size_t member : members) append(batch, call.encodings[member]);
  std::vector<float> results(members.size() * call.width);
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  try {
    call.run(batch, results);
    tokens_done_ += tokens;
  } catch (const Error& error) {
    if (members.size() > 1) {
      for (std::size_t m = 0; m < members.size(); ++m) run_batch(members.subspan(m, 1), call);
      return;
    }
    call.reports[members[0]].error = without_place(error);
    std::fill(results.begin(), results.end(), 0.0f);
  }
  call_done_ += tokens;
  for (std::size_t m = 0; m < members.size(); ++m) {
    std::copy_n(results.begin() + static_cast<std::ptrdiff_t>(m * call.width), call.width,
                call.out.begin() + static_cast<std::ptrdiff_t>(members[m] * call.width));
  }
  // Texts without special tokens may all be empty.
  const double share =
      call_tokens_ > 0 ? static_cast<double>(call_done_) / static_cast<double>(call_tokens_) : 1;
  if (progress_) progress_({tokens_done_ + tokens_elsewhere_, share});
}

// Each process sends the rows of its batches, in the batches' order, and what else has come of them.
void Encoder::gather_results(const std::vector<Members>& batches, Call& call) {
  const std::size_t row = call.width * sizeof(float);
  std::vector<Members> texts(static_cast<std::size_t>(share_.ranks));  // of each process's batches
  for (std::size_t b = 0; b < batches.size(); ++b) {
    Members& of_process = texts[b % texts.size()];
    of_process.insert(of_process.end(), batches[b].begin(), batches[b].end());
  }
  std::string rows;
  nlohmann::json mine = {
      {"tokens", tokens_done_}, {"wasted", model_.wasted_tokens()}, {"errors", nlohmann::json::array()}};
  for (const std::size_t text : texts[static_cast<std::size_t>(share_.rank)]) {
    rows.append(reinterpret_cast<const char*>(call.out.data() + text * call.width), row);
    if (const std::string& error = call.reports[text].error; !error.empty()) {
      mine["errors"].push_back({text, error});
    }
  }
  const std::vector<std::string> all_rows = share_.gather(rows);
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::vector<std::string> others = share_.gather(mine.dump(-1, ' ', false, replace));
  tokens_elsewhere_ = wasted_elsewhere_ = 0;
  for (std::size_t r = 1; r < others.size(); ++r) {
    for (std::size_t t = 0; t < texts[r].size(); ++t) {
      std::memcpy(call.out.data() + texts[r][t] * call.width, all_rows[r].data() + t * row, row);
    }
    const auto other = nlohmann::json::parse(others[r]);
    for (const auto& [text, error] :
         other["errors"].get<std::vector<std::pair<std::size_t, std::string>>>()) {
      call.reports[text].error = error;
    }
    tokens_elsewhere_ += other["tokens"].get<std::int64_t>();
    wasted_elsewhere_ += other["wasted"].get<std::int64_t>();
  }
  if (progress_) progress_({tokens_done_ + tokens_elsewhere_, 1});
}

}  // namespace warpwright
