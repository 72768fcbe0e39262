#include "infer/decoding_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.hpp"
#include "ops/sampling/sampling.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kBatchTokens = 1024;

std::int64_t divided_up(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

// The rows of the graph for n sequences: few sizes, none much larger than n.
std::int64_t bucket_of(std::int64_t n) {
  const std::int64_t step = n <= 2 ? 1 : n <= 16 ? 4 : n <= 64 ? 8 : n <= 256 ? 32 : 64;
  return divided_up(n, step) * step;
}

// Words of 32 bits, a bit for each token.
std::int64_t words_of(const Decoder& decoder) {
  return divided_up(decoder.vocab(), 32);
}

void check_prompt(std::span<const std::int32_t> prompt, const Decoder& decoder, std::int64_t context) {
  constexpr const char* kWhere = "prompt";
  if (prompt.empty()) throw UsageError("has no tokens", kWhere, "give at least one");
  if (static_cast<std::int64_t>(prompt.size()) > context) {
    throw UsageError(fmt::format("has {} tokens, the context is {}", prompt.size(), context), kWhere,
                     context < decoder.context() ? "shorten it, or give a longer context" : "shorten it");
  }
  const auto wrong =
      std::ranges::find_if(prompt, [&](std::int32_t token) { return token < 0 || token >= decoder.vocab(); });
  if (wrong == prompt.end()) return;
  throw UsageError(fmt::format("has the token {}, the vocabulary has ids below {}", *wrong, decoder.vocab()),
                   kWhere, "encode it with the model's tokenizer");
}

}  // namespace

std::int64_t context_for(const Decoder& decoder, std::int64_t tokens) {
  constexpr std::uint64_t kLeast = 1024;
  if (tokens >= decoder.context()) return decoder.context();
  const std::uint64_t enough = std::bit_ceil(std::max(kLeast, static_cast<std::uint64_t>(tokens)));
  return std::min(decoder.context(), static_cast<std::int64_t>(enough));
}

struct DecodingEngine::Sizes {
  std::int64_t context, sequences, blocks, blocks_each, batch;
  bool batch_invariant;
};

DecodingEngine::Sizes DecodingEngine::sizes_of(const Decoder& decoder, const DecodingOptions& o) {
  constexpr std::int64_t kMost = 1 << 20;
  if (o.sequences < 1 || o.sequences > kMost) {
    throw UsageError(fmt::format("is {}, must be at least 1 and at most {}", o.sequences, kMost),
                     "number of sequences", "change it");
  }
  if (o.context > decoder.context()) {
    throw UsageError(fmt::format("is {}, the model's is {}", o.context, decoder.context()), "context",
                     "make it smaller");
  }
  Sizes s{};
  s.context = o.context > 0 ? o.context : decoder.context();
  s.sequences = o.sequences;
  s.blocks_each = divided_up(s.context, kBlockSize);
  const std::int64_t cache = o.cache_tokens > 0 ? o.cache_tokens : s.sequences * s.blocks_each * kBlockSize;
  if (cache > kMostCacheTokens) {
    throw UsageError(fmt::format("holds {} tokens, must hold at most {}", cache, kMostCacheTokens), "cache",
                     "make it smaller");
  }
  s.blocks = divided_up(cache, kBlockSize);
  if (s.blocks < s.blocks_each) {
    throw UsageError(fmt::format("holds {} tokens, one sequence may have {}", o.cache_tokens, s.context),
                     "cache", "make it larger");
  }
  s.batch = std::max(s.sequences,
                     std::min(o.batch_tokens > 0 ? o.batch_tokens : kBatchTokens, s.sequences * s.context));
  s.batch_invariant = o.batch_invariant;
  return s;
}

struct DecodingEngine::Tensors {
  Tensor numbers;  // the memory of all that the host writes for a pass, but the tokens and `sampling.seen`
  DecoderBatch batch;  // a pass overwrites its tokens with those that it draws
  CachePlaces places;
  std::unique_ptr<CachedPass> pass;
  Tensor logits;  // (sequences, Vp)
  ops::Sampling sampling;
};

