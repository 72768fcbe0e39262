#include "model/gpt2_decoder.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/gpt2.hpp"
#include "model/gpt2_files.hpp"

namespace warpwright {
namespace {

// The part that every pass has.
template <class Pass>
class GPT2Pass : public Pass {
 public:
  GPT2Pass(const GPT2Config& config, const DecoderParameters& parameters, const DecoderBatch& batch)
      : config_(config), p_(gpt2_parameters(config, parameters)), batch_(batch) {}
  void head(Context& context, const Tensor& hidden, const Tensor& logits) const override {
    gpt2_head(context, p_, hidden, logits);
  }

 protected:
  GPT2Config config_;
  GPT2Parameters p_;
  DecoderBatch batch_;
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
  GPT2Cached(const GPT2Config& config, const DecoderParameters& parameters, DType dtype,
             const DecoderBatch& batch, const Tensor& cu_seqlens_k, Allocator& allocator)
      : GPT2Pass(config, parameters, batch),
        cu_seqlens_k_(cu_seqlens_k),
        a_(allocate_activations(config, batch, dtype, Purpose::inference, allocator)) {
    for (std::int64_t l = 0; l < config.layers; ++l) {
      qkv_.push_back(allocator.allocate(fmt::format("cache.{}.qkv", l), dtype,
                                        {config.context, 3, config.heads, config.head_size()},
                                        Category::cache));
    }
  }

  // The qkv product writes its rows to their place in the cache.
  Tensor forward(Context& context, std::int64_t past, std::int64_t n) const override {
    GPT2Activations a = narrow(a_, n);
    for (std::size_t l = 0; l < qkv_.size(); ++l) {
      const Tensor so_far = qkv_[l].slice(0, 0, past + n);
      a.blocks[l].qkv = qkv_[l].slice(0, past, n);
      a.blocks[l].keys = so_far.select(1, 1);
      a.blocks[l].values = so_far.select(1, 2);
      a.blocks[l].cu_seqlens_k = cu_seqlens_k_;
    }
    gpt2_forward(context, config_, p_, batch_.first(n), a, {});
    return a.lnf;
  }

 private:
  Tensor cu_seqlens_k_;
  GPT2Activations a_;
  std::vector<Tensor> qkv_;  // per layer (context, 3, NH, HS): every position's; k and v are the cache
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

std::unique_ptr<CachedPass> GPT2Decoder::allocate_cached(const DecoderParameters& parameters, DType dtype,
                                                         const DecoderBatch& batch,
                                                         const Tensor& cu_seqlens_k,
                                                         Allocator& allocator) const {
  return std::make_unique<GPT2Cached>(config_, parameters, dtype, batch, cu_seqlens_k, allocator);
}

}  // namespace warpwright
