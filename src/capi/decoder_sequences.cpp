// Decoders in the C ABI: sequences are added, stepped and removed.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "capi/decoder.hpp"
#include "capi/texts.hpp"
#include "infer/decoder_texts.hpp"
#include "text/unicode.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

constexpr std::string_view kAdd = "warpwright_decoder_add", kRemove = "warpwright_decoder_remove",
                           kStep = "warpwright_decoder_step", kEvent = "warpwright_decoder_get_event";

GenerationOptions options_of(const warpwright_decoder_add_args& args, const warpwright_decoder& decoder) {
  GenerationOptions options{.max_tokens = args.max_tokens,
                            .sampling = {.temperature = args.temperature,
                                         .top_k = args.top_k,
                                         .top_p = args.top_p,
                                         .min_p = args.min_p,
                                         .repetition_penalty = args.repetition_penalty,
                                         .seed = args.seed}};
  if (!args.ignore_end_of_text) options.end_of_text = decoder.end_of_text;
  return options;
}

std::vector<std::int32_t> prompt_of(const warpwright_decoder_add_args& args,
                                    const warpwright_decoder& decoder) {
  if (args.text) {
    if (args.ids || args.id_count != 0) fail(kAdd, "args.text is given with ids", "give one of the two");
    const std::string_view text = texts_of(kAdd, "args.text", &args.text, &args.text_bytes, 1)[0];
    return prompt_ids(decoder.require_tokenizer(kAdd), text);
  }
  if (args.text_bytes != 0) throw_missing(kAdd, "args.text");
  if (!args.ids && args.id_count == 0) fail(kAdd, "args.text and args.ids are NULL", "give one of the two");
  if (args.id_count < 0 || args.id_count > kMostCount)
    fail(kAdd, fmt::format("args.id_count is {}", args.id_count), fmt::format("use 1 to {}", kMostCount));
  check_place(kAdd, "args.ids", args.ids);
  return {args.ids, args.ids + args.id_count};
}

std::vector<std::string> stops_of(const warpwright_decoder_add_args& args) {
  if (args.stop_count < 0 || args.stop_count > kMostCount) {
    fail(kAdd, fmt::format("args.stop_count is {}", args.stop_count), fmt::format("use 0 to {}", kMostCount));
  }
  const auto views = texts_of(kAdd, "args.stops", args.stops, args.stop_bytes, args.stop_count);
  return {views.begin(), views.end()};
}

warpwright_decoder_end number_of(TextEnd end) {
  switch (end) {
    case TextEnd::none:
      return WARPWRIGHT_NOT_ENDED;
    case TextEnd::length:
      return WARPWRIGHT_END_LENGTH;
    case TextEnd::stop:
      return WARPWRIGHT_END_STOP;
    case TextEnd::end_of_text:
      return WARPWRIGHT_END_OF_TEXT;
    case TextEnd::error:
      break;
  }
  return WARPWRIGHT_END_WITH_ERROR;
}

}  // namespace

warpwright_status warpwright_decoder_add(warpwright_decoder* handle,
                                         const warpwright_decoder_add_args* c_args, int64_t* sequence) {
  return guarded([&](warpwright_status&) {
    const DecoderInCall decoder(kAdd, handle);
    check_place(kAdd, "sequence", sequence);
    const warpwright_decoder_add_args args = known_part(kAdd, "args", c_args);
    check_reserved(kAdd, "args.reserved", args.reserved);
    const std::vector<std::string> stops = stops_of(args);
    *sequence = decoder->sequences->add(prompt_of(args, *decoder), options_of(args, *decoder), stops);
  });
}

warpwright_status warpwright_decoder_remove(warpwright_decoder* handle, int64_t sequence) {
  return guarded([&](warpwright_status&) { DecoderInCall(kRemove, handle)->sequences->remove(sequence); });
}

warpwright_status warpwright_decoder_step(warpwright_decoder* handle, int64_t* events) {
  return guarded([&](warpwright_status& meaning) {
    const DecoderInCall decoder(kStep, handle);
    check_place(kStep, "events", events);
    *events = 0;
    decoder->events.clear();
    const CurrentDevice current(decoder->context.device().device);
    meaning = WARPWRIGHT_FAILED;
    decoder->follow_owner();
    decoder->events = decoder->sequences->step();
    for (TextSequences::Event& event : decoder->events) event.text = text::repair_utf8(event.text);
    *events = static_cast<int64_t>(decoder->events.size());
  });
}

warpwright_status warpwright_decoder_get_event(const warpwright_decoder* handle, int64_t index,
                                               warpwright_decoder_event* event) {
  return guarded([&](warpwright_status&) {
    const DecoderInCall decoder(kEvent, handle);
    known_part(kEvent, "event", event);
    if (index < 0 || index >= static_cast<int64_t>(decoder->events.size())) {
      fail(kEvent, fmt::format("index is {}", index),
           fmt::format("the latest step has {} events", decoder->events.size()));
    }
    const TextSequences::Event& found = decoder->events[static_cast<std::size_t>(index)];
    const warpwright_decoder_event known = {.size = event->size,
                                            .sequence = found.sequence,
                                            .text = found.text.c_str(),
                                            .text_bytes = found.text.size(),
                                            .error = found.error ? found.error->what() : "",
                                            .token = found.token.value_or(-1),
                                            .end = number_of(found.end)};
    std::memcpy(event, &known, std::min(event->size, sizeof known));
  });
}
