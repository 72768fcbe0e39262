#include "infer/encode.hpp"

#include <fmt/format.h>

#include <algorithm>
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
    throw Error(fmt::format("the tokenizer has {} tokens, the model's embedding {}", tokenizer_.vocab_size(),
                            config.vocab),
                folder.string(), "use the tokenizer of this model");
  }
  check_lowercase(folder, tokenizer_);
  max_length_ = options.max_length > 0 ? options.max_length : model_.max_length();
  if (max_length_ > config.max_length()) {
    throw UsageError(fmt::format("is {}, the model has positions for {}", max_length_, config.max_length()),
                     "max_length", "lower it");
  }
  if (const auto special = static_cast<std::int64_t>(tokenizer_.special_tokens(false));
      max_length_ < special) {
    throw UsageError(fmt::format("is {}, a text has {} special tokens", max_length_, special), "max_length",
                     "raise it");
  }
  if (max_length_ > model_.options().max_batch_tokens) {
    const std::int64_t most = model_.options().max_batch_tokens;
    throw UsageError(fmt::format("is {}, a text may have {} tokens", most, max_length_), "batch_tokens",
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
    throw Error(fmt::format("the tokenizer gives pairs {} token types, the model has {}",
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
  std::vector<text::Encoding> encodings(count);
  std::vector<EncodedText> report(count);
  const text::EncodeOptions options{.max_length = static_cast<std::size_t>(max_length_),
                                    .truncation = options_.truncation,
                                    .add_special_tokens = true,
                                    .in_text = options_.in_text};
#pragma omp parallel for schedule(dynamic, 16) num_threads(context_.threads())
  for (std::size_t i = 0; i < count; ++i) {
    try {
      encodings[i] = tokenize(i, options);
      report[i].tokens = static_cast<std::int64_t>(encodings[i].ids.size());
      report[i].truncated = encodings[i].truncated;
      if (report[i].truncated && options_.over_limit == OverLimit::refuse) {
        report[i].error =
            fmt::format("has more than {} tokens; shorten it, or have it truncated", max_length_);
      }
    } catch (const Error& error) {
      report[i].error = without_place(error);
    } catch (const std::bad_alloc&) {
      report[i].error = "there is no memory to tokenize it; shorten it";
    }
  }
  std::vector<std::size_t> order;
  call_done_ = call_tokens_ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!report[i].error.empty()) continue;
    order.push_back(i);
    call_tokens_ += report[i].tokens;
  }
  // The longest first: texts of about the same length share a batch, and the last batch is the smallest.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return report[a].tokens > report[b].tokens; });
  const BertOptions& limits = model_.options();
  for (std::size_t begin = 0, end; begin < order.size(); begin = end) {
    std::int64_t tokens = 0;
    for (end = begin; end < order.size(); ++end) {
      tokens += report[order[end]].tokens;
      const bool fits = tokens <= limits.max_batch_tokens &&
                        static_cast<std::int64_t>(end - begin) < limits.max_batch_sequences;
      if (!fits) break;
    }
    run_batch(std::span(order).subspan(begin, end - begin), encodings, width, out, report, run);
  }
  return report;
}

// If the batch fails, each of its texts is tried alone, so that one bad text does not fail the others.
void Encoder::run_batch(std::span<const std::size_t> members, const std::vector<text::Encoding>& encodings,
                        std::int64_t width, std::span<float> out, std::vector<EncodedText>& report,
                        const Run& run) {
  const auto columns = static_cast<std::size_t>(width);
  PackedBatch batch;
  for (const std::size_t member : members) append(batch, encodings[member]);
  std::vector<float> results(members.size() * columns);
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  try {
    run(batch, results);
    tokens_done_ += tokens;
  } catch (const Error& error) {
    if (members.size() > 1) {
      for (std::size_t m = 0; m < members.size(); ++m) {
        run_batch(members.subspan(m, 1), encodings, width, out, report, run);
      }
      return;
    }
    report[members[0]].error = without_place(error);
    std::fill(results.begin(), results.end(), 0.0f);
  }
  call_done_ += tokens;
  for (std::size_t m = 0; m < members.size(); ++m) {
    std::copy_n(results.begin() + static_cast<std::ptrdiff_t>(m * columns), columns,
                out.begin() + static_cast<std::ptrdiff_t>(members[m] * columns));
  }
  // Texts without special tokens may all be empty.
  const double share =
      call_tokens_ > 0 ? static_cast<double>(call_done_) / static_cast<double>(call_tokens_) : 1;
  if (progress_) progress_({tokens_done_, share});
}

}  // namespace warpwright
