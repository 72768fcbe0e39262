// Encoders in the C ABI: token ids or hidden states to results on the device. This file checks a call.
#include "capi/encoder_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "capi/encoder.hpp"
#include "capi/encoder_attention.hpp"
#include "ops/padding/padding.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

constexpr std::string_view kCheckMask = "warpwright_encoder_check_mask";

void check_bounds(const warpwright_encoder_tokens_args& args) {
  if (args.sequences < 0 || args.sequences > kMostCount) {
    fail(kTokens, fmt::format("sequences is {}", args.sequences));
  }
  if (!args.cu_seqlens) {
    if (args.length < 0 || args.length > kMostCount || args.length * args.sequences > kMostCount) {
      fail(kTokens, fmt::format("length is {} (of {} sequences)", args.length, args.sequences));
    }
    if (args.mask) {
      const Shape shape{args.sequences, args.length};
      ops::read_mask(kMaskArgument, Tensor(const_cast<std::uint8_t*>(args.mask), DType::u8, shape));
    }
    return;
  }
  if (args.mask) fail(kTokens, "mask is given with cu_seqlens", "a packed batch has no padding");
  if (args.length != 0) fail(kTokens, fmt::format("length is {} with cu_seqlens", args.length), "use 0");
  for (std::int64_t s = 0; s <= args.sequences; ++s) {
    if (s == 0 ? args.cu_seqlens[0] == 0 : args.cu_seqlens[s] >= args.cu_seqlens[s - 1]) continue;
    fail(kTokens, fmt::format("cu_seqlens[{}] is {}", s, args.cu_seqlens[s]), "make them ascend from 0");
  }
}

void check_sequence(const warpwright_encoder_tokens_args& args, const BertSession& model, std::int64_t s) {
  const BertConfig& config = model.config();
  const Range range = range_of(args, s);
  const std::int64_t tokens = count_tokens(args, range);
  const std::int64_t most = std::min(config.max_length(), model.options().max_batch_tokens);
  if (tokens > most) {
    fail(kTokens, fmt::format("sequence {} has {} tokens, the encoder takes {}", s, tokens, most), "cut it");
  }
  const std::int64_t rows = range.end - range.begin;
  if (args.keep_padding && rows > model.options().max_batch_tokens) {
    fail(kTokens,
         fmt::format("sequence {} has {} tokens with its padding, the encoder takes {}", s, rows,
                     model.options().max_batch_tokens),
         "cut it, or have the padding removed");
  }
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int32_t id = args.ids ? args.ids[i] : 0, type = args.types ? args.types[i] : 0;
    if (is_token(args, i) && (id < 0 || id >= config.vocab)) {
      fail(kTokens, fmt::format("ids has {} in sequence {}", id, s),
           fmt::format("the vocabulary has {} tokens", config.vocab));
    }
    if (is_token(args, i) && (type < 0 || type >= config.types)) {
      fail(kTokens, fmt::format("types has {} in sequence {}", type, s),
           fmt::format("the model has {} token types", config.types));
    }
  }
}

// Checks the alignment of the memory that the host and the device read and write.
void check_memory(const warpwright_encoder_tokens_args& args, const BertSession& model) {
  const std::size_t element = size_of(model.weights()->dtype());
  check_alignment(kTokens, "ids", args.ids, alignof(std::int32_t));
  check_alignment(kTokens, "types", args.types, alignof(std::int32_t));
  check_alignment(kTokens, "cu_seqlens", args.cu_seqlens, alignof(std::int32_t));
  check_alignment(kTokens, "states", args.states, element);
  check_alignment(kTokens, "out", args.out, args.result == WARPWRIGHT_VECTORS ? sizeof(float) : element);
}

// A bias or a mask for pairs counts a sequence's tokens, so that padding must not come between them.
void check_pairs(const warpwright_encoder_tokens_args& args) {
  if (args.keep_padding) {
    fail(kTokens, "keep_padding is given with a bias or a mask for pairs", "give one of the two");
  }
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    const Range range = range_of(args, s);
    for (std::int64_t i = range.begin + 1; i < range.end; ++i) {
      if (!is_token(args, i) || is_token(args, i - 1)) continue;
      fail(kTokens, fmt::format("sequence {} has padding before a token, with a bias or a mask for pairs", s),
           "put the padding last");
    }
  }
}