// The numbers of a pass as the host writes them, and the drawn tokens as it reads them. There are two such
// views, because the next pass is given to the device before the host has seen what this one draws.
struct DecodingEngine::HostViews {
  HostViews(const Tensors& t, Device on)
      : numbers(t.numbers, HostMemory::pinned),
        drawn(t.sampling.token, HostMemory::pinned),
        device(static_cast<const std::byte*>(t.numbers.data)),
        done(on) {}

  // Of a tensor in `numbers`.
  template <class T>
  T* of(const Tensor& tensor) const {
    const auto offset = static_cast<const std::byte*>(tensor.data) - device;
    return reinterpret_cast<T*>(static_cast<std::byte*>(numbers.tensor().data) + offset);
  }

  HostView numbers, drawn;
  const std::byte* device;  // numbers
  Event done;               // the pass has ended
};

struct DecodingEngine::Sequence {
  Id id = 0;
  GenerationOptions options;
  std::vector<std::int32_t> tokens;  // of the prompt and since
  std::size_t begin = 0;             // the first one at which the model still looks
  std::int64_t cached = 0;           // from there on, in the cache
  std::vector<std::int32_t> blocks;
  std::size_t offered = 0;  // of these blocks
  bool offers = true;
  std::int64_t drawn = 0;
  std::vector<std::uint32_t> seen;  // bits of its tokens, if they have a penalty

  void see(std::int32_t token) {
    if (!seen.empty()) seen[static_cast<std::size_t>(token / 32)] |= 1u << (token % 32);
  }
  std::span<const std::int32_t> window() const { return std::span(tokens).subspan(begin); }
  std::int64_t pending() const { return static_cast<std::int64_t>(window().size()) - cached; }
};

struct DecodingEngine::Part {
  Sequence* sequence;  // null: it has ended since, or was removed
  std::int64_t tokens;
};

// A pass whose drawn tokens the host has not seen yet.
struct DecodingEngine::Pass {
  std::vector<Part> parts;
  HostViews* host;
};

DecodingEngine::Tensors DecodingEngine::allocate(const Decoder& decoder, DType dtype,
                                                 const DecoderParameters& parameters, const Sizes& sizes,
                                                 Allocator& allocator) {
  const std::int64_t N = sizes.batch, S = sizes.sequences;
  const std::int64_t integers = 2 * N + 3 * S + 1 + S * sizes.blocks_each;
  Tensors t;
  t.numbers = allocator.allocate("numbers", DType::i64, {6 * S + divided_up(integers, 2)}, Category::batch);
  std::int64_t used = 0;  // in bytes
  const auto next = [&](DType type, std::int64_t count) {
    Tensor part(static_cast<std::byte*>(t.numbers.data) + used, type, {count}, t.numbers.device);
    used += static_cast<std::int64_t>(part.bytes());
    return part;
  };
  t.sampling = {.logits = {},
                .temperature = next(DType::f64, S),
                .top_k = next(DType::i64, S),
                .top_p = next(DType::f64, S),
                .min_p = next(DType::f64, S),
                .repetition_penalty = next(DType::f64, S),
                .random = next(DType::i64, S),
                .seen = allocator.allocate("seen", DType::i32, {S, words_of(decoder)}, Category::batch),
                .token = allocator.allocate("drawn", DType::i32, {S}, Category::batch)};
  t.batch = {.tokens = allocator.allocate("tokens", DType::i32, {N}, Category::batch),
             .positions = next(DType::i32, N),
             .cu_seqlens = next(DType::i32, S + 1),
             .max_seqlen = std::min(N, sizes.context)};
  t.places.slots = next(DType::i32, N);
  t.places.block_table = next(DType::i32, S * sizes.blocks_each).view({S, sizes.blocks_each});
  t.places.lengths = next(DType::i32, S);
  t.places.last_rows = next(DType::i32, S);
  t.pass = decoder.allocate_cached(parameters, t.batch, t.places,
                                   {.dtype = dtype,
                                    .blocks = sizes.blocks,
                                    .block_size = kBlockSize,
                                    .positions = sizes.context,
                                    .batch_invariant = sizes.batch_invariant},
                                   allocator);
  t.logits = decoder.allocate_logits(S, dtype, allocator);
  t.sampling.logits = t.logits.slice(1, 0, decoder.vocab());
  t.sampling.next_input = t.batch.tokens.slice(0, 0, S);
  return t;
}

