#include "model/bert_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "model/bert_memory.hpp"
#include "model/finite.hpp"
#include "ops/padding/padding.hpp"
#include "runtime/captured.hpp"
#include "runtime/memory.hpp"
#include "runtime/planned.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kMostSequences = 4096, kMostBatchTokens = std::int64_t{1} << 28;
constexpr std::size_t kMostGraphs = 256;

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Token counts to capture graphs for: multiples of 64 (a tile's rows) up to 2,048, of 128 above (the empty
// rows of the last tile take no time), then of the smallest power of two that is at least N/128.
std::int64_t token_bucket(std::int64_t N, std::int64_t most) {
  std::int64_t step = N <= 2048 ? 64 : 128;
  while (step * 128 < N) step *= 2;
  return std::min(round_up(std::max<std::int64_t>(N, 1), step), most);
}
std::int64_t sequence_bucket(std::int64_t S, std::int64_t most) {
  std::int64_t bucket = 1;
  while (bucket < S) bucket *= 2;
  return std::min(bucket, most);
}

// Rows of any floating dtype as fp32; the first row with a value that is not finite, or −1.
std::int64_t read_rows(const Tensor& host, std::int64_t rows, std::span<float> out) {
  const std::int64_t columns = host.shape[1];
  std::int64_t bad = -1;
  visit_dtype(host.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = host.as<T>();
    for (std::int64_t r = 0; r < rows; ++r, from += columns) {
      float* row = out.data() + r * columns;
      for (std::int64_t c = 0; c < columns; ++c) row[c] = static_cast<float>(from[c]);
      if (bad < 0 && !all_finite(from, columns)) bad = r;
    }
  });
  return bad;
}

BertOptions checked(BertOptions options) {
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > kMostBatchTokens) {
    throw UsageError(fmt::format("is {}", options.max_batch_tokens), "batch_tokens",
                     fmt::format("give 1 to {}", kMostBatchTokens));
  }
  if (options.max_batch_sequences > kMostBatchTokens) {
    throw UsageError(fmt::format("is {}", options.max_batch_sequences), "batch_sequences",
                     fmt::format("give 1 to {}", kMostBatchTokens));
  }
  if (options.max_batch_sequences <= 0) {
    options.max_batch_sequences = std::min(options.max_batch_tokens, kMostSequences);
  }
  return options;
}

}  // namespace

// A forward for a bucket of tokens and sequences or for exactly these, with its input and its result.
struct BertSession::Call {
  std::int64_t rows = 0, sequences = 0;
  Result result = Result::hidden;
  From from = From::tokens;
  bool operator<(const Call& o) const {
    return std::tie(rows, sequences, result, from) < std::tie(o.rows, o.sequences, o.result, o.from);
  }
};

struct BertSession::Memory {
  struct Replay {
    Captured captured;
    std::optional<bool> exact = {};  // it computes no row but the batch's
    std::int64_t latest = 0;         // of its calls, among all
  };

  // For this call. If there are too many, the one whose last call is the oldest makes room.
  Replay& replay(const Call& call) {
    const auto place = replays.try_emplace(call, Replay{.captured = Captured(own_stream)}).first;
    place->second.latest = ++calls;
    const auto older = [](const auto& a, const auto& b) { return a.second.latest < b.second.latest; };
    if (replays.size() > kMostGraphs) replays.erase(std::min_element(replays.begin(), replays.end(), older));
    return place->second;
  }

  std::optional<Planned<BertTensors>> planned;
  Buffer host_memory;  // of a GPU's batches and results
  Tensor host_batch;
  std::byte* host_result = nullptr;
  std::optional<Event> copied;  // host_batch to the device, and the flag to odd, by the latest call
  Stream own_stream;            // of a GPU
  bool in_buckets = false;      // its products read from device memory how many rows there are
  std::map<Call, Replay> replays;
  std::int64_t calls = 0;
  Call last;
  BertAttention attention;      // of the last call
  Tensor visible;               // its mask in bytes, in mask_memory
  Buffer mask_memory, flag;     // grow to the largest mask; the place of an odd value on a GPU
  std::int64_t* odd = nullptr;  // the same on the host, and −1 if there was none
  Shape mask_shape;
};

