#include "cli/encoder_progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/standard_streams.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

constexpr std::int64_t kPrintedErrors = 10;

std::string padding_of(std::int64_t tokens) {
  return tokens == 0 ? "no padding" : counted(tokens, "token") + " of padding";
}

}  // namespace

EncoderProgress::EncoderProgress(ErrorsAre errors, const TextInputFlags& input, bool leads)
    : errors_are_(errors), leads_(leads), input_(input.name()), input_bytes_(input.size()) {
  show();
}

double EncoderProgress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::int64_t EncoderProgress::tokens_per_second() const {
  return static_cast<std::int64_t>(static_cast<double>(tokens_) / std::max(seconds(), 1e-9));
}

void EncoderProgress::begin(const TextWindow& window) {
  begin_ = window.begin;
  end_ = window.end;
  share_ = 0;
  show();
}

void EncoderProgress::show(const EncodeProgress& progress) {
  tokens_ = progress.tokens;
  share_ = progress.share;
  show();
}

void EncoderProgress::end(const TextWindow& window) {
  texts_ += static_cast<std::int64_t>(window.texts.size());
  share_ = 1;
  show();
}

void EncoderProgress::show() {
  if (!leads_ || !line_.on_terminal()) return;
  std::string text = fmt::format("{}, {}, {} tokens/s", counted(texts_, "text"), counted(tokens_, "token"),
                                 human_count(tokens_per_second()));
  if (input_bytes_ > 0) {
    const double bytes = static_cast<double>(begin_) + share_ * static_cast<double>(end_ - begin_);
    const double done = std::min(bytes / static_cast<double>(input_bytes_), 1.0);
    text += fmt::format(", {:.0f}%", 100 * done);
    if (done > 0) text += fmt::format(", {} left", human_seconds(seconds() * (1 - done) / done));
  }
  line_.show(text);
}

void EncoderProgress::report(std::int64_t line, const std::string& error) {
  if (!leads_) return;
  line_.clear();
  const bool named = errors_are_ == ErrorsAre::in_the_output;
  if (++errors_ <= kPrintedErrors || !named)
    write_message(fmt::format("{}, line {}: {}\n", plain_line(input_), line, plain_line(error)));
}

std::string EncoderProgress::summary(std::int64_t wasted_tokens, bool json) const {
  const double time = seconds();
  if (!json) {
    return fmt::format("{}, {} in {:.2f} s: {} tokens/s, {}\n", counted(texts_, "text"),
                       counted(tokens_, "token"), time, human_count(tokens_per_second()),
                       padding_of(wasted_tokens));
  }
  const nlohmann::ordered_json out = {{"texts", texts_},
                                      {"errors", errors_},
                                      {"tokens", tokens_},
                                      {"seconds", time},
                                      {"tokens_per_second", tokens_per_second()},
                                      {"wasted_tokens", wasted_tokens}};
  return out.dump() + "\n";
}

void EncoderProgress::finish(std::int64_t wasted_tokens, bool json, bool on_standard_output) {
  if (!leads_) return;
  line_.clear();
  const std::string text = summary(wasted_tokens, json);
  if (json && on_standard_output) {
    write_output(text);
    require_whole_output();
  } else {
    write_message(text);
  }
  if (errors_ == 0) return;
  throw Error(fmt::format("{} of {} texts have no result", errors_, texts_), input_,
              errors_are_ == ErrorsAre::in_the_output
                  ? "the others are written; the output names each with its error"
                  : "the others are written; the lines above name the failed texts, whose rows are zeros");
}

}  // namespace warpwright::cli