void DecodingEngine::run(Context& context, const Tensors& t, std::int64_t n, std::int64_t S,
                         CachedPass::Sees sees) {
  t.pass->head(context, t.pass->forward(context, n, S, sees), t.logits.slice(0, 0, S));
  ops::Sampling rows = t.sampling;
  rows.visit([&](std::string_view, Tensor& tensor, Access) { tensor = tensor.slice(0, 0, S); });
  ops::sample(context, rows);
}

Planned<DecodingEngine::Tensors> DecodingEngine::plan_passes(Context& context, const Sizes& sizes,
                                                             std::function<Tensors(Allocator&)> allocate) {
  using Sees = CachedPass::Sees;
  Planned<Tensors> planned(context, std::move(allocate), [&](const Tensors& t) {
    run(context, t, sizes.batch, sizes.sequences, Sees::cache);
  });
  for (const Sees sees : {Sees::cache, Sees::batch}) {
    const auto on_rows = [&](const Tensors& t, std::int64_t rows) {
      run(context, t, rows, std::min(rows, sizes.sequences), sees);
    };
    planned.reserve_scratch_for(context, [&](const Tensors& t) { on_rows(t, sizes.batch); });
    // Products of fewer rows are other kernels, which may need more scratch.
    for (std::int64_t rows = 1; rows < sizes.batch; rows += std::min<std::int64_t>(rows, 32)) {
      planned.reserve_scratch_for(context, [&](const Tensors& t) { on_rows(t, rows); });
    }
    // So may attention in a graph of fewer sequences, which divides the keys of each among more blocks.
    for (std::int64_t n = 1; n <= sizes.sequences; n = bucket_of(n) + 1) {
      const std::int64_t rows = std::min(bucket_of(n), sizes.sequences);
      planned.reserve_scratch_for(context, [&](const Tensors& t) { on_rows(t, rows); });
    }
  }
  return planned;
}

MemoryPlan DecodingEngine::planned(Context& context, const DecoderWeights& weights,
                                   const DecodingOptions& options) {
  const Sizes sizes = sizes_of(*weights.decoder, options);
  const auto allocate = [&](Allocator& allocator) {
    return DecodingEngine::allocate(*weights.decoder, weights.dtype, weights.parameters, sizes, allocator);
  };
  return plan_passes(context, sizes, allocate).plan();
}

MemoryPlan DecodingEngine::planned(Context& context, const Decoder& decoder, DType dtype,
                                   const DecodingOptions& options) {
  const Sizes sizes = sizes_of(decoder, options);
  const auto allocate = [&](Allocator& allocator) {
    const DecoderParameters parameters =
        decoder.allocate_parameters(dtype, Category::parameters, "", allocator);
    return DecodingEngine::allocate(decoder, dtype, parameters, sizes, allocator);
  };
  MemoryPlan plan = plan_passes(context, sizes, allocate).plan();
  plan.arena_bytes[static_cast<int>(Category::parameters)] = 0;
  return plan;
}

DecodingEngine::DecodingEngine(Context& context, DecoderWeights weights, const DecodingOptions& options)
    : context_(context),
      weights_(std::move(weights)),
      sizes_(std::make_unique<Sizes>(sizes_of(*weights_.decoder, options))),
      blocks_(sizes_->blocks, kBlockSize) {
  const auto allocate = [this](Allocator& allocator) {
    return DecodingEngine::allocate(*weights_.decoder, weights_.dtype, weights_.parameters, *sizes_,
                                    allocator);
  };
  planned_ = std::make_unique<Planned<Tensors>>(plan_passes(context, *sizes_, allocate));
  planned_->take(context);
  planned_->tensors().pass->fill_constants(context.stream());
  const Tensors& t = planned_->tensors();
  for (auto& host : host_) host = std::make_unique<HostViews>(t, context.device().device);
  host_tokens_ = HostView(t.batch.tokens, HostMemory::pinned);
  host_seen_ = HostView(t.sampling.seen, HostMemory::pinned);
  own_stream_ = Stream(context_.device().device);
}

DecodingEngine::~DecodingEngine() {
  settle();
}

const MemoryPlan& DecodingEngine::plan() const {
  return planned_->plan();
}

