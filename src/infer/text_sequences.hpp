// TextSequences: the sequences of a DecodingEngine as texts that grow, for whoever drives it step by step.
//
//   TextSequences sequences(engine, &tokenizer);
//   sequences.add(prompt_ids(tokenizer, "The sea"), {.max_tokens = 100}, {"\n"});
//   while (!engine.idle())
//     for (const TextSequences::Event& event : sequences.step()) use(event.sequence, event.text);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "infer/decoding_engine.hpp"
#include "text/tokenizer.hpp"

namespace warpwright {

// Why a sequence has ended. none: it goes on.
enum class TextEnd : std::uint8_t { none, length, stop, end_of_text, error };
std::string_view name_of(TextEnd end);  // "length", …

class TextSequences {
 public:
  using Id = DecodingEngine::Id;
  struct Event {
    Id sequence = 0;
    std::optional<std::int32_t> token{};  // drawn; nothing at the end of text and after an error
    // The text that has come since the sequence's last event. It ends within no character, unless the
    // sequence does. A stop text and what follows it do not appear, so a text that could begin one comes
    // later.
    std::string text{};
    TextEnd end = TextEnd::none;  // if it is not none, the sequence is gone
    std::optional<Error> error{};
  };

  // Without a tokenizer no event has text. Both must outlive this. The engine's sequences are added and
  // removed through this object alone.
  TextSequences(DecodingEngine& engine, const text::Tokenizer* tokenizer);
  ~TextSequences();

  // As DecodingEngine::add(). The sequence also ends at the first of the stop texts; UsageError if one is
  // empty, or if there are any without a tokenizer.
  Id add(std::span<const std::int32_t> prompt, const GenerationOptions& options,
         const std::vector<std::string>& stops = {});
  // Ends a sequence early. Does nothing if it has ended.
  void remove(Id sequence);
  // As DecodingEngine::step().
  std::vector<Event> step();

 private:
  class Text;

  Event event_of(const DecodingEngine::Drawn& drawn);

  DecodingEngine& engine_;
  const text::Tokenizer* const tokenizer_;
  std::vector<std::int32_t> empty_prompt_;
  std::map<Id, Text> texts_;
};

}  // namespace warpwright
