// Encoders in the C ABI. They make a model from a folder or from tensors, turn texts into vectors in the
// host's memory, and turn token ids or hidden states into results on the device.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/context.hpp"
#include "capi/dtype.hpp"
#include "capi/encoder_attention.hpp"
#include "infer/encode.hpp"
#include "ops/padding/padding.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "runtime/threads.hpp"

using namespace warpwright;

// An encoder of the C ABI. Connects the caller's tensors with the model's.
struct warpwright_encoder {
  using Result = BertSession::Result;

  warpwright_encoder(std::shared_ptr<warpwright_context> owner, const warpwright_encoder_options& options);
  ~warpwright_encoder();

  BertSession& model() { return texts ? texts->model() : *ids_only; }
  const BertSession& model() const { return texts ? texts->model() : *ids_only; }

  // Takes over the owner's stream and threads for the next call.
  void follow_owner();
  // Throws Error unless a call's sequences fit in one batch.
  void require_one_batch(const warpwright_encoder_tokens_args& args) const;
  // Runs a checked call in batches that fit the model's memory.
  void run(const warpwright_encoder_tokens_args& args, const BertAttention& attention);
  // Runs the layers over padded states with a mask on a GPU.
  void run_layers(const warpwright_encoder_tokens_args& args, const Tensor& mask);

  std::shared_ptr<warpwright_context> owner;
  Context context;
  std::unique_ptr<Encoder> texts;  // only for a folder with a tokenizer
  std::unique_ptr<BertSession> ids_only;
  std::vector<EncodedText> report;

 private:
  // The sequences [first, last) of a call, as one batch of the model.
  struct Part {
    std::int64_t first = 0, last = 0;
    PackedBatch batch;
    std::int64_t tokens = 0;            // in the batch, without kept padding
    std::vector<std::int32_t> indices;  // for a padded call: the batch's rows among (last − first)·length
  };
  Part part_from(const warpwright_encoder_tokens_args& args, std::int64_t first) const;
  void run_part(const warpwright_encoder_tokens_args& args, const Part& part, const BertAttention& attention);
  // A part's offsets and indices on the device.
  struct Places {
    Tensor cu_seqlens, indices;
  };
  Places upload(const Part& part);

  Buffer places_, host_places_;                // the memory of Places; a CPU uses only the second
  std::optional<Event> places_copied_, done_;  // the latest events of a GPU
};

