#include "infer/decoding_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/human_bytes.hpp"
#include "runtime/device.hpp"
#include "runtime/out_of_memory.hpp"

namespace warpwright {
namespace {

std::int64_t context_of(const DecoderWeights& model, const DecodingOptions& options) {
  return options.context > 0 ? options.context : model.decoder->context();
}

// Engines of one model on one device, and the memory for them.
class Room {
 public:
  Room(Context& context, const DecoderWeights& model)
      : context_(context), model_(model), available_(available_memory(context.device().device)) {}

  bool holds(const DecodingOptions& options) const { return bytes(options) <= available_; }

  // The largest value of an option, at most `most`, with which the engine fits. 0: none.
  std::int64_t largest(DecodingOptions options, std::int64_t DecodingOptions::*option, std::int64_t least,
                       std::int64_t most) const {
    const auto fits = [&](std::int64_t value) {
      options.*option = value;
      return holds(options);
    };
    if (fits(most)) return most;
    if (most <= least || !fits(least)) return 0;
    while (most - least > 1) {
      const std::int64_t middle = least + (most - least) / 2;
      (fits(middle) ? least : most) = middle;
    }
    return least;
  }

  [[noreturn]] void fail(const DecodingOptions& options, const std::string& remedy) const {
    const std::string sequences =
        options.sequences == 1 ? "one sequence" : fmt::format("{} sequences", options.sequences);
    const std::int64_t context = context_of(model_, options);
    const std::string cache =
        options.cache_tokens > 0 ? fmt::format(" and a cache of {} tokens", options.cache_tokens) : "";
    throw OutOfMemory(fmt::format("{} needed for {} with a context of {} tokens{}, {} available",
                                  human_bytes(static_cast<double>(bytes(options))), sequences, context, cache,
                                  human_bytes(static_cast<double>(available_))),
                      "memory", remedy);
  }

  // Names sizes that would fit instead of these options.
  std::string remedy(const DecodingOptions& options) const {
    const std::int64_t context = context_of(model_, options);
    if (options.cache_tokens > 0) {
      const std::int64_t tokens =
          largest(options, &DecodingOptions::cache_tokens, context, options.cache_tokens);
      if (tokens > 0) return fmt::format("a cache of {} tokens would fit", tokens);
    } else if (options.sequences > 1) {
      const std::int64_t sequences = largest(options, &DecodingOptions::sequences, 1, options.sequences);
      if (sequences > 0) return fmt::format("{} would fit", sequences);
    }
    const DecodingOptions one{.sequences = 1, .batch_invariant = options.batch_invariant};
    const std::int64_t shorter = largest(one, &DecodingOptions::context, 1, context);
    if (shorter > 0) return fmt::format("one sequence with a context of {} tokens would fit", shorter);
    return "use a smaller model, another dtype or another device";
  }

 private:
  std::size_t bytes(const DecodingOptions& options) const {
    return DecodingEngine::planned(context_, model_, options).total_bytes();
  }

  Context& context_;
  const DecoderWeights& model_;
  const std::size_t available_;
};

}  // namespace

DecodingOptions with_sequences_that_fit(Context& context, const DecoderWeights& model,
                                        const DecodingOptions& options) {
  const Room room(context, model);
  DecodingOptions fitting = options;
  constexpr std::int64_t kBlock = DecodingEngine::kBlockSize;
  const std::int64_t context_tokens = std::min(context_of(model, options), model.decoder->context());
  const std::int64_t blocks_each = (context_tokens + kBlock - 1) / kBlock;
  const std::int64_t most =
      std::clamp<std::int64_t>(DecodingEngine::kMostCacheTokens / kBlock / blocks_each, 1, options.sequences);
  fitting.sequences = room.largest(options, &DecodingOptions::sequences, 1, most);
  if (fitting.sequences > 0) return fitting;
  fitting.sequences = 1;
  room.fail(fitting, room.remedy(fitting));
}

void require_room(Context& context, const DecoderWeights& model, const DecodingOptions& options) {
  const Room room(context, model);
  if (!room.holds(options)) room.fail(options, room.remedy(options));
}

}  // namespace warpwright