BertSession::BertSession(Context& context, std::shared_ptr<const BertWeights> weights,
                         const BertOptions& options)
    : context_(context),
      weights_(std::move(weights)),
      pooling_(weights_->pooling()),
      options_(checked(options)),
      memory_(std::make_unique<Memory>()) {
  if (context.device().device != weights_->device()) {
    throw Error("is not on the device of the weights", "the encoder's context",
                "load the weights with a context of this device");
  }
  ops::require(!options_.attention.mask, "the encoder's options", "a mask for pairs belongs to a call");
  check_attention(config(), weights_->dtype(), weights_->device(), 0, 0, options_.attention);
  if (options_.pooling) pooling_.kind = *options_.pooling;
  if (options_.normalize) pooling_.normalize = *options_.normalize;
  plan_memory();
  memory_->planned->take(context_);
  memory_->host_batch = memory_->planned->tensors().batch;
  if (context_.device().device.kind == DeviceKind::cuda) take_host_memory();
}

void BertSession::plan_memory() {
  const BertSizes most{.tokens = options_.max_batch_tokens,
                       .sequences = options_.max_batch_sequences,
                       .classifier = weights_->has_classifier()};
  const auto allocate = [=, this](Allocator& allocator) {
    return allocate_forward(config(), pooling_, weights_->dtype(), most, allocator);
  };
  const auto run_whole = [&](const BertTensors& t, std::int64_t tokens, std::int64_t sequences) {
    const BertActivations a = narrow(t, tokens, sequences, options_.batch_invariant);
    const BertParameters& p = weights_->parameters();
    bert_embed(context_, config(), p, a);
    bert_layers(context_, config(), p, a);
    bert_pool(context_, pooling_, p, a);
    if (most.classifier) bert_classify(context_, p, a);
  };
  std::optional<Planned<BertTensors>>& planned = memory_->planned;
  planned.emplace(context_, allocate,
                  [&](const BertTensors& t) { run_whole(t, most.tokens, most.sequences); });
  planned->reserve_scratch_for_fewer(context_, most.tokens, [&](const BertTensors& t, std::int64_t tokens) {
    run_whole(t, tokens, std::min(most.sequences, tokens));
  });
}

// A GPU's side of the host: pinned memory for batches and results, and a stream to capture on.
void BertSession::take_host_memory() {
  Memory& m = *memory_;
  const BertTensors& t = m.planned->tensors();
  const std::size_t integers = t.batch.bytes(),
                    results = std::max({t.activations.pooled.back().bytes(), t.activations.logits.bytes(),
                                        t.activations.hidden.bytes()}),
                    before_results = kAlignment + round_up(integers);
  m.host_memory = Buffer::pinned(before_results + results, "pinned host memory");
  m.odd = new (m.host_memory.data()) std::int64_t(-1);
  m.host_batch = Tensor(m.host_memory.data() + kAlignment, DType::i32, t.batch.shape);
  m.host_result = m.host_memory.data() + before_results;
  m.own_stream = Stream(context_.device().device);
  m.in_buckets = bert_layers_are_exact(
      context_, config(), weights_->parameters(),
      narrow(t, options_.max_batch_tokens, options_.max_batch_sequences, options_.batch_invariant));
}

BertSession::~BertSession() = default;

const MemoryPlan& BertSession::plan() const {
  return memory_->planned->plan();
}
std::int64_t BertSession::max_length() const {
  return pooling_.max_length > 0 ? std::min(pooling_.max_length, config().max_length())
                                 : config().max_length();
}
std::int64_t BertSession::vector_size() const {
  return memory_->planned->tensors().activations.pooled.back().shape[1];
}
std::int64_t BertSession::labels() const {
  return weights_->has_classifier() ? config().labels : 0;
}

void BertSession::embed(const PackedBatch& batch, std::span<float> vectors, const BertAttention& attention) {
  forward(batch, Result::vectors, vectors, attention);
}
void BertSession::classify(const PackedBatch& batch, std::span<float> logits,
                           const BertAttention& attention) {
  forward(batch, Result::logits, logits, attention);
}
void BertSession::hidden(const PackedBatch& batch, std::span<float> states, const BertAttention& attention) {
  forward(batch, Result::hidden, states, attention);
}

void BertSession::check(const PackedBatch& batch, Result result, const BertAttention& attention) const {
  if (result == Result::logits && labels() == 0) {
    throw Error("has no classification head", "the model", "use a folder of a cross-encoder or a classifier");
  }
  check_batch(config(), {.tokens = options_.max_batch_tokens, .sequences = options_.max_batch_sequences},
              batch);
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    longest = std::max<std::int64_t>(longest, batch.cu_seqlens[s + 1] - batch.cu_seqlens[s]);
  }
  check_attention(config(), weights_->dtype(), weights_->device(), batch.sequences(), longest, attention);
}

