#include "model/gpt2_decoder.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/gpt2.hpp"
#include "model/gpt2_files.hpp"
#include "ops/padding/padding.hpp"

namespace warpwright {
namespace {

// The part that every pass has.
template <class Pass>
class GPT2Pass : public Pass {
 public:
  GPT2Pass(const GPT2Config& config, const DecoderParameters& parameters, const DecoderBatch& batch,
           bool batch_invariant = false)
      : config_(config),
        p_(gpt2_parameters(config, parameters)),
        batch_(batch),
        batch_invariant_(batch_invariant) {}
  void head(Context& context, const Tensor& hidden, const Tensor& logits) const override {
    gpt2_head(context, p_, hidden, logits, batch_invariant_);
  }

 protected:
  GPT2Config config_;
  GPT2Parameters p_;
  DecoderBatch batch_;
  bool batch_invariant_;
};

class GPT2Training final : public GPT2Pass<TrainingPass> {
 public:
  GPT2Training(const GPT2Config& config, const DecoderParameters& parameters, const DecoderBatch& batch,
               const TrainingPassOptions& options, Allocator& allocator)
      : GPT2Pass(config, parameters, batch),
        a_(allocate_activations(config, batch, options.dtype, Purpose::training, allocator, options.norms)) {
    hidden_ = a_.lnf;
    logits_ = allocator.allocate("logits", options.dtype, {options.logits_rows, config.padded_vocab()},
                                 Category::activations);
    d_ = allocate_backward(config, batch, options.dtype, options.recompute, allocator);
    dhidden_ = d_.dlnf;
  }

  void forward(Context& context, const LayerHooks& hooks) const override {
    gpt2_forward(context, config_, p_, batch_, a_, hooks);
  }
  void head_backward(Context& context, const Tensor& hidden, const Tensor& dlogits, const Tensor& dhidden,
                     const DecoderParameters& gradients, ops::Store store) const override {
    gpt2_head_backward(context, p_, hidden, dlogits, dhidden, gpt2_parameters(config_, gradients), store);
  }
  void backward(Context& context, const DecoderParameters& gradients,
                const LayerHooks& hooks) const override {
    gpt2_backward(context, config_, p_, batch_, a_, d_, gpt2_parameters(config_, gradients), hooks);
  }

 private:
  GPT2Activations a_;
  GPT2BackwardBuffers d_;
};

class GPT2Scoring final : public GPT2Pass<ScoringPass> {
 public:
  GPT2Scoring(const GPT2Config& config, const DecoderParameters& parameters, DType dtype,
              const DecoderBatch& batch, Allocator& allocator)
      : GPT2Pass(config, parameters, batch),
        a_(allocate_activations(config, batch, dtype, Purpose::inference, allocator)) {}

  Tensor forward(Context& context, std::int64_t n) const override {
    const GPT2Activations a = narrow(a_, n);
    gpt2_forward(context, config_, p_, batch_.first(n), a, {});
    return a.lnf;
  }

 private:
  GPT2Activations a_;
};

class GPT2Cached final : public GPT2Pass<CachedPass> {
 public:
  GPT2Cached(const GPT2Config& config, const DecoderParameters& parameters, const DecoderBatch& batch,
             const CachePlaces& places, const CachedPassOptions& options, Allocator& allocator)
      : GPT2Pass(config, parameters, batch, options.batch_invariant),
        places_(places),
        a_(allocate_activations(config, batch, options.dtype, Purpose::inference, allocator)),
        last_(allocator.allocate("last", options.dtype, {places.lengths.shape[0], config.channels},
                                 Category::batch)) {
    const Shape shape{options.blocks, options.block_size, config.heads, config.head_size()};
    for (std::int64_t l = 0; l < config.layers; ++l) {
      const auto in = [&](std::string_view name) {
        return allocator.allocate(fmt::format("cache.{}.{}", l, name), options.dtype, shape, Category::cache);
      };
      cache_.push_back({.keys = in("keys"), .values = in("values")});
    }
  }

  Tensor forward(Context& context, std::int64_t n, std::int64_t S, Sees sees) const override {
    const GPT2Activations a = narrow(a_, n);
    const CachePlaces places = {.slots = places_.slots.slice(0, 0, n),
                                .block_table = places_.block_table.slice(0, 0, S),
                                .lengths = places_.lengths.slice(0, 0, S),
                                .last_rows = places_.last_rows.slice(0, 0, S)};
    gpt2_forward(context, config_, p_, batch_.first(n, S), a, {},
                 {.cache = cache_,
                  .places = places,
                  .reads_cache = sees == Sees::cache,
                  .batch_invariant = batch_invariant_});
    const Tensor last = last_.slice(0, 0, S);
    ops::padding_pack(context, {.x = a.lnf, .indices = places.last_rows, .out = last});
    return last;
  }

 private:
  CachePlaces places_;
  GPT2Activations a_;
  Tensor last_;  // (S, C); rows of sequences without tokens keep their values
  std::vector<GPT2LayerCache> cache_;
};

}  // namespace

std::string GPT2Decoder::describe() const {
  return fmt::format("{} layers, {} heads, {} channels", config_.layers, config_.heads, config_.channels);
}

nlohmann::json GPT2Decoder::config(const BoundaryTokens& tokens) const {
  return config_.to_json(tokens);
}

DecoderParameters GPT2Decoder::allocate_parameters(DType dtype, Category category, std::string_view prefix,
                                                   Allocator& allocator) const {
  return warpwright::allocate_parameters(config_, dtype, category, prefix, allocator);
}

LayerParameters GPT2Decoder::layer_parameters() const {
  return {.first = 2, .each = 12, .layers = static_cast<std::size_t>(config_.layers)};
}

void GPT2Decoder::initialize(std::uint64_t seed, const ParameterWriter& write) const {
  warpwright::initialize(config_, seed, write);
}

void GPT2Decoder::load(const std::filesystem::path& source, const ParameterWriter& write) const {
  load_gpt2(source, config_, write);
}

void GPT2Decoder::save_weights(const std::filesystem::path& file, const DecoderParameters& parameters,
                               const ParameterReader& read) const {
  write_gpt2_weights(file, config_, parameters, read);
}

std::unique_ptr<TrainingPass> GPT2Decoder::allocate_training(const DecoderParameters& parameters,
                                                             const DecoderBatch& batch,
                                                             const TrainingPassOptions& options,
                                                             Allocator& allocator) const {
  return std::make_unique<GPT2Training>(config_, parameters, batch, options, allocator);
}

std::unique_ptr<ScoringPass> GPT2Decoder::allocate_scoring(const DecoderParameters& parameters, DType dtype,
                                                           const DecoderBatch& batch,
                                                           Allocator& allocator) const {
  return std::make_unique<GPT2Scoring>(config_, parameters, dtype, batch, allocator);
}

std::unique_ptr<CachedPass> GPT2Decoder::allocate_cached(const DecoderParameters& parameters,
                                                         const DecoderBatch& batch, const CachePlaces& places,
                                                         const CachedPassOptions& options,
                                                         Allocator& allocator) const {
  return std::make_unique<GPT2Cached>(config_, parameters, batch, places, options, allocator);
}

}  // namespace warpwright