DecodingEngine::Id DecodingEngine::add(std::span<const std::int32_t> prompt,
                                       const GenerationOptions& options) {
  check_prompt(prompt, *weights_.decoder, sizes_->context);
  options.sampling.validate();
  if (options.max_tokens < 1) {
    throw UsageError(fmt::format("is {}, must be at least 1", options.max_tokens), "number of tokens",
                     "ask for one");
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->options = options;
  sequence->tokens.assign(prompt.begin(), prompt.end());
  if (options.sampling.repetition_penalty != 1) {
    sequence->seen.resize(static_cast<std::size_t>(words_of(*weights_.decoder)));
    for (const std::int32_t token : prompt) sequence->see(token);
  }
  waiting_.push_back(std::move(sequence));
  return waiting_.back()->id;
}

void DecodingEngine::remove(Id id) {
  for (Sequences* list : {&running_, &waiting_}) {
    const auto found = std::ranges::find(*list, id, [](const auto& s) { return s->id; });
    if (found == list->end()) continue;
    if (ahead_) {
      for (Part& part : ahead_->parts) {
        if (part.sequence == found->get()) part.sequence = nullptr;
      }
    }
    blocks_.release((*found)->blocks);
    list->erase(found);
    return;
  }
}

void DecodingEngine::forget_beginnings() {
  settle();
  blocks_.withdraw_offers();
}

// The oldest waiting sequences run as far as there are places and room in the cache for what they have.
void DecodingEngine::admit() {
  std::int64_t promised = 0;  // blocks that the sequences admitted here will take
  while (!waiting_.empty() && running() < sizes_->sequences) {
    Sequence& s = *waiting_.front();
    const std::span<const std::int32_t> window = s.window();
    s.blocks = blocks_.share(window.first(window.size() - 1));  // the last one must run: its logits count
    const std::int64_t missing = divided_up(static_cast<std::int64_t>(window.size()), kBlockSize) -
                                 static_cast<std::int64_t>(s.blocks.size());
    if (promised + missing > blocks_.available() || is_computed_by_another(s)) {
      blocks_.release(std::exchange(s.blocks, {}));
      return;
    }
    promised += missing;
    s.offered = s.blocks.size();
    s.offers = true;
    s.cached = static_cast<std::int64_t>(s.blocks.size()) * kBlockSize;
    const auto place = std::ranges::upper_bound(running_, s.id, {}, [](const auto& r) { return r->id; });
    running_.insert(place, std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// True if a running sequence is about to fill the block that this one needs next.
bool DecodingEngine::is_computed_by_another(const Sequence& s) const {
  const std::size_t end = (s.blocks.size() + 1) * kBlockSize;
  const std::span<const std::int32_t> window = s.window();
  if (window.size() <= end) return false;
  return std::ranges::any_of(running_, [&](const auto& other) {
    const std::span<const std::int32_t> theirs = other->window();
    return other->offers && other->cached < static_cast<std::int64_t>(end) && theirs.size() >= end &&
           std::ranges::equal(theirs.first(end), window.first(end));
  });
}

// Takes blocks for more tokens of a running sequence; false if there are too few. It keeps what it has.
bool DecodingEngine::take_blocks(Sequence& s, std::int64_t tokens) {
  const auto wanted = static_cast<std::size_t>(divided_up(s.cached + tokens, kBlockSize));
  while (s.blocks.size() < wanted) {
    const std::int32_t block = blocks_.take();
    if (block == CacheBlocks::kNone) return false;
    s.blocks.push_back(block);
  }
  return true;
}

// Takes them from the newest sequences, which then wait, if there are too few; false if this one waits.
bool DecodingEngine::make_room(Sequence& s, std::int64_t tokens) {
  while (!take_blocks(s, tokens)) {
    const bool is_newest = running_.back().get() == &s;
    suspend_newest();
    if (is_newest) return false;
  }
  return true;
}

void DecodingEngine::suspend_newest() {
  Sequence& s = *running_.back();
  forget_cache(s);
  const auto place = std::ranges::upper_bound(waiting_, s.id, {}, [](const auto& w) { return w->id; });
  waiting_.insert(place, std::move(running_.back()));
  running_.pop_back();
}

void DecodingEngine::forget_cache(Sequence& s) {
  blocks_.release(std::exchange(s.blocks, {}));
  s.cached = 0;
  s.offered = 0;
  s.offers = true;
}

// Tokens that the cache lacks: those of prompts, or the last one of each sequence.
std::vector<DecodingEngine::Part> DecodingEngine::next_parts(bool of_prompts) {
  std::vector<Part> parts;
  std::int64_t room = sizes_->batch;
  for (std::size_t i = 0; i < running_.size() && room > 0; ++i) {
    Sequence& s = *running_[i];
    if (of_prompts != (s.pending() > 1)) continue;
    const std::int64_t tokens = std::min(s.pending(), room);
    if (!make_room(s, tokens)) break;
    parts.push_back({&s, tokens});
    room -= tokens;
  }
  return parts;
}

// Writes the numbers of the parts, and those of S sequences without tokens. ahead: each sequence has a token
// that the host does not know yet.
void DecodingEngine::write(const HostViews& host, const std::vector<Part>& parts, std::int64_t n,
                           std::int64_t S, bool ahead) {
  const Tensors& t = planned_->tensors();
  const auto integers = [&](const Tensor& tensor) { return host.of<std::int32_t>(tensor); };
  auto* const tokens = host_tokens_.tensor().as<std::int32_t>();
  std::int32_t *const positions = integers(t.batch.positions), *const bounds = integers(t.batch.cu_seqlens);
  std::int32_t *const slots = integers(t.places.slots), *const table = integers(t.places.block_table),
                      *const lengths = integers(t.places.lengths),
                      *const last_rows = integers(t.places.last_rows);
  std::int32_t row = 0;
  bounds[0] = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(S); ++i) {
    if (i < parts.size()) {
      const Sequence& s = *parts[i].sequence;
      const std::int64_t first = s.cached + (ahead ? 1 : 0);
      for (std::int64_t p = first; p < first + parts[i].tokens; ++p, ++row) {
        if (!ahead) tokens[row] = s.window()[static_cast<std::size_t>(p)];
        positions[row] = static_cast<std::int32_t>(p);
        slots[row] = static_cast<std::int32_t>(
            s.blocks[static_cast<std::size_t>(p / kBlockSize)] * kBlockSize + p % kBlockSize);
      }
      std::ranges::copy(s.blocks, table + static_cast<std::int64_t>(i) * sizes_->blocks_each);
      lengths[i] = static_cast<std::int32_t>(first + parts[i].tokens);
    } else {
      lengths[i] = 0;
    }
    bounds[i + 1] = row;
    last_rows[i] = i < parts.size() ? row - 1 : -1;
  }
  for (; row < n; ++row) {
    if (!ahead) tokens[row] = 0;
    positions[row] = 0;
    slots[row] = -1;
  }
  write_sampling(host, parts, S, ahead);
}

// Rows without a sequence take their largest logit, which nobody reads.
void DecodingEngine::write_sampling(const HostViews& host, const std::vector<Part>& parts, std::int64_t S,
                                    bool ahead) {
  const ops::Sampling& to = planned_->tensors().sampling;
  bool penalties = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(S); ++i) {
    const Sequence* const sequence = i < parts.size() ? parts[i].sequence : nullptr;
    const SamplingOptions o = sequence ? sequence->options.sampling : SamplingOptions{.temperature = 0};
    const auto position = static_cast<std::uint64_t>(sequence ? sequence->drawn + (ahead ? 1 : 0) : 0);
    host.of<double>(to.temperature)[i] = o.temperature;
    host.of<std::int64_t>(to.top_k)[i] = o.top_k;
    host.of<double>(to.top_p)[i] = o.top_p;
    host.of<double>(to.min_p)[i] = o.min_p;
    host.of<double>(to.repetition_penalty)[i] = o.repetition_penalty;
    host.of<std::int64_t>(to.random)[i] = static_cast<std::int64_t>(o.random_bits(position));
    if (!sequence || sequence->seen.empty()) continue;
    penalties = true;
    auto* const words = static_cast<std::uint32_t*>(host_seen_.tensor().data);
    std::ranges::copy(sequence->seen, words + static_cast<std::int64_t>(i) * words_of(*weights_.decoder));
  }
  if (penalties) host_seen_.upload(context_.stream());
}

// Gives the device what has been written, and brings back the tokens that it draws.
void DecodingEngine::run_pass(const HostViews& host, std::int64_t n, std::int64_t S, CachedPass::Sees sees,
                              bool ahead) {
  host.numbers.upload(context_.stream());
  if (!ahead) host_tokens_.upload(context_.stream());
  run(context_, planned_->tensors(), n, S, sees);
  host.drawn.download(context_.stream());
}

DecodingEngine::Pass DecodingEngine::run_prompts(std::vector<Part> parts) {
  std::int64_t n = 0;
  bool are_whole = true;
  for (const Part& part : parts) {
    n += part.tokens;
    are_whole = are_whole && part.sequence->cached == 0 && part.sequence->pending() == part.tokens;
  }
  const auto S = static_cast<std::int64_t>(parts.size());
  HostViews& host = *host_[0];
  write(host, parts, n, S, false);
  // The two ways round differently, and another sequence may decide whether this one's prompt is whole.
  const bool sees_batch = are_whole && !sizes_->batch_invariant;
  run_pass(host, n, S, sees_batch ? CachedPass::Sees::batch : CachedPass::Sees::cache, false);
  host.done.record(context_.stream());
  return {std::move(parts), &host};
}

DecodingEngine::Pass DecodingEngine::run_tokens(std::vector<Part> parts, HostViews& host, bool ahead) {
  auto n = static_cast<std::int64_t>(parts.size());
  // On a GPU, passes have the sizes for which scratch is reserved.
  if (context_.device().device.kind == DeviceKind::cuda) n = std::min(bucket_of(n), sizes_->sequences);
  write(host, parts, n, n, ahead);
  const GraphKey key{n, ahead, &host};
  graphs_.try_emplace(key, own_stream_).first->second.run(context_, [&] {
    run_pass(host, n, n, CachedPass::Sees::cache, ahead);
  });
  host.done.record(context_.stream());
  return {std::move(parts), &host};
}

// True if the pass after this one may be given to the device before the host knows what this one draws. It
// runs one more token of each of the same sequences. If one of them turns out to have ended, its row of that
// pass is lost.
bool DecodingEngine::may_run_ahead(const Pass& pass) const {
  const bool none_waits = waiting_.empty() || running() == sizes_->sequences;
  if (!Captured::possible(context_) || on_logits || !none_waits) return false;
  if (pass.parts.size() != running_.size()) return false;
  const auto is_ready = [&](const Part& part) {
    const Sequence* const s = part.sequence;
    return s && s->pending() == 1 && s->seen.empty() && s->drawn + 1 < s->options.max_tokens &&
           static_cast<std::int64_t>(s->window().size()) < sizes_->context;
  };
  return std::ranges::all_of(pass.parts, is_ready);
}

void DecodingEngine::run_ahead(const Pass& pass) {
  if (!may_run_ahead(pass)) return;
  for (const Part& part : pass.parts) {
    if (!take_blocks(*part.sequence, 2)) return;
  }
  HostViews& other = pass.host == host_[0].get() ? *host_[1] : *host_[0];
  ahead_ = std::make_unique<Pass>(run_tokens(pass.parts, other, true));
}

// Waits for what the device runs, and forgets the pass ahead. If the device has failed, the next call says
// so.
void DecodingEngine::settle() noexcept {
  ahead_.reset();
  try {
    context_.synchronize();
  } catch (const Error&) {
  }
}

// Blocks that are full now may be shared.
void DecodingEngine::offer_full_blocks(Sequence& s) {
  while (s.offers && static_cast<std::int64_t>(s.offered + 1) * kBlockSize <= s.cached) {
    const std::int32_t before = s.offered == 0 ? CacheBlocks::kNone : s.blocks[s.offered - 1];
    s.offers =
        blocks_.offer(s.blocks[s.offered], before, s.window().subspan(s.offered * kBlockSize, kBlockSize));
    if (s.offers) ++s.offered;
  }
}

// The token that was drawn after a sequence, which takes it.
DecodingEngine::Drawn DecodingEngine::drawn_after(Sequence& s, std::int32_t token) {
  Drawn drawn;
  drawn.sequence = s.id;
  drawn.token = token;
  if (token < 0) {
    drawn.end = End::error;
    drawn.error =
        Error("a logit is not finite", fmt::format("position {}", s.drawn), "check the model's weights");
    return drawn;
  }
  if (std::ranges::find(s.options.end_of_text, token) != s.options.end_of_text.end()) {
    drawn.end = End::end_of_text;
    return drawn;
  }
  s.tokens.push_back(token);
  s.see(token);
  if (++s.drawn == s.options.max_tokens) drawn.end = End::length;
  if (static_cast<std::int64_t>(s.window().size()) > sizes_->context) {
    s.begin = s.tokens.size() - static_cast<std::size_t>(sizes_->context / 2 + 1);
    forget_cache(s);
  }
  return drawn;
}

// The pass ahead, unless all of its sequences have ended; otherwise a new one, or none.
std::optional<DecodingEngine::Pass> DecodingEngine::next_pass() {
  const auto is_there = [](const Part& part) { return part.sequence != nullptr; };
  if (ahead_ && std::ranges::any_of(ahead_->parts, is_there)) {
    return std::move(*std::exchange(ahead_, nullptr));
  }
  if (ahead_) settle();
  admit();
  // Passes over prompts and over tokens take turns, so that neither kind waits for a long run of the other.
  bool of_prompts = !ran_prompts_;
  std::vector<Part> parts = next_parts(of_prompts);
  if (parts.empty()) parts = next_parts(of_prompts = !of_prompts);
  if (parts.empty()) return std::nullopt;
  ran_prompts_ = of_prompts;
  return of_prompts ? run_prompts(std::move(parts)) : run_tokens(std::move(parts), *host_[0], false);
}

std::vector<DecodingEngine::Drawn> DecodingEngine::step() {
  const std::optional<Pass> pass = next_pass();
  if (!pass) return {};
  try {
    run_ahead(*pass);
    return draw_after(*pass);
  } catch (...) {
    settle();  // the pass ahead would follow tokens that no sequence has
    throw;
  }
}

// Hands the logits of complete sequences to on_logits, in fp32.
void DecodingEngine::report_logits(const std::vector<Part>& parts) {
  const Tensor& logits = planned_->tensors().logits;
  if (!host_logits_) host_logits_.emplace(logits, HostMemory::pinned);
  const Tensor& host = host_logits_->tensor();
  const auto rows = static_cast<std::int64_t>(parts.size());
  if (host.data != logits.data) {
    copy(host.slice(0, 0, rows), logits.slice(0, 0, rows), context_.stream());
    context_.synchronize();
  }
  std::vector<float> row(static_cast<std::size_t>(weights_.decoder->vocab()));
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (!parts[r].sequence || parts[r].sequence->pending() != parts[r].tokens) continue;
    visit_dtype(host.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* const from = host.as<T>() + static_cast<std::int64_t>(r) * host.shape[1];
      std::transform(from, from + row.size(), row.begin(), [](T x) { return static_cast<float>(x); });
    });
    on_logits(parts[r].sequence->id, row);
  }
}