void BertSession::run(const Call& call) {
  Memory& m = *memory_;
  const BertParameters& p = weights_->parameters();
  const auto work = [&] {
    BertActivations a = narrow(m.planned->tensors(), call.rows, call.sequences, options_.batch_invariant);
    a.bias = m.attention.bias;
    a.visible = m.visible;
    a.temperature = m.attention.temperature;
    if (call.from == From::tokens) bert_embed(context_, config(), p, a);
    bert_layers(context_, config(), p, a);
    if (call.result == Result::vectors) bert_pool(context_, pooling_, p, a);
    if (call.result == Result::logits) bert_classify(context_, p, a);
  };
  const bool replayed = Captured::possible(context_) && !m.attention.changes_anything();
  replayed ? m.replay(call).captured.run(context_, work) : work();
}

void BertSession::repeat() {
  run(memory_->last);
}

Tensor BertSession::states(std::int64_t tokens) const {
  return memory_->planned->tensors().activations.hidden.slice(0, 0, tokens);
}

Tensor BertSession::result_of(const BertActivations& a, Result result) const {
  if (result == Result::hidden) return a.hidden;
  return result == Result::vectors ? a.pooled.back() : a.logits;
}

Tensor BertSession::launch(const PackedBatch& batch, Result result, From from,
                           const BertAttention& attention) {
  const BertAttention& used = or_default(attention);
  check(batch, result, used);
  return start(batch, result, from, used);
}

void BertSession::wait_for_copies() {
  if (memory_->copied) memory_->copied->synchronize();
}

void BertSession::check_mask() {
  Memory& m = *memory_;
  wait_for_copies();
  if (m.odd) ops::require_no_odd(kMaskArgument, m.mask_shape, std::exchange(*m.odd, -1));
}

// The place where kernels report an odd value.
Tensor BertSession::flag() {
  Memory& m = *memory_;
  const Device device = context_.device().device;
  if (!m.flag.data()) m.flag = Buffer(sizeof(std::int64_t), device, "the flag of a mask");
  return {m.flag.data(), DType::i64, {1}, device};
}

// On a CPU, throws Error for an odd value. On a GPU, check_mask() does.
void BertSession::report(const Tensor& flag, const Shape& mask) {
  Memory& m = *memory_;
  if (flag.device.kind == DeviceKind::cpu) {
    return ops::require_no_odd(kMaskArgument, mask, *flag.as<std::int64_t>());
  }
  m.mask_shape = mask;
  copy(Tensor(m.odd, DType::i64, {1}), flag, context_.stream());
  if (!m.copied) m.copied.emplace(context_.device().device);
  m.copied->record(context_.stream());
}

void BertSession::layers(const Tensor& states, const Tensor& mask, const Tensor& out) {
  Memory& m = *memory_;
  const bool gpu = context_.device().device.kind == DeviceKind::cuda;
  ops::require(states.shape.rank() == 3 && states.shape[2] == config().hidden, "states",
               fmt::format("must be (B, S, {})", config().hidden));
  const std::int64_t B = states.shape[0], S = states.shape[1], H = states.shape[2];
  if (ops::mask_form(kMaskArgument, mask.shape, B, S) == ops::MaskForm::pairs) {
    throw Error(fmt::format("has shape {}", mask.shape.to_string()), kMaskArgument,
                fmt::format("give ({}, {}) for the tokens", B, S));
  }
  if (B * S > options_.max_batch_tokens || B > options_.max_batch_sequences || S > config().max_length()) {
    throw Error(fmt::format("has shape {}", states.shape.to_string()), "states",
                fmt::format("give at most {} tokens in {} sequences of {}", options_.max_batch_tokens,
                            options_.max_batch_sequences, config().max_length()));
  }
  check_mask();
  std::int64_t rows = m.in_buckets ? token_bucket(B * S, options_.max_batch_tokens) : B * S;
  const BertActivations a = narrow(m.planned->tensors(), rows, B, options_.batch_invariant);
  const Tensor indices = a.tokens.slice(0, 0, B * S), packed = a.hidden.slice(0, 0, B * S), odd = flag();
  ops::padding_lengths(context_, {.mask = mask, .cu_seqlens = a.cu_seqlens, .indices = indices, .odd = odd});
  report(odd, mask.shape);
  copy(a.rows, a.cu_seqlens.slice(0, B, 1), context_.stream());
  ops::padding_pack(context_, {.x = states.view({B * S, H}), .indices = indices, .out = packed});
  if (!gpu) rows = *a.rows.as<std::int32_t>();
  m.attention = {};
  m.visible = {};
  m.last = {.rows = rows, .sequences = B, .result = Result::hidden, .from = From::states};
  run(m.last);
  ops::padding_unpack(context_, {.x = packed, .cu_seqlens = a.cu_seqlens, .indices = indices, .out = out});
}