namespace {

constexpr std::string_view kCreate = "warpwright_encoder_create", kTexts = "warpwright_encoder_texts",
                           kTokens = "warpwright_encoder_tokens", kInfo = "warpwright_encoder_get_info",
                           kPrompt = "warpwright_encoder_get_prompt",
                           kCheckMask = "warpwright_encoder_check_mask";
constexpr std::int64_t kMostCount = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void fail(std::string_view function, const std::string& what,
                       const std::string& remedy = "see warpwright.h") {
  throw Error(what, std::string(function), remedy);
}

std::optional<ops::Pooling> pooling_of(warpwright_pooling pooling) {
  switch (pooling) {
    case WARPWRIGHT_POOLING_OF_MODEL:
      return {};
    case WARPWRIGHT_POOLING_MEAN:
      return ops::Pooling::mean;
    case WARPWRIGHT_POOLING_CLS:
      return ops::Pooling::cls;
    case WARPWRIGHT_POOLING_MAX:
      return ops::Pooling::max;
    case WARPWRIGHT_POOLING_MEAN_SQRT:
      return ops::Pooling::mean_sqrt;
    default:
      fail(kCreate, fmt::format("options.pooling is {}", pooling));
  }
}

std::optional<bool> normalization_of(warpwright_normalization normalization) {
  if (normalization == WARPWRIGHT_NORMALIZE_OF_MODEL) return {};
  if (normalization == WARPWRIGHT_NORMALIZE || normalization == WARPWRIGHT_NORMALIZE_NOT) {
    return normalization == WARPWRIGHT_NORMALIZE;
  }
  fail(kCreate, fmt::format("options.normalization is {}", normalization));
}

BertSession::Result result_of(std::string_view function, warpwright_encoder_result result) {
  switch (result) {
    case WARPWRIGHT_VECTORS:
      return BertSession::Result::vectors;
    case WARPWRIGHT_LOGITS:
      return BertSession::Result::logits;
    case WARPWRIGHT_HIDDEN:
      return BertSession::Result::hidden;
    default:
      fail(function, fmt::format("result is {}", result),
           "use WARPWRIGHT_VECTORS, WARPWRIGHT_LOGITS or WARPWRIGHT_HIDDEN");
  }
}

warpwright_dtype number_of(DType dtype) {
  if (dtype == DType::bf16) return WARPWRIGHT_BF16;
  return dtype == DType::f16 ? WARPWRIGHT_F16 : WARPWRIGHT_F32;
}

EncoderOptions options_of(const warpwright_encoder_options& o) {
  EncoderOptions options;
  capi::check_reserved(kCreate, "options.reserved", o.reserved);
  if (o.dtype == WARPWRIGHT_F64) fail(kCreate, "options.dtype is WARPWRIGHT_F64", "use F32, BF16 or F16");
  options.weights.dtype = capi::dtype_of(kCreate, "options.dtype", o.dtype);
  for (const auto& [name, value] : {std::pair("max_batch_tokens", o.max_batch_tokens),
                                    {"max_batch_sequences", o.max_batch_sequences},
                                    {"max_length", o.max_length},
                                    {"tensor_count", o.tensor_count}}) {
    if (value < 0) fail(kCreate, fmt::format("options.{} is {}", name, value), "use 0 or more");
  }
  if (o.max_batch_tokens > 0) options.model.max_batch_tokens = o.max_batch_tokens;
  options.model.max_batch_sequences = o.max_batch_sequences;
  options.model.batch_invariant = o.batch_invariant != 0;
  options.model.pooling = pooling_of(o.pooling);
  options.model.normalize = normalization_of(o.normalization);
  if (o.weights_cache) options.weights.cache = o.weights_cache;
  options.max_length = o.max_length;
  options.over_limit = o.refuse_long ? OverLimit::refuse : OverLimit::truncate;
  options.in_text = o.plain_text ? text::SpecialTokens::as_text : text::SpecialTokens::recognize;
  return options;
}

std::vector<BertTensor> tensors_of(const warpwright_encoder_options& o) {
  std::vector<BertTensor> tensors;
  capi::check_place(kCreate, "options.tensors", o.tensors);
  if (o.tensor_count > kMostCount) fail(kCreate, fmt::format("options.tensor_count is {}", o.tensor_count));
  for (std::int64_t i = 0; i < o.tensor_count; ++i) {
    const warpwright_tensor& t = o.tensors[i];
    const std::string where = fmt::format("options.tensors[{}]", i);
    if (!t.name) fail(kCreate, where + ".name is NULL");
    const DType dtype = capi::dtype_of(kCreate, where + ".dtype", t.dtype);
    if (t.rank != 1 && t.rank != 2) {
      fail(kCreate, fmt::format("{} ({}) has rank {}", where, quote(t.name), t.rank), "use 1 or 2");
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const std::int64_t rows = t.rank == 2 ? t.rows : 1;
    if (rows < 0 || t.columns < 0 || rows > kMost || t.columns > kMost / std::max<std::int64_t>(rows, 1)) {
      fail(kCreate, fmt::format("{} ({}) has shape ({}, {})", where, quote(t.name), rows, t.columns));
    }
    const Shape shape = t.rank == 2 ? Shape{t.rows, t.columns} : Shape{t.columns};
    if (!t.data && shape.elements() > 0) fail(kCreate, where + ".data is NULL");
    capi::check_alignment(kCreate, where + ".data", t.data, size_of(dtype));
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    tensors.push_back({t.name, std::string(name_of(dtype)), dtype, shape,
                       std::span(static_cast<const std::byte*>(t.data), bytes)});
  }
  return tensors;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  const auto there = [&](const char* name) { return path_exists(folder / name); };
  return there("tokenizer.json") || there("vocab.txt") || there("vocab.json");
}

ContextOptions context_options(const warpwright_context& owner, bool tf32) {
  ContextOptions options = owner.context.options();
  options.threads = owner.context.threads();
  options.tf32 = tf32;
  return options;
}

std::vector<std::string_view> views_of(std::string_view argument, const char* const* texts,
                                       const size_t* bytes, std::int64_t count) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 31;
  std::vector<std::string_view> views;
  if (count == 0) return views;
  capi::check_place(kTexts, argument, texts);
  if (bytes) capi::check_place(kTexts, "the lengths of " + std::string(argument), bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!texts[i]) fail(kTexts, fmt::format("{}[{}] is NULL", argument, i));
    views.push_back(bytes ? std::string_view(texts[i], bytes[i]) : std::string_view(texts[i]));
    if (views.back().size() > kMostBytes) {
      fail(kTexts, fmt::format("{}[{}] has {} bytes", argument, i, views.back().size()),
           fmt::format("give at most {}", kMostBytes));
    }
  }
  return views;
}