// The cache now has the parts, and each complete sequence a new token.
std::vector<DecodingEngine::Drawn> DecodingEngine::draw_after(const Pass& pass) {
  if (on_logits) report_logits(pass.parts);
  pass.host->done.synchronize();
  std::vector<Drawn> all;
  for (std::size_t r = 0; r < pass.parts.size(); ++r) {
    const Part& part = pass.parts[r];
    if (!part.sequence) continue;
    Sequence& s = *part.sequence;
    const bool complete = s.pending() == part.tokens;
    s.cached += part.tokens;
    offer_full_blocks(s);
    if (!complete) continue;
    all.push_back(drawn_after(s, pass.host->drawn.tensor().as<std::int32_t>()[r]));
    if (all.back().end != End::none) remove(s.id);
  }
  return all;
}

void generate(DecodingEngine& engine, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t token)>& emit) {
  if (options.max_tokens == 0) return;
  struct Sequence {  // removes the sequence, whatever ends this function
    DecodingEngine& engine;
    DecodingEngine::Id id;
    ~Sequence() { engine.remove(id); }
  };
  const Sequence sequence{engine, engine.add(prompt, options)};
  while (!engine.idle()) {
    for (const DecodingEngine::Drawn& drawn : engine.step()) {
      if (drawn.error) throw *drawn.error;
      if (drawn.end == DecodingEngine::End::end_of_text || !emit(drawn.token)) return;
    }
  }
}

}  // namespace warpwright
