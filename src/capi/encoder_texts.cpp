// Encoders in the C ABI: texts to vectors or logits, in the host's memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capi/encoder.hpp"
#include "capi/texts.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

constexpr std::string_view kTexts = "warpwright_encoder_texts";

// The prompt before each text. Only VECTORS may have one.
PromptChoice prompt_of(const warpwright_encoder_texts_args& args, BertSession::Result result) {
  const bool given = args.prompt || args.prompt_bytes > 0 || args.prompt_name;
  if (given && result != BertSession::Result::vectors) {
    fail(kTexts, "a prompt is given, but result is WARPWRIGHT_LOGITS", "prompts go with WARPWRIGHT_VECTORS");
  }
  if (!args.prompt && args.prompt_bytes > 0) throw_missing(kTexts, "prompt");
  constexpr std::size_t kMostBytes = 1 << 20;
  if (args.prompt_bytes > kMostBytes) {
    fail(kTexts, fmt::format("prompt has {} bytes", args.prompt_bytes),
         fmt::format("give at most {}", kMostBytes));
  }
  PromptChoice choice;
  if (args.prompt) choice.text.emplace(args.prompt, args.prompt_bytes);
  if (args.prompt_name) choice.name = args.prompt_name;
  return choice;
}

warpwright_encoder_texts_args checked(const warpwright_encoder_texts_args* c_args) {
  constexpr std::size_t kOldest = offsetof(warpwright_encoder_texts_args, prompt);
  const warpwright_encoder_texts_args args = known_part(kTexts, "args", c_args, kOldest);
  check_reserved(kTexts, "args.reserved", args.reserved);
  const BertSession::Result result = result_of(kTexts, args.result);
  if (args.count < 0 || args.count > kMostCount) {
    fail(kTexts, fmt::format("count is {}", args.count), fmt::format("use 0 to {}", kMostCount));
  }
  if (args.count > 0) check_place(kTexts, "out", args.out);
  check_alignment(kTexts, "tokens", args.tokens, alignof(std::int64_t));
  check_alignment(kTexts, "statuses", args.statuses, alignof(warpwright_status));
  if (result == BertSession::Result::hidden) {
    fail(kTexts, "result is WARPWRIGHT_HIDDEN", "use WARPWRIGHT_VECTORS or WARPWRIGHT_LOGITS");
  }
  if (args.seconds && result != BertSession::Result::logits) {
    fail(kTexts, "seconds is given, but result is WARPWRIGHT_VECTORS", "use WARPWRIGHT_LOGITS for pairs");
  }
  if (args.second_bytes && !args.seconds) throw_missing(kTexts, "seconds");
  return args;
}

// Writes the texts' results to args.out and returns a report for each text. Sets `meaning` once the arguments
// are checked. Errors before that concern the arguments.
std::vector<EncodedText> run_texts(Encoder& texts, const warpwright_encoder_texts_args& args,
                                   warpwright_status& meaning) {
  const bool vectors = args.result == WARPWRIGHT_VECTORS;
  const auto first = texts_of(kTexts, "texts", args.texts, args.text_bytes, args.count);
  const std::int64_t width = vectors ? texts.vector_size() : texts.labels();
  const std::span out(args.out, static_cast<std::size_t>(args.count * width));
  const PromptChoice prompt = prompt_of(args, result_of(kTexts, args.result));
  if (vectors) texts.prompt(prompt);
  std::vector<TextPair> pairs;
  if (args.seconds) {
    const auto second = texts_of(kTexts, "seconds", args.seconds, args.second_bytes, args.count);
    for (std::size_t i = 0; i < first.size(); ++i) pairs.push_back({first[i], second[i]});
  }
  meaning = WARPWRIGHT_FAILED;
  if (vectors) return texts.embed(first, out, prompt);
  return args.seconds ? texts.classify(pairs, out) : texts.classify(first, out);
}

void report_to(const warpwright_encoder_texts_args& args, const std::vector<EncodedText>& report) {
  for (std::size_t i = 0; i < report.size(); ++i) {
    if (args.tokens) args.tokens[i] = report[i].tokens;
    if (args.statuses) args.statuses[i] = report[i].error.empty() ? WARPWRIGHT_OK : WARPWRIGHT_FAILED;
  }
  const auto failed =
      std::find_if(report.begin(), report.end(), [](const EncodedText& t) { return !t.error.empty(); });
  if (args.statuses || failed == report.end()) return;
  fail(kTexts, fmt::format("text {} {}", failed - report.begin(), failed->error),
       "give statuses to have the others' results");
}

}  // namespace

warpwright_status warpwright_encoder_texts(warpwright_encoder* handle,
                                           const warpwright_encoder_texts_args* c_args) {
  return guarded([&](warpwright_status& meaning) {
    const EncoderInCall encoder(kTexts, handle);
    const warpwright_encoder_texts_args args = checked(c_args);
    encoder->report.clear();
    if (!encoder->texts) {
      fail(kTexts, "the encoder has no tokenizer", "use a folder that has one, or warpwright_encoder_tokens");
    }
    const CurrentDevice current(encoder->context.device().device);
    meaning = WARPWRIGHT_FAILED;
    encoder->follow_owner();
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    encoder->report = run_texts(*encoder->texts, args, meaning);
    report_to(args, encoder->report);
  });
}

const char* warpwright_encoder_text_error(const warpwright_encoder* handle, int64_t index) {
  const char* found = "";
  guarded([&](warpwright_status&) {
    const EncoderInCall encoder("warpwright_encoder_text_error", handle);
    if (index < 0 || index >= static_cast<int64_t>(encoder->report.size())) return;
    found = encoder->report[static_cast<std::size_t>(index)].error.c_str();
  });
  return found;
}