// A sequence's positions among the rows of a call's ids or states, padding included.
struct Range {
  std::int64_t begin, end;
};
Range range_of(const warpwright_encoder_tokens_args& args, std::int64_t sequence) {
  if (args.cu_seqlens) return {args.cu_seqlens[sequence], args.cu_seqlens[sequence + 1]};
  return {sequence * args.length, (sequence + 1) * args.length};
}
bool is_token(const warpwright_encoder_tokens_args& args, std::int64_t place) {
  return !args.mask || args.mask[place] != 0;
}
std::int64_t count_tokens(const warpwright_encoder_tokens_args& args, Range range) {
  std::int64_t tokens = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) tokens += is_token(args, i);
  return tokens;
}

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

// The first row of a CPU matrix with a value that is not finite, or −1.
std::int64_t bad_row(const Tensor& matrix) {
  std::int64_t bad = -1;
  visit_dtype(matrix.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = matrix.as<T>();
    for (std::int64_t r = 0; r < matrix.shape[0] && bad < 0; ++r) {
      float check = 0;  // becomes NaN at the first such value
      for (std::int64_t c = 0; c < matrix.shape[1]; ++c) check += static_cast<float>(*values++) * 0;
      if (check != 0) bad = r;
    }
  });
  return bad;
}

}  // namespace

warpwright_encoder::warpwright_encoder(std::shared_ptr<warpwright_context> owner_,
                                       const warpwright_encoder_options& o)
    : owner(std::move(owner_)),
      context(context_options(*owner, o.tf32 != 0), owner->context.device().device,
              Stream::borrowed(owner->context.device().device, owner->context.stream().get())) {
  const EncoderOptions options = options_of(o);
  if (o.folder) {
    if (o.tensors || o.tensor_count || o.config) {
      fail(kCreate, "options.folder is given with tensors or config", "give one of the two");
    }
    const std::filesystem::path folder(o.folder);
    if (has_tokenizer(folder)) {
      texts = std::make_unique<Encoder>(context, folder, options);
    } else {
      ids_only = std::make_unique<BertSession>(
          context, std::make_shared<const BertWeights>(context, folder, options.weights), options.model);
    }
  } else {
    if (!o.tensors || !o.config) {
      fail(kCreate, "options.folder is NULL", "give a folder, or tensors and config");
    }
    const std::string where = "options.config";
    const BertConfig config =
        BertConfig::from_json(parse_json(o.config, where, 16, "give a BERT or RoBERTa's config.json"), where);
    ids_only = std::make_unique<BertSession>(
        context, std::make_shared<const BertWeights>(context, config, tensors_of(o), options.weights),
        options.model);
  }
}

warpwright_encoder::~warpwright_encoder() {
  if (!done_) return;
  try {
    const CurrentDevice current(context.device().device);
    done_->synchronize();            // the caller's stream may no longer exist
  } catch (const std::exception&) {  // after a failure there is nothing to wait for
  }
}

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

namespace {

using Encoders = capi::Handles<warpwright_encoder>;

// An encoder during one call. Its context is in the same call.
class EncoderInCall {
 public:
  EncoderInCall(std::string_view function, const warpwright_encoder* handle)
      : encoder_(Encoders::all().find(function, "encoder", handle)), context_(function, encoder_->owner) {}
  warpwright_encoder* operator->() const { return encoder_.get(); }
  warpwright_encoder& operator*() const { return *encoder_; }

