// The sequences of a call with token ids or hidden states.
#pragma once

#include <cstdint>
#include <string_view>

#include "warpwright/warpwright.h"

namespace warpwright::capi {

inline constexpr std::string_view kTokens = "warpwright_encoder_tokens";

// A sequence's positions among the rows of a call's ids or states, padding included.
struct Range {
  std::int64_t begin, end;
};
inline Range range_of(const warpwright_encoder_tokens_args& args, std::int64_t sequence) {
  if (args.cu_seqlens) return {args.cu_seqlens[sequence], args.cu_seqlens[sequence + 1]};
  return {sequence * args.length, (sequence + 1) * args.length};
}
inline bool is_token(const warpwright_encoder_tokens_args& args, std::int64_t place) {
  return !args.mask || args.mask[place] != 0;
}
inline std::int64_t count_tokens(const warpwright_encoder_tokens_args& args, Range range) {
  std::int64_t tokens = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) tokens += is_token(args, i);
  return tokens;
}

}  // namespace warpwright::capi
