#include "cli/train_watcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/signals.hpp"
#include "runtime/file.hpp"

namespace warpwright::cli {

TrainWatcher::TrainWatcher(double peak_flops, const TrainOptions& options)
    : peak_flops_(peak_flops), every_(std::max<std::int64_t>(1, options.schedule.steps / 50)) {
  if (path_exists(options.data / "tokenizer.json")) tokenizer_ = text::Tokenizer::load(options.data);
}

TrainObserver TrainWatcher::observer() {
  TrainObserver o;
  o.step = [this](const StepReport& r) { step(r); };
  o.validation = [this](std::int64_t step, double loss) {
    print(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", step, loss, std::exp(loss)));
  };
  o.sample = [this](std::int64_t step, const std::vector<std::int32_t>& tokens) {
    print(fmt::format("step {}: sample: {}", step, decode(tokens)));
  };
  o.checkpoint = [this](const std::filesystem::path& path) {
    print(fmt::format("checkpoint {}", path.string()));
  };
  o.notice = [this](const std::string& text) { print(text); };
  return o;
}

void TrainWatcher::step(const StepReport& r) {
  const std::string text = fmt::format(
      "step {}/{} | loss {:.4f} | norm {:.3f} | lr {:.2e} | {:.0f} ms | {:.0f} tok/s | {:.0f}% of peak | "
      "{} left",
      r.step, r.steps, r.loss, r.gradient_norm, r.learning_rate, r.seconds * 1e3, r.tokens_per_second,
      100 * r.flops_per_second / peak_flops_, human_seconds(r.seconds_left));
  if (!r.skipped.empty()) {
    ++skipped_;
    print(fmt::format("step {}: update skipped: {}", r.step, r.skipped));
  }
  line_.show(text);
  if (r.step == 1 || r.step == r.steps || (!line_.on_terminal() && r.step % every_ == 0)) print(text);
}

void TrainWatcher::print(const std::string& text) {
  line_.clear();
  const std::string line = text + "\n";
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fflush(stdout) != 0) {
    stop_request.made = true;
  }
}

std::string TrainWatcher::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (!tokenizer_) {
      text += fmt::format("{} ", token);
    } else if (static_cast<std::size_t>(token) < tokenizer_->vocab_size()) {
      text += tokenizer_->bytes_of(static_cast<text::TokenId>(token));
    }
  }
  return text;
}

}  // namespace warpwright::cli