 private:
  std::shared_ptr<warpwright_encoder> encoder_;
  capi::ContextInCall context_;
};

std::size_t info_bytes(const warpwright_encoder_info& info) {
  return std::min(info.size, sizeof info);
}

// The prompt before each text. Only VECTORS may have one.
PromptChoice prompt_of(const warpwright_encoder_texts_args& args, BertSession::Result result) {
  const bool given = args.prompt || args.prompt_bytes > 0 || args.prompt_name;
  if (given && result != BertSession::Result::vectors) {
    fail(kTexts, "a prompt is given, but result is WARPWRIGHT_LOGITS", "prompts go with WARPWRIGHT_VECTORS");
  }
  if (!args.prompt && args.prompt_bytes > 0) capi::throw_missing(kTexts, "prompt");
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
  const warpwright_encoder_texts_args args = capi::known_part(kTexts, "args", c_args, kOldest);
  capi::check_reserved(kTexts, "args.reserved", args.reserved);
  const BertSession::Result result = result_of(kTexts, args.result);
  if (args.count < 0 || args.count > kMostCount) {
    fail(kTexts, fmt::format("count is {}", args.count), fmt::format("use 0 to {}", kMostCount));
  }
  if (args.count > 0) capi::check_place(kTexts, "out", args.out);
  capi::check_alignment(kTexts, "tokens", args.tokens, alignof(std::int64_t));
  capi::check_alignment(kTexts, "statuses", args.statuses, alignof(warpwright_status));
  if (result == BertSession::Result::hidden) {
    fail(kTexts, "result is WARPWRIGHT_HIDDEN", "use WARPWRIGHT_VECTORS or WARPWRIGHT_LOGITS");
  }
  if (args.seconds && result != BertSession::Result::logits) {
    fail(kTexts, "seconds is given, but result is WARPWRIGHT_VECTORS", "use WARPWRIGHT_LOGITS for pairs");
  }
  if (args.second_bytes && !args.seconds) capi::throw_missing(kTexts, "seconds");
  return args;
}

// Writes the texts' results to args.out and returns a report for each text. Sets `meaning` once the arguments
// are checked. Errors before that concern the arguments.
std::vector<EncodedText> run_texts(Encoder& texts, const warpwright_encoder_texts_args& args,
                                   warpwright_status& meaning) {
  const bool vectors = args.result == WARPWRIGHT_VECTORS;
  const auto first = views_of("texts", args.texts, args.text_bytes, args.count);
  const std::int64_t width = vectors ? texts.vector_size() : texts.labels();
  const std::span out(args.out, static_cast<std::size_t>(args.count * width));
  const PromptChoice prompt = prompt_of(args, result_of(kTexts, args.result));
  if (vectors) texts.prompt(prompt);
  std::vector<TextPair> pairs;
  if (args.seconds) {
    const auto second = views_of("seconds", args.seconds, args.second_bytes, args.count);
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

// Checks the alignment of the memory that the host and the device read and write.
void check_memory(const warpwright_encoder_tokens_args& args, const BertSession& model) {
  const std::size_t element = size_of(model.weights()->dtype());
  capi::check_alignment(kTokens, "ids", args.ids, alignof(std::int32_t));
  capi::check_alignment(kTokens, "types", args.types, alignof(std::int32_t));
  capi::check_alignment(kTokens, "cu_seqlens", args.cu_seqlens, alignof(std::int32_t));
  capi::check_alignment(kTokens, "states", args.states, element);
  capi::check_alignment(kTokens, "out", args.out,
                        args.result == WARPWRIGHT_VECTORS ? sizeof(float) : element);
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

void check_attention_of(const warpwright_encoder_tokens_args& args, const capi::EncoderAttention& attention,
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
bool stays_on_device(const warpwright_encoder_tokens_args& args, const capi::EncoderAttention& attention,
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
  if (anything && !args.ids && !args.states) capi::throw_missing(kTokens, "ids");
  if (args.states && (args.ids || args.types)) fail(kTokens, "states is given with ids or types");
  if (!args.out && (hidden ? anything : args.sequences > 0)) capi::throw_missing(kTokens, "out");
  for (std::int64_t s = 0; s < args.sequences; ++s) check_sequence(args, model, s);
  return hidden ? anything : args.sequences > 0;
}

}  // namespace

warpwright_status warpwright_encoder_create(warpwright_context* context,
                                            const warpwright_encoder_options* options,
                                            warpwright_encoder** encoder) {
  return capi::guarded([&](warpwright_status& meaning) {
    capi::check_place(kCreate, "encoder", encoder);
    *encoder = nullptr;
    const capi::ContextInCall owner(kCreate, context);
    const warpwright_encoder_options known = capi::known_part(kCreate, "options", options);
    const DeviceInfo& device = owner->context.device();
    if (known.dtype == WARPWRIGHT_F16 && device.device.kind == DeviceKind::cpu) {
      meaning = WARPWRIGHT_UNSUPPORTED;
      fail(kCreate, "options.dtype is WARPWRIGHT_F16, and the context is a CPU's",
           "use WARPWRIGHT_F32 or WARPWRIGHT_BF16, or a GPU's context");
    }
    meaning = WARPWRIGHT_FAILED;
    claim_threads(device.threads);
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    const CurrentDevice current(device.device);
    *encoder = Encoders::all().add(std::make_shared<warpwright_encoder>(owner.shared(), known));
  });
}

void warpwright_encoder_destroy(warpwright_encoder* encoder) {
  if (!encoder) return;
  capi::guarded(
      [&](warpwright_status&) { Encoders::all().remove("warpwright_encoder_destroy", "encoder", encoder); });
}

warpwright_status warpwright_encoder_get_info(const warpwright_encoder* handle,
                                              warpwright_encoder_info* info) {
  return capi::guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kInfo, handle);
    capi::known_part(kInfo, "info", info, offsetof(warpwright_encoder_info, prompts));
    const BertSession& model = encoder->model();
    const BertConfig& config = model.config();
    const Prompts prompts = encoder->texts ? encoder->texts->prompts() : Prompts();
    const auto is_default = [&](const auto& prompt) { return prompt.first == prompts.default_name; };
    const auto first = std::find_if(prompts.named.begin(), prompts.named.end(), is_default);
    const warpwright_encoder_info known = {
        .size = info->size,
        .hidden_size = config.hidden,
        .layers = config.layers,
        .heads = config.heads,
        .vocabulary = config.vocab,
        .token_types = config.types,
        .max_length = encoder->texts ? encoder->texts->max_length() : model.max_length(),
        .vector_size = model.vector_size(),
        .labels = model.labels(),
        .max_batch_tokens = model.options().max_batch_tokens,
        .max_batch_sequences = model.options().max_batch_sequences,
        .wasted_tokens = model.wasted_tokens(),
        .has_tokenizer = encoder->texts != nullptr,
        .dtype = number_of(model.weights()->dtype()),
        .prompts = static_cast<std::int32_t>(prompts.named.size()),
        .default_prompt =
            first == prompts.named.end() ? -1 : static_cast<std::int32_t>(first - prompts.named.begin())};
    std::memcpy(info, &known, info_bytes(*info));
  });
}

warpwright_status warpwright_encoder_get_prompt(const warpwright_encoder* handle, int64_t index,
                                                const char** name, const char** text) {
  return capi::guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kPrompt, handle);
    capi::check_place(kPrompt, "name", name);
    capi::check_place(kPrompt, "text", text);
    const auto count = encoder->texts ? static_cast<std::int64_t>(encoder->texts->prompts().named.size()) : 0;
    if (index < 0 || index >= count) {
      fail(kPrompt, fmt::format("index is {}", index), fmt::format("the model has {} prompts", count));
    }
    const auto& prompt = encoder->texts->prompts().named[static_cast<std::size_t>(index)];
    *name = prompt.first.c_str();
    *text = prompt.second.c_str();
  });
}

