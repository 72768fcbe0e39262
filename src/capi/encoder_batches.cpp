// A checked call with token ids or hidden states, in batches that fit the model's memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "capi/encoder.hpp"
#include "capi/encoder_tokens.hpp"
#include "model/finite.hpp"
#include "ops/padding/padding.hpp"
#include "runtime/threads.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

// The first row of a CPU matrix with a value that is not finite, or −1.
std::int64_t bad_row(const Tensor& matrix) {
  std::int64_t bad = -1;
  visit_dtype(matrix.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = matrix.as<T>();
    for (std::int64_t r = 0; r < matrix.shape[0] && bad < 0; ++r, values += matrix.shape[1]) {
      if (!all_finite(values, matrix.shape[1])) bad = r;
    }
  });
  return bad;
}

}  // namespace

void warpwright_encoder::follow_owner() {
  context.set_stream(Stream::borrowed(context.device().device, owner->context.stream().get()));
  context.set_threads(owner->context.threads());
  claim_threads(context.threads());
}

// Takes as many sequences from `first` on as fit, at least one.
warpwright_encoder::Part warpwright_encoder::part_from(const warpwright_encoder_tokens_args& args,
                                                       std::int64_t first) const {
  const BertOptions& limits = model().options();
  Part part{.first = first, .last = first, .batch = {}, .tokens = 0, .indices = {}};
  std::int64_t rows = 0, pieces = 0;
  for (; part.last < args.sequences; ++part.last) {
    const Range range = range_of(args, part.last);
    const std::int64_t tokens = count_tokens(args, range), padding = range.end - range.begin - tokens;
    rows += tokens + (args.keep_padding ? padding : 0);
    pieces += 1 + (args.keep_padding && padding > 0);
    const bool fits = rows <= limits.max_batch_tokens && pieces <= limits.max_batch_sequences;
    if (!fits && part.last > first) break;
    part.tokens += tokens;
  }
  const auto append = [&](bool tokens) {
    std::vector<std::int32_t> ids, types;
    for (std::int64_t s = first; s < part.last; ++s) {
      ids.clear();
      types.clear();
      const Range range = range_of(args, s);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        if (is_token(args, i) != tokens) continue;
        ids.push_back(args.ids && tokens ? args.ids[i] : 0);
        types.push_back(args.types && tokens ? args.types[i] : 0);
        if (!args.cu_seqlens) part.indices.push_back(static_cast<std::int32_t>(i - first * args.length));
      }
      if (tokens || !ids.empty()) part.batch.append(ids, types);
    }
  };
  append(true);
  if (args.keep_padding) append(false);
  return part;
}

warpwright_encoder::Places warpwright_encoder::upload(const Part& part) {
  const Device device = context.device().device;
  const bool gpu = device.kind == DeviceKind::cuda;
  const BertOptions& limits = model().options();
  const std::size_t bytes =
      static_cast<std::size_t>(limits.max_batch_tokens + limits.max_batch_sequences + 1) *
      sizeof(std::int32_t);
  if (!host_places_.data()) {
    if (gpu) {
      places_ = Buffer(bytes, device, "padding");
      places_copied_.emplace(device);
    }
    // Set last, because its presence means that all of them exist.
    host_places_ = gpu ? Buffer::pinned(bytes, "pinned host memory") : Buffer(bytes, device, "padding");
  } else if (gpu) {
    places_copied_->synchronize();
  }
  const std::int64_t bounds = part.last - part.first + 1,
                     count = bounds + static_cast<std::int64_t>(part.indices.size());
  auto* host = reinterpret_cast<std::int32_t*>(host_places_.data());
  std::copy_n(part.batch.cu_seqlens.begin(), bounds, host);
  std::copy(part.indices.begin(), part.indices.end(), host + bounds);
  Tensor places(host, DType::i32, {count});
  if (gpu) {
    places = Tensor(places_.data(), DType::i32, {count}, device);
    copy(places, Tensor(host, DType::i32, {count}), context.stream());
    places_copied_->record(context.stream());
  }
  return {places.slice(0, 0, bounds), places.slice(0, bounds, count - bounds)};
}