// Turns a mask into bytes for the attention, in rows that begin at multiples of 16 bytes.
void BertSession::read_mask(const Tensor& mask) {
  Memory& m = *memory_;
  const Device device = context_.device().device;
  const std::int64_t S = mask.shape[0], L = mask.shape[3], row = round_up(L, 16);
  const auto bytes = static_cast<std::size_t>(S * L * row);
  if (m.mask_memory.bytes() < bytes) {
    context_.synchronize();  // earlier work may read the old memory
    m.mask_memory = Buffer(bytes, device, "an attention mask");
  }
  m.visible = Tensor(m.mask_memory.data(), DType::u8, {S, L, row}, device).slice(2, 0, L);
  const Tensor odd = flag();
  ops::padding_pairs(context_, {.mask = mask.select(1, 0), .out = m.visible, .odd = odd});
  report(odd, mask.shape);
}

Tensor BertSession::start(const PackedBatch& batch, Result result, From from,
                          const BertAttention& attention) {
  Memory& m = *memory_;
  const bool gpu = context_.device().device.kind == DeviceKind::cuda;
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t S = batch.sequences();
  // Every tensor has the batch's own rows, unless launches are for a bucket of batches.
  const bool in_buckets = m.in_buckets && !attention.changes_anything();
  const std::int64_t rows = in_buckets ? token_bucket(N, options_.max_batch_tokens) : N;
  const std::int64_t sequences = in_buckets ? sequence_bucket(S, options_.max_batch_sequences) : S;
  check_mask();
  wait_for_copies();  // write_batch() overwrites the last batch
  BertTensors host_view = m.planned->tensors();
  host_view.batch = m.host_batch;
  write_batch(config(), batch, narrow(host_view, rows, sequences, false));
  m.last = {.rows = rows, .sequences = sequences, .result = result, .from = from};
  m.attention = attention;
  m.visible = {};
  if (attention.mask && N > 0) read_mask(attention.mask);
  if (gpu) {
    const std::int64_t integers = batch_integers(rows, sequences);
    copy(m.planned->tensors().batch.slice(0, 0, integers), m.host_batch.slice(0, 0, integers),
         context_.stream());
    if (!m.copied) m.copied.emplace(context_.device().device);
    m.copied->record(context_.stream());
  }
  run(m.last);
  const BertActivations a = narrow(m.planned->tensors(), rows, sequences, options_.batch_invariant);
  if (in_buckets) {
    std::optional<bool>& exact = m.replay(m.last).exact;
    if (!exact) exact = bert_layers_are_exact(context_, config(), weights_->parameters(), a);
    if (!*exact) wasted_tokens_ += rows - N;
  }
  return result_of(a, result).slice(0, 0, result == Result::hidden ? N : S);
}

void BertSession::forward(const PackedBatch& batch, Result result, std::span<float> out,
                          const BertAttention& attention) {
  const BertAttention& used = or_default(attention);
  check(batch, result, used);
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t results = result == Result::hidden ? N : batch.sequences();
  const std::int64_t columns = result_of(memory_->planned->tensors().activations, result).shape[1];
  if (static_cast<std::int64_t>(out.size()) != results * columns) {
    throw Error(fmt::format("has room for {} numbers", out.size()), "the encoder's output",
                fmt::format("give {} × {}", results, columns));
  }
  Tensor host = start(batch, result, From::tokens, used);
  if (host.device.kind == DeviceKind::cuda) {
    const Tensor from = host;
    host = Tensor(memory_->host_result, from.dtype, from.shape);
    copy(host, from, context_.stream());
    context_.synchronize();
    check_mask();
  }
  const std::int64_t bad = read_rows(host, results, out);
  if (bad < 0) return;
  std::int64_t text = result == Result::hidden ? 0 : bad;
  while (result == Result::hidden && batch.cu_seqlens[static_cast<std::size_t>(text) + 1] <= bad) ++text;
  throw Error("has values that are not finite", fmt::format("text {} of the batch", text),
              "use fp32, or check the model's weights");
}

}  // namespace warpwright
