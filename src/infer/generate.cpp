#include "infer/generate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "runtime/host_view.hpp"
#include "runtime/planned.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens of a prompt that run at once

}  // namespace

// The tensors of a chunk and the cache of the whole context.
struct Generator::Tensors {
  GPT2Batch batch;      // of kChunk tokens
  Tensor cu_seqlens_k;  // (2) int32
  GPT2Activations activations;
  std::vector<Tensor> qkv;  // per layer (T, 3, NH, HS): every position's; k and v are the cache
  Tensor logits;            // (1, Vp)

  // A run of n tokens at position first: the qkv product writes its rows where the cache wants them.
  GPT2Activations at(std::int64_t first, std::int64_t n) const {
    GPT2Activations a = narrow(activations, n);
    for (std::size_t l = 0; l < qkv.size(); ++l) {
      a.blocks[l].qkv = qkv[l].slice(0, first, n);
      a.blocks[l].keys = qkv[l].slice(0, 0, first + n).select(1, 1);
      a.blocks[l].values = qkv[l].slice(0, 0, first + n).select(1, 2);
      a.blocks[l].cu_seqlens_k = cu_seqlens_k;
    }
    return a;
  }
  GPT2Batch first_tokens(std::int64_t n) const {
    return {batch.tokens.slice(0, 0, n), batch.positions.slice(0, 0, n), batch.cu_seqlens};
  }
};

struct Generator::HostViews {
  explicit HostViews(const Tensors& t)
      : tokens(t.batch.tokens),
        positions(t.batch.positions),
        cu_seqlens(t.batch.cu_seqlens),
        cu_seqlens_k(t.cu_seqlens_k),
        logits(t.logits) {}

  HostView tokens, positions, cu_seqlens, cu_seqlens_k, logits;
};

Generator::Tensors Generator::allocate(const GPT2Config& config, DType dtype, Allocator& allocator) {
  const std::int64_t chunk = std::min(kChunk, config.context);
  Tensors t;
  t.batch = allocate_batch(1, chunk, allocator);
  t.cu_seqlens_k = allocator.allocate("cu_seqlens_k", DType::i32, {2}, Category::batch);
  t.activations = allocate_activations(config, t.batch, dtype, Purpose::inference, allocator);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    t.qkv.push_back(allocator.allocate(fmt::format("cache.{}.qkv", l), dtype,
                                       {config.context, 3, config.heads, config.head_size()},
                                       Category::cache));
  }
  t.logits = allocate_logits(config, 1, dtype, allocator);
  return t;
}

void Generator::run(Context& context, const GPT2Config& config, const GPT2Parameters& parameters,
                    const Tensors& t, std::int64_t first, std::int64_t n) {
  const GPT2Activations a = t.at(first, n);
  gpt2_forward(context, config, parameters, t.first_tokens(n), a);
  gpt2_head(context, parameters, a.lnf.slice(0, n - 1, 1), t.logits);
}

MemoryPlan Generator::planned(Context& context, const GPT2Config& config, DType dtype) {
  struct Recorded {
    GPT2Parameters parameters;
    Tensors tensors;
  };
  const auto allocate = [&](Allocator& allocator) {
    return Recorded{allocate_parameters(config, dtype, Category::parameters, "", allocator),
                    Generator::allocate(config, dtype, allocator)};
  };
  const std::int64_t chunk = std::min(kChunk, config.context);
  MemoryPlan plan = Planned<Recorded>(context, allocate, [&](const Recorded& r) {
                      run(context, config, r.parameters, r.tensors, config.context - chunk, chunk);
                    }).plan();
  plan.arena_bytes[static_cast<int>(Category::parameters)] = 0;
  return plan;
}

Generator::Generator(Context& context, const GPT2Config& config, const GPT2Parameters& parameters)
    : context_(context), config_(config), parameters_(parameters) {
  const std::int64_t chunk = std::min(kChunk, config_.context);
  const auto allocate = [this](Allocator& allocator) {
    return Generator::allocate(config_, parameters_.wte.dtype, allocator);
  };
  tensors_ = std::make_unique<Planned<Tensors>>(context, allocate, [&](const Tensors& t) {
    run(context, config_, parameters_, t, config_.context - chunk, chunk);
  });
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
  std::copy(tokens.begin(), tokens.end(), host_->tokens.tensor().as<std::int32_t>());
  for (std::int64_t i = 0; i < n; ++i) {
    host_->positions.tensor().as<std::int32_t>()[i] = static_cast<std::int32_t>(first + i);
  }
  host_->cu_seqlens.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(n);
  host_->cu_seqlens_k.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(first + n);
  for (const HostView* view : {&host_->tokens, &host_->positions, &host_->cu_seqlens, &host_->cu_seqlens_k}) {
    view->upload(context_.stream());
  }
  run(context_, config_, parameters_, tensors_->tensors(), first, n);
  sequence_.insert(sequence_.end(), tokens.begin(), tokens.end());
}

std::span<const float> Generator::append(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) throw Error("no tokens to append", "generation", "give at least one token");
  const auto limit = static_cast<std::size_t>(config_.context);
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
  logits_.resize(static_cast<std::size_t>(config_.vocab));
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
  std::span<const float> logits = generator.append(prompt);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    const std::int32_t token = sample(options.sampling, static_cast<std::uint64_t>(i), logits);
    if (token == options.end_of_text || !emit(token)) return;
    if (i + 1 < options.max_tokens) logits = generator.append({&token, 1});
  }
}

}  // namespace warpwright
