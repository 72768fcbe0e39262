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
  Tensor numbers;  // the memory of all that the host writes for a pass, but `sampling.seen`
  DecoderBatch batch;
  CachePlaces places;
  std::unique_ptr<CachedPass> pass;
  Tensor logits;  // (sequences, Vp)
  ops::Sampling sampling;
};

// The same numbers as the host writes them, and the drawn tokens as it reads them.
struct DecodingEngine::HostViews {
  explicit HostViews(const Tensors& t)
      : numbers(t.numbers, HostMemory::pinned),
        seen(t.sampling.seen, HostMemory::pinned),
        tokens(t.sampling.token, HostMemory::pinned),
        device(static_cast<const std::byte*>(t.numbers.data)) {}

  // Of a tensor in `numbers`.
  template <class T>
  T* of(const Tensor& tensor) const {
    const auto offset = static_cast<const std::byte*>(tensor.data) - device;
    return reinterpret_cast<T*>(static_cast<std::byte*>(numbers.tensor().data) + offset);
  }

  HostView numbers, seen, tokens;
  const std::byte* device;         // numbers
  std::optional<HostView> logits;  // if somebody wants to see them
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
  Sequence* sequence;
  std::int64_t tokens;
};

DecodingEngine::Tensors DecodingEngine::allocate(const Decoder& decoder, DType dtype,
                                                 const DecoderParameters& parameters, const Sizes& sizes,
                                                 Allocator& allocator) {
  const std::int64_t N = sizes.batch, S = sizes.sequences;
  const std::int64_t integers = 3 * N + 3 * S + 1 + S * sizes.blocks_each;
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
  t.batch = {.tokens = next(DType::i32, N),
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
  host_ = std::make_unique<HostViews>(planned_->tensors());
  own_stream_ = Stream(context_.device().device);
}

DecodingEngine::~DecodingEngine() = default;

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
    blocks_.release((*found)->blocks);
    list->erase(found);
    return;
  }
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

// Takes blocks for more tokens of a running sequence. If there are none, the newest sequences wait; false if
// this one does.
bool DecodingEngine::make_room(Sequence& s, std::int64_t tokens) {
  const auto wanted = static_cast<std::size_t>(divided_up(s.cached + tokens, kBlockSize));
  while (s.blocks.size() < wanted) {
    if (const std::int32_t block = blocks_.take(); block != CacheBlocks::kNone) {
      s.blocks.push_back(block);
      continue;
    }
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

// Writes the numbers of the parts, and those of S sequences without tokens.
void DecodingEngine::write(const std::vector<Part>& parts, std::int64_t n, std::int64_t S) {
  const Tensors& t = planned_->tensors();
  const auto integers = [&](const Tensor& tensor) { return host_->of<std::int32_t>(tensor); };
  std::int32_t *const tokens = integers(t.batch.tokens), *const positions = integers(t.batch.positions),
                      *const bounds = integers(t.batch.cu_seqlens);
  std::int32_t *const slots = integers(t.places.slots), *const table = integers(t.places.block_table),
                      *const lengths = integers(t.places.lengths),
                      *const last_rows = integers(t.places.last_rows);
  std::int32_t row = 0;
  bounds[0] = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(S); ++i) {
    if (i < parts.size()) {
      const Sequence& s = *parts[i].sequence;
      for (std::int64_t p = s.cached; p < s.cached + parts[i].tokens; ++p, ++row) {
        tokens[row] = s.window()[static_cast<std::size_t>(p)];
        positions[row] = static_cast<std::int32_t>(p);
        slots[row] = static_cast<std::int32_t>(
            s.blocks[static_cast<std::size_t>(p / kBlockSize)] * kBlockSize + p % kBlockSize);
      }
      std::ranges::copy(s.blocks, table + static_cast<std::int64_t>(i) * sizes_->blocks_each);
    }
    bounds[i + 1] = row;
    last_rows[i] = i < parts.size() ? row - 1 : -1;
    lengths[i] =
        i < parts.size() ? static_cast<std::int32_t>(parts[i].sequence->cached + parts[i].tokens) : 0;
  }
  for (; row < n; ++row) {
    tokens[row] = positions[row] = 0;
    slots[row] = -1;
  }
  write_sampling(parts, S);
}

// Rows without a sequence take their largest logit, which nobody reads.
void DecodingEngine::write_sampling(const std::vector<Part>& parts, std::int64_t S) {
  const ops::Sampling& to = planned_->tensors().sampling;
  bool penalties = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(S); ++i) {
    const Sequence* const sequence = i < parts.size() ? parts[i].sequence : nullptr;
    const SamplingOptions o = sequence ? sequence->options.sampling : SamplingOptions{.temperature = 0};
    const auto position = static_cast<std::uint64_t>(sequence ? sequence->drawn : 0);
    host_->of<double>(to.temperature)[i] = o.temperature;
    host_->of<std::int64_t>(to.top_k)[i] = o.top_k;
    host_->of<double>(to.top_p)[i] = o.top_p;
    host_->of<double>(to.min_p)[i] = o.min_p;
    host_->of<double>(to.repetition_penalty)[i] = o.repetition_penalty;
    host_->of<std::int64_t>(to.random)[i] = static_cast<std::int64_t>(o.random_bits(position));
    if (!sequence || sequence->seen.empty()) continue;
    penalties = true;
    auto* const words = static_cast<std::uint32_t*>(host_->seen.tensor().data);
    std::ranges::copy(sequence->seen, words + static_cast<std::int64_t>(i) * words_of(*weights_.decoder));
  }
  if (penalties) host_->seen.upload(context_.stream());
}