void check_attention_of(const warpwright_encoder_tokens_args& args, const EncoderAttention& attention,
                        const BertSession& model) {
  if (attention.has_pairs()) check_pairs(args);
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    longest = std::max(longest, count_tokens(args, range_of(args, s)));
  }
  check_attention(model.config(), model.weights()->dtype(), model.weights()->device(), args.sequences,
                  longest, attention.changes);
  const Tensor& bias = attention.changes.bias;
  if (bias && bias.device.kind == DeviceKind::cpu) require_bias_values("bias", bias);
  const Tensor& pairs = attention.changes.mask;
  if (pairs && pairs.device.kind == DeviceKind::cpu) ops::read_mask(kMaskArgument, pairs);
}

// True if a mask on a GPU can stay there: the layers alone, in one batch.
bool stays_on_device(const warpwright_encoder_tokens_args& args, const EncoderAttention& attention,
                     const BertSession& model) {
  const BertOptions& limits = model.options();
  return attention.tokens && attention.tokens.device.kind == DeviceKind::cuda && args.states &&
         !args.keep_padding && !attention.changes.changes_anything() && args.result == WARPWRIGHT_HIDDEN &&
         args.sequences <= limits.max_batch_sequences && args.length <= model.config().max_length() &&
         args.sequences * args.length <= limits.max_batch_tokens;
}

// Checks the arguments after memory and bounds. Returns false if there is nothing to do.
bool check_tokens(const warpwright_encoder_tokens_args& args, const BertSession& model) {
  const BertSession::Result result = result_of(kTokens, args.result);
  const bool hidden = result == BertSession::Result::hidden;
  if (result == BertSession::Result::logits && model.labels() == 0) {
    fail(kTokens, "result is WARPWRIGHT_LOGITS, but the model has no classification head",
         "use the folder of a cross-encoder or a classifier");
  }
  const bool anything = args.sequences > 0 && range_of(args, args.sequences - 1).end > 0;
  if (anything && !args.ids && !args.states) throw_missing(kTokens, "ids");
  if (args.states && (args.ids || args.types)) fail(kTokens, "states is given with ids or types");
  if (!args.out && (hidden ? anything : args.sequences > 0)) throw_missing(kTokens, "out");
  for (std::int64_t s = 0; s < args.sequences; ++s) check_sequence(args, model, s);
  return hidden ? anything : args.sequences > 0;
}

}  // namespace

warpwright_status warpwright_encoder_tokens(warpwright_encoder* handle,
                                            const warpwright_encoder_tokens_args* c_args) {
  return guarded([&](warpwright_status& meaning) {
    const EncoderInCall encoder(kTokens, handle);
    constexpr std::size_t kOldest = offsetof(warpwright_encoder_tokens_args, attention);
    warpwright_encoder_tokens_args args = known_part(kTokens, "args", c_args, kOldest);
    BertSession& model = encoder->model();
    check_memory(args, model);
    check_bounds(args);
    const EncoderAttention attention =
        attention_of(kTokens, args, model.weights()->dtype(), encoder->context.device().device);
    const CurrentDevice current(encoder->context.device().device);
    meaning = WARPWRIGHT_FAILED;
    encoder->follow_owner();
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    model.check_mask();
    const bool on_device = stays_on_device(args, attention, model);
    std::vector<std::uint8_t> bytes;
    if (attention.tokens && !on_device) {
      bytes = token_bytes(encoder->context, attention.tokens);
      args.mask = bytes.data();
    }
    if (args.attention) check_attention_of(args, attention, model);
    if (!check_tokens(args, model)) return;
    if (attention.has_pairs()) encoder->require_one_batch(args);
    meaning = WARPWRIGHT_FAILED;
    on_device ? encoder->run_layers(args, attention.tokens) : encoder->run(args, attention.changes);
  });
}

warpwright_status warpwright_encoder_check_mask(warpwright_encoder* handle) {
  return guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kCheckMask, handle);
    const CurrentDevice current(encoder->context.device().device);
    encoder->model().check_mask();
  });
}