warpwright_status warpwright_encoder_texts(warpwright_encoder* handle,
                                           const warpwright_encoder_texts_args* c_args) {
  return capi::guarded([&](warpwright_status& meaning) {
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
  capi::guarded([&](warpwright_status&) {
    const EncoderInCall encoder("warpwright_encoder_text_error", handle);
    if (index < 0 || index >= static_cast<int64_t>(encoder->report.size())) return;
    found = encoder->report[static_cast<std::size_t>(index)].error.c_str();
  });
  return found;
}

warpwright_status warpwright_encoder_tokens(warpwright_encoder* handle,
                                            const warpwright_encoder_tokens_args* c_args) {
  return capi::guarded([&](warpwright_status& meaning) {
    const EncoderInCall encoder(kTokens, handle);
    constexpr std::size_t kOldest = offsetof(warpwright_encoder_tokens_args, attention);
    warpwright_encoder_tokens_args args = capi::known_part(kTokens, "args", c_args, kOldest);
    BertSession& model = encoder->model();
    check_memory(args, model);
    check_bounds(args);
    const capi::EncoderAttention attention =
        capi::attention_of(kTokens, args, model.weights()->dtype(), encoder->context.device().device);
    const CurrentDevice current(encoder->context.device().device);
    meaning = WARPWRIGHT_FAILED;
    encoder->follow_owner();
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    model.check_mask();
    const bool on_device = stays_on_device(args, attention, model);
    std::vector<std::uint8_t> bytes;
    if (attention.tokens && !on_device) {
      bytes = capi::token_bytes(encoder->context, attention.tokens);
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
  return capi::guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kCheckMask, handle);
    const CurrentDevice current(encoder->context.device().device);
    encoder->model().check_mask();
  });
}