// Gives the device what has been written, and brings back the tokens that it draws.
void DecodingEngine::run_pass(std::int64_t n, std::int64_t S, CachedPass::Sees sees) {
  host_->numbers.upload(context_.stream());
  run(context_, planned_->tensors(), n, S, sees);
  host_->tokens.download(context_.stream());
}

void DecodingEngine::run_prompts(const std::vector<Part>& parts) {
  std::int64_t n = 0;
  bool are_whole = true;
  for (const Part& part : parts) {
    n += part.tokens;
    are_whole = are_whole && part.sequence->cached == 0 && part.sequence->pending() == part.tokens;
  }
  const auto S = static_cast<std::int64_t>(parts.size());
  write(parts, n, S);
  // The two ways round differently, and another sequence may decide whether this one's prompt is whole.
  const bool sees_batch = are_whole && !sizes_->batch_invariant;
  run_pass(n, S, sees_batch ? CachedPass::Sees::batch : CachedPass::Sees::cache);
}

void DecodingEngine::run_tokens(const std::vector<Part>& parts) {
  auto n = static_cast<std::int64_t>(parts.size());
  const auto pass = [&] { run_pass(n, n, CachedPass::Sees::cache); };
  if (!Captured::possible(context_)) {
    write(parts, n, n);
    return pass();
  }
  n = std::min(bucket_of(n), sizes_->sequences);
  write(parts, n, n);
  graphs_.try_emplace(n, own_stream_).first->second.run(context_, pass);
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

std::vector<DecodingEngine::Drawn> DecodingEngine::step() {
  admit();
  // Passes over prompts and over tokens take turns, so that none waits for a long row of the others.
  bool of_prompts = !ran_prompts_;
  std::vector<Part> parts = next_parts(of_prompts);
  if (parts.empty()) parts = next_parts(of_prompts = !of_prompts);
  if (parts.empty()) return {};
  ran_prompts_ = of_prompts;
  of_prompts ? run_prompts(parts) : run_tokens(parts);
  return draw_after(parts);
}

// Hands the logits of complete sequences to on_logits, in fp32.
void DecodingEngine::report_logits(const std::vector<Part>& parts) {
  const Tensor& logits = planned_->tensors().logits;
  if (!host_->logits) host_->logits.emplace(logits, HostMemory::pinned);
  const Tensor& host = host_->logits->tensor();
  const auto rows = static_cast<std::int64_t>(parts.size());
  if (host.data != logits.data) {
    copy(host.slice(0, 0, rows), logits.slice(0, 0, rows), context_.stream());
    context_.synchronize();
  }
  std::vector<float> row(static_cast<std::size_t>(weights_.decoder->vocab()));
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].sequence->pending() != parts[r].tokens) continue;
    visit_dtype(host.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* const from = host.as<T>() + static_cast<std::int64_t>(r) * host.shape[1];
      std::transform(from, from + row.size(), row.begin(), [](T x) { return static_cast<float>(x); });
    });
    on_logits(parts[r].sequence->id, row);
  }
}

// The cache now has the parts, and each complete sequence a new token.
std::vector<DecodingEngine::Drawn> DecodingEngine::draw_after(const std::vector<Part>& parts) {
  if (on_logits) report_logits(parts);
  context_.synchronize();
  std::vector<Drawn> all;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    Sequence& s = *parts[r].sequence;
    const bool complete = s.pending() == parts[r].tokens;
    s.cached += parts[r].tokens;
    offer_full_blocks(s);
    if (!complete) continue;
    all.push_back(drawn_after(s, host_->tokens.tensor().as<std::int32_t>()[r]));
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