void warpwright_encoder::run_part(const warpwright_encoder_tokens_args& args, const Part& part,
                                  const BertAttention& attention) {
  const BertSession::Result result = result_of(kTokens, args.result);
  const bool padded = !args.cu_seqlens, hidden = result == BertSession::Result::hidden;
  const Device device = context.device().device;
  const auto rows = static_cast<std::int64_t>(part.batch.tokens.size());
  const std::int64_t H = model().config().hidden, sequences = part.last - part.first;
  const std::int64_t begin = range_of(args, part.first).begin;
  const Places places = padded && (hidden || args.states) ? upload(part) : Places{};
  const auto from = [&](const void* data, std::int64_t row, DType dtype, const Shape& shape) {
    const std::int64_t columns = shape[shape.rank() - 1];
    auto* bytes = static_cast<std::byte*>(const_cast<void*>(data));
    return Tensor(bytes + static_cast<std::size_t>(row * columns) * size_of(dtype), dtype, shape, device);
  };
  if (args.states) {
    const Tensor to = model().states(rows);
    if (padded) {
      const Tensor all = from(args.states, begin, to.dtype, {sequences * args.length, H});
      ops::padding_pack(context, {all, places.indices, to});
    } else {
      copy(to, from(args.states, begin, to.dtype, {rows, H}), context.stream());
    }
  }
  const Tensor found = model().launch(
      part.batch, result, args.states ? BertSession::From::states : BertSession::From::tokens, attention);
  const Tensor used = found.slice(0, 0, hidden ? part.tokens : sequences);
  if (const std::int64_t bad = device.kind == DeviceKind::cpu ? bad_row(used) : -1; bad >= 0) {
    const auto& bounds = part.batch.cu_seqlens;
    const auto next = hidden ? std::upper_bound(bounds.begin(), bounds.end(), bad) : bounds.begin() + bad + 1;
    fail(kTokens,
         fmt::format("sequence {} gets values that are not finite", part.first + (next - bounds.begin()) - 1),
         "use F32, or check the model's weights");
  }
  if (hidden && padded) {
    const Tensor out = from(args.out, begin, found.dtype, {sequences, args.length, H});
    ops::padding_unpack(context, {used, places.cu_seqlens, places.indices, out});
    return;
  }
  copy(from(args.out, hidden ? begin : part.first, used.dtype, used.shape), used, context.stream());
}

void warpwright_encoder::require_one_batch(const warpwright_encoder_tokens_args& args) const {
  if (args.sequences == 0 || part_from(args, 0).last == args.sequences) return;
  fail(kTokens, "the sequences of a call with a bias or a mask for pairs do not fit in one batch",
       fmt::format("give at most {} tokens in {} sequences", model().options().max_batch_tokens,
                   model().options().max_batch_sequences));
}

void warpwright_encoder::run(const warpwright_encoder_tokens_args& args, const BertAttention& attention) {
  for (std::int64_t first = 0; first < args.sequences;) {
    const Part part = part_from(args, first);
    run_part(args, part, attention);
    first = part.last;
  }
  if (context.device().device.kind == DeviceKind::cpu) return;
  if (!done_) done_.emplace(context.device().device);
  done_->record(context.stream());
}

void warpwright_encoder::run_layers(const warpwright_encoder_tokens_args& args, const Tensor& mask) {
  const Shape shape{args.sequences, args.length, model().config().hidden};
  const auto tensor = [&](const void* data) {
    return Tensor(const_cast<void*>(data), model().weights()->dtype(), shape, context.device().device);
  };
  model().layers(tensor(args.states), mask, tensor(args.out));
  if (!done_) done_.emplace(context.device().device);
  done_->record(context.stream());
}
