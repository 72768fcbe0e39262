#include "infer/generate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens of a prompt that run at once

}  // namespace

struct Generator::Tensors {
  GPT2Batch batch;      // of kChunk tokens
  Tensor cu_seqlens_k;  // (2) int32
  GPT2Activations activations;
  std::vector<Tensor> qkv;  // per layer (T, 3, NH, HS): every position's; k and v are the cache
  Tensor logits;            // (1, Vp)
  HostView host_tokens, host_positions, host_cu_seqlens, host_cu_seqlens_k, host_logits;

  void make_host_views() {
    host_tokens = HostView(batch.tokens);
    host_positions = HostView(batch.positions);
    host_cu_seqlens = HostView(batch.cu_seqlens);
    host_cu_seqlens_k = HostView(cu_seqlens_k);
    host_logits = HostView(logits);
  }

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

void Generator::record(Context& context, const GPT2Config& config, const GPT2Parameters& parameters,
                       Recorder& recorder) {
  const std::int64_t chunk = std::min(kChunk, config.context);
  const Tensors recorded = allocate(config, parameters.wte.dtype, recorder);
  context.set_recorder(&recorder);
  const GPT2Activations a = recorded.at(config.context - chunk, chunk);
  gpt2_forward(context, config, parameters, recorded.first_tokens(chunk), a);
  gpt2_head(context, parameters, a.lnf.slice(0, chunk - 1, 1), recorded.logits);
  context.set_recorder(nullptr);
}

MemoryPlan Generator::planned(Context& context, const GPT2Config& config, DType dtype) {
  Recorder recorder;
  record(context, config, allocate_parameters(config, dtype, Category::parameters, "", recorder), recorder);
  MemoryPlan plan = recorder.plan();
  plan.arena_bytes[static_cast<int>(Category::parameters)] = 0;
  return plan;
}

Generator::Generator(Context& context, const GPT2Config& config, const GPT2Parameters& parameters)
    : context_(context), config_(config), parameters_(parameters) {
  Recorder recorder;
  record(context, config, parameters, recorder);
  arenas_ = std::make_unique<Arenas>(recorder.plan(), context.device().device);
  tensors_ = std::make_unique<Tensors>(allocate(config, parameters.wte.dtype, *arenas_));
  tensors_->make_host_views();
  context.reserve_scratch(arenas_->plan().workspace_bytes);
}

Generator::~Generator() = default;

const MemoryPlan& Generator::plan() const {
  return arenas_->plan();
}

void Generator::reset() {
  sequence_.clear();
}

void Generator::run(std::span<const std::int32_t> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const auto first = static_cast<std::int64_t>(sequence_.size());
  Tensors& t = *tensors_;
  std::copy(tokens.begin(), tokens.end(), t.host_tokens.tensor().as<std::int32_t>());
  for (std::int64_t i = 0; i < n; ++i) {
    t.host_positions.tensor().as<std::int32_t>()[i] = static_cast<std::int32_t>(first + i);
  }
  t.host_cu_seqlens.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(n);
  t.host_cu_seqlens_k.tensor().as<std::int32_t>()[1] = static_cast<std::int32_t>(first + n);
  for (const HostView* view : {&t.host_tokens, &t.host_positions, &t.host_cu_seqlens, &t.host_cu_seqlens_k}) {
    view->upload(context_.stream());
  }
  const GPT2Activations a = tensors_->at(first, n);
  gpt2_forward(context_, config_, parameters_, tensors_->first_tokens(n), a);
  gpt2_head(context_, parameters_, a.lnf.slice(0, n - 1, 1), tensors_->logits);
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
    run({pending.data() + done, n});
    done += n;
  }
  logits_.resize(static_cast<std::size_t>(config_.vocab));
  tensors_->host_logits.download(context_.stream());
  context_.synchronize();
  const Tensor& logits = tensors_->host_logits.tensor();
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
