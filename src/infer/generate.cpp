#include "infer/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "infer/batch_views.hpp"
#include "runtime/planned.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens of a prompt that run at once

std::int64_t chunk_of(const Decoder& decoder) {
  return std::min(kChunk, decoder.context());
}

}  // namespace

struct Generator::Tensors {
  DecoderBatch batch;   // of kChunk tokens
  Tensor cu_seqlens_k;  // (2) int32
  std::unique_ptr<CachedPass> pass;
  Tensor logits;  // (1, Vp)
};

struct Generator::HostViews {
  explicit HostViews(const Tensors& t) : batch(t.batch), cu_seqlens_k(t.cu_seqlens_k), logits(t.logits) {}

  BatchViews batch;
  HostView cu_seqlens_k, logits;
};

Generator::Tensors Generator::allocate(const Decoder& decoder, DType dtype,
                                       const DecoderParameters& parameters, Allocator& allocator) {
  Tensors t;
  t.batch = allocate_batch(1, chunk_of(decoder), allocator);
  t.cu_seqlens_k = allocator.allocate("cu_seqlens_k", DType::i32, {2}, Category::batch);
  t.pass = decoder.allocate_cached(parameters, dtype, t.batch, t.cu_seqlens_k, allocator);
  t.logits = decoder.allocate_logits(1, dtype, allocator);
  return t;
}

void Generator::run(Context& context, const Tensors& t, std::int64_t past, std::int64_t n) {
  const Tensor hidden = t.pass->forward(context, past, n);
  t.pass->head(context, hidden.slice(0, n - 1, 1), t.logits);
}

Planned<Generator::Tensors> Generator::plan_chunks(Context& context, const Decoder& decoder,
                                                   std::function<Tensors(Allocator&)> allocate) {
  const std::int64_t most = chunk_of(decoder);
  // The last chunk of a full context has the most keys.
  const auto run_last = [&](const Tensors& t, std::int64_t n) { run(context, t, decoder.context() - n, n); };
  Planned<Tensors> planned(context, std::move(allocate), [&](const Tensors& t) { run_last(t, most); });
  planned.reserve_scratch_for_fewer(context, most, run_last);
  return planned;
}

MemoryPlan Generator::planned(Context& context, const Decoder& decoder, DType dtype) {
  const auto allocate = [&](Allocator& allocator) {
    const DecoderParameters parameters =
        decoder.allocate_parameters(dtype, Category::parameters, "", allocator);
    return Generator::allocate(decoder, dtype, parameters, allocator);
  };
  MemoryPlan plan = plan_chunks(context, decoder, allocate).plan();
  plan.arena_bytes[static_cast<int>(Category::parameters)] = 0;
  return plan;
}

Generator::Generator(Context& context, DecoderWeights weights)
    : context_(context), weights_(std::move(weights)) {
  const auto allocate = [this](Allocator& allocator) {
    return Generator::allocate(*weights_.decoder, weights_.dtype, weights_.parameters, allocator);
  };
  tensors_ = std::make_unique<Planned<Tensors>>(plan_chunks(context, *weights_.decoder, allocate));
  tensors_->take(context);
  host_ = std::make_unique<HostViews>(tensors_->tensors());
}

Generator::~Generator() = default;

const MemoryPlan& Generator::plan() const {
  return tensors_->plan();
}

void Generator::reset() {
  sequence_.clear();
}

void Generator::append_chunk(std::span<const std::int32_t> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const auto first = static_cast<std::int64_t>(sequence_.size());
  std::copy(tokens.begin(), tokens.end(), host_->batch.tokens.tensor().as<std::int32_t>());
  for (std::int64_t i = 0; i < n; ++i) {
    host_->batch.positions.tensor().as<std::int32_t>()[i] = static_cast<std::int32_t>(first + i);
  }
  host_->batch.cu_seqlens.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(n);
  host_->cu_seqlens_k.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(first + n);
  host_->batch.upload(context_.stream());
  host_->cu_seqlens_k.upload(context_.stream());
  run(context_, tensors_->tensors(), first, n);
  sequence_.insert(sequence_.end(), tokens.begin(), tokens.end());
}

std::span<const float> Generator::append(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) throw Error("no tokens to append", "generation", "give at least one token");
  const auto limit = static_cast<std::size_t>(weights_.decoder->context());
  std::vector<std::int32_t> pending(tokens.begin(), tokens.end());
  for (std::size_t done = 0; done < pending.size();) {
    if (sequence_.size() == limit) {
      const std::vector<std::int32_t> kept(sequence_.end() - static_cast<std::ptrdiff_t>(limit / 2),
                                           sequence_.end());
      pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(done));
      pending.insert(pending.begin(), kept.begin(), kept.end());
      sequence_.clear();
      done = 0;
    }
    const std::size_t room = std::min<std::size_t>(limit - sequence_.size(), kChunk);
    const std::size_t n = std::min(room, pending.size() - done);
    append_chunk({pending.data() + done, n});
    done += n;
  }
  logits_.resize(static_cast<std::size_t>(weights_.decoder->vocab()));
  host_->logits.download(context_.stream());
  context_.synchronize();
  const Tensor& logits = host_->logits.tensor();
  visit_dtype(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* row = logits.as<T>();
    for (std::size_t v = 0; v < logits_.size(); ++v) logits_[v] = static_cast<float>(row[v]);
  });
  return logits_;
}

void generate(Generator& generator, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t token)>& emit) {
  options.sampling.validate();
  std::vector<std::int32_t> sequence(prompt.begin(), prompt.end());
  std::span<const float> logits = generator.append(prompt);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    const std::int32_t token = sample(options.sampling, static_cast<std::uint64_t>(i), logits, sequence);
    if (token == options.end_of_text || !emit(token)) return;
    sequence.push_back(token);
    if (i + 1 < options.max_tokens) logits = generator.append({&token, 1});
  }
}

}  // namespace warpwright
