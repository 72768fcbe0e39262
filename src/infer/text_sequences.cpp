#include "infer/text_sequences.hpp"

#include <algorithm>
#include <utility>

#include "infer/decoder_texts.hpp"
#include "text/stop_texts.hpp"
#include "text/stream_decoder.hpp"

namespace warpwright {
namespace {

TextEnd end_of(DecodingEngine::End end) {
  switch (end) {
    case DecodingEngine::End::none:
      return TextEnd::none;
    case DecodingEngine::End::length:
      return TextEnd::length;
    case DecodingEngine::End::end_of_text:
      return TextEnd::end_of_text;
    case DecodingEngine::End::error:
      break;
  }
  return TextEnd::error;
}

}  // namespace

std::string_view name_of(TextEnd end) {
  constexpr std::string_view kNames[] = {"none", "length", "stop", "end_of_text", "error"};
  return kNames[static_cast<std::size_t>(end)];
}

// The text of one sequence.
class TextSequences::Text {
 public:
  Text(const text::Tokenizer* tokenizer, const std::vector<std::string>& stops, bool continues)
      : tokenizer_(tokenizer), stop_(stops) {
    if (tokenizer) decoder_.emplace(*tokenizer, continues);
  }

  std::string push(std::int32_t token) {
    // Ids beyond the tokenizer (a model may have more) have no text.
    if (!decoder_ || static_cast<std::size_t>(token) >= tokenizer_->vocab_size()) return {};
    return stop_.push(decoder_->push(static_cast<text::TokenId>(token)));
  }
  std::string finish() {
    if (!decoder_) return {};
    std::string rest = stop_.push(decoder_->finish());
    return rest + stop_.finish();
  }
  bool found_stop() const { return stop_.found(); }

 private:
  const text::Tokenizer* tokenizer_;
  std::optional<text::StreamDecoder> decoder_;
  text::StopTexts stop_;
};

TextSequences::TextSequences(DecodingEngine& engine, const text::Tokenizer* tokenizer)
    : engine_(engine), tokenizer_(tokenizer) {
  if (tokenizer) empty_prompt_ = prompt_ids(*tokenizer, "");
}

TextSequences::~TextSequences() = default;

TextSequences::Id TextSequences::add(std::span<const std::int32_t> prompt, const GenerationOptions& options,
                                     const std::vector<std::string>& stops) {
  if (!stops.empty() && !tokenizer_) {
    throw UsageError("is given, but the model has no tokenizer", "stop",
                     "use a folder with a tokenizer, or leave it out");
  }
  if (std::ranges::find(stops, "") != stops.end())
    throw UsageError("is empty", "stop", "give the text that ends a sequence");
  const bool continues = !std::ranges::equal(prompt, empty_prompt_);
  Text text(tokenizer_, stops, continues);
  const Id id = engine_.add(prompt, options);
  try {
    texts_.emplace(id, std::move(text));
  } catch (...) {  // no memory
    engine_.remove(id);
    throw;
  }
  return id;
}

void TextSequences::remove(Id sequence) {
  engine_.remove(sequence);
  texts_.erase(sequence);
}

std::vector<TextSequences::Event> TextSequences::step() {
  std::vector<Event> events;
  for (const DecodingEngine::Drawn& drawn : engine_.step()) {
    events.push_back(event_of(drawn));
    if (events.back().end != TextEnd::none) remove(drawn.sequence);
  }
  return events;
}

TextSequences::Event TextSequences::event_of(const DecodingEngine::Drawn& drawn) {
  Text& text = texts_.at(drawn.sequence);
  Event event{.sequence = drawn.sequence, .end = end_of(drawn.end), .error = drawn.error};
  if (event.end != TextEnd::end_of_text && event.end != TextEnd::error) {
    event.token = drawn.token;
    event.text = text.push(drawn.token);
  }
  if (event.end != TextEnd::none) event.text += text.finish();
  if (text.found_stop()) event.end = TextEnd::stop;
  return event;
}

}  // namespace warpwright
