#include "model/transformer_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/transformer_files.hpp"
#include "ops/padding/padding.hpp"

namespace warpwright {
namespace {

// The part that every pass has.
template <class Pass>
class PassOf : public Pass {
 public:
  // positions: rows of the tables for rotary positions.
  PassOf(const TransformerDescription& d, const DecoderParameters& parameters, const DecoderBatch& batch,
         std::int64_t positions, DType dtype, Allocator& allocator, bool batch_invariant = false)
      : t_{.d = d,
           .p = transformer_parameters(d, parameters),
           .batch = batch,
           .rope = allocate_rope_tables(d, positions, dtype, allocator)},
        batch_invariant_(batch_invariant) {}
  void fill_constants(const Stream& stream) const override { fill_rope_tables(t_.d, t_.rope, stream); }
  void head(Context& context, const Tensor& hidden, const Tensor& logits) const override {
    transformer_head(context, t_.p, hidden, logits, batch_invariant_);
  }

 protected:
  // For the first tokens and sequences of the batch.
  TransformerPass with(const DecoderBatch& batch) const {
    TransformerPass t = t_;
    t.batch = batch;
    return t;
  }

  TransformerPass t_;
  bool batch_invariant_;
};

class Training final : public PassOf<TrainingPass> {
 public:
  Training(const TransformerDescription& d, const DecoderParameters& parameters, const DecoderBatch& batch,
           const TrainingPassOptions& options, Allocator& allocator)
      : PassOf(d, parameters, batch, batch.max_seqlen > 0 ? batch.max_seqlen : d.context, options.dtype,
               allocator),
        a_(allocate_activations(d, batch, options.dtype, Purpose::training, allocator, options.norms)) {
    hidden_ = a_.norm.out;
    logits_ = allocator.allocate("logits", options.dtype, {options.logits_rows, d.padded_vocab()},
                                 Category::activations);
    d_ = allocate_backward(d, batch, options.dtype, options.recompute, allocator);
    dhidden_ = d_.dnorm;
  }

  void forward(Context& context, const LayerHooks& hooks) const override {
    transformer_norm(context, t_, transformer_blocks(context, t_, a_, hooks), a_.norm);
  }
  void head_backward(Context& context, const Tensor& hidden, const Tensor& dlogits, const Tensor& dhidden,
                     const DecoderParameters& gradients, ops::Store store) const override {
    transformer_head_backward(context, t_.p, hidden, dlogits, dhidden,
                              transformer_parameters(t_.d, gradients), store);
  }
  void backward(Context& context, const DecoderParameters& gradients,
                const LayerHooks& hooks) const override {
    transformer_backward(context, t_, a_, d_, transformer_parameters(t_.d, gradients), hooks);
  }

 private:
  TransformerActivations a_;
  TransformerBackwardBuffers d_;
};

class Scoring final : public PassOf<ScoringPass> {
 public:
  Scoring(const TransformerDescription& d, const DecoderParameters& parameters, DType dtype,
          const DecoderBatch& batch, Allocator& allocator)
      : PassOf(d, parameters, batch, std::min(d.context, batch.tokens.shape[0]), dtype, allocator),
        a_(allocate_activations(d, batch, dtype, Purpose::inference, allocator)) {}

  Tensor forward(Context& context, std::int64_t n) const override {
    const TransformerActivations a = narrow(a_, n);
    const TransformerPass t = with(t_.batch.first(n));
    transformer_norm(context, t, transformer_blocks(context, t, a, {}), a.norm);
    return a.norm.out;
  }

 private:
  TransformerActivations a_;
};

class Cached final : public PassOf<CachedPass> {
 public:
  Cached(const TransformerDescription& d, const DecoderParameters& parameters, const DecoderBatch& batch,
         const CachePlaces& places, const CachedPassOptions& options, Allocator& allocator)
      : PassOf(d, parameters, batch, options.positions, options.dtype, allocator, options.batch_invariant),
        places_(places),
        a_(allocate_activations(d, batch, options.dtype, Purpose::inference, allocator)),
        gathered_(allocator.allocate("gathered", options.dtype, {places.lengths.shape[0], d.channels},
                                     Category::batch)),
        hidden_(allocator.allocate("hidden", options.dtype, gathered_.shape, Category::batch)) {
    const Shape shape{options.blocks, d.key_heads, options.block_size, d.head_size};
    for (std::int64_t l = 0; l < d.layers; ++l) {
      const auto in = [&](std::string_view name) {
        return allocator.allocate(fmt::format("cache.{}.{}", l, name), options.dtype, shape, Category::cache);
      };
      cache_.push_back({.keys = in("keys"), .values = in("values")});
    }
  }

  Tensor forward(Context& context, std::int64_t n, std::int64_t S, Sees sees) const override {
    const TransformerActivations a = narrow(a_, n);
    const CachePlaces places = {.slots = places_.slots.slice(0, 0, n),
                                .block_table = places_.block_table.slice(0, 0, S),
                                .lengths = places_.lengths.slice(0, 0, S),
                                .last_rows = places_.last_rows.slice(0, 0, S)};
    const TransformerPass t = with(t_.batch.first(n, S));
    Tensor rows = transformer_blocks(context, t, a, {},
                                     {.cache = cache_,
                                      .places = places,
                                      .reads_cache = sees == Sees::cache,
                                      .batch_invariant = batch_invariant_});
    if (n != S) {  // otherwise each sequence has one token
      const Tensor gathered = gathered_.slice(0, 0, S);
      ops::padding_pack(context, {.x = rows, .indices = places.last_rows, .out = gathered});
      rows = gathered;
    }
    NormActivations norm;
    norm.out = hidden_.slice(0, 0, S);
    transformer_norm(context, t, rows, norm);
    return norm.out;
  }

 private:
  CachePlaces places_;
  TransformerActivations a_;
  // (S, C): the residual stream of each sequence's last token, and the last normalization of it. Rows of
  // sequences without tokens mean nothing.
  Tensor gathered_, hidden_;
  std::vector<LayerCache> cache_;
};

}  // namespace

std::string TransformerDecoder::describe() const {
  const std::string shared =
      d_.key_heads == d_.heads ? "" : fmt::format(" ({} for keys and values)", d_.key_heads);
  std::string windows;
  if (!d_.windows.empty()) {
    const auto full = std::ranges::count(d_.windows, std::int64_t{0});
    windows = fmt::format(", windows of {}", std::ranges::max(d_.windows)) +
              (full > 0 ? fmt::format(" in {} of them", d_.layers - full) : "");
  }
  return fmt::format("{} layers, {} heads{}, {} channels{}", d_.layers, d_.heads, shared, d_.channels,
                     windows);
}

DecoderParameters TransformerDecoder::allocate_parameters(DType dtype, Category category,
                                                          std::string_view prefix,
                                                          Allocator& allocator) const {
  return warpwright::allocate_parameters(d_, dtype, category, prefix, allocator);
}

void TransformerDecoder::initialize(std::uint64_t seed, const ParameterWriter& write) const {
  warpwright::initialize(d_, seed, write);
}

void TransformerDecoder::load(const std::filesystem::path& source, const ParameterWriter& write) const {
  load_transformer(source, d_, write);
}

DType TransformerDecoder::stored_dtype(const std::filesystem::path& source) const {
  return warpwright::stored_dtype(source, d_);
}

void TransformerDecoder::save_weights(const std::filesystem::path& file, const DecoderParameters& parameters,
                                      const ParameterReader& read) const {
  write_transformer_weights(file, d_, parameters, read);
}

std::unique_ptr<TrainingPass> TransformerDecoder::allocate_training(const DecoderParameters& parameters,
                                                                    const DecoderBatch& batch,
                                                                    const TrainingPassOptions& options,
                                                                    Allocator& allocator) const {
  return std::make_unique<Training>(d_, parameters, batch, options, allocator);
}

std::unique_ptr<ScoringPass> TransformerDecoder::allocate_scoring(const DecoderParameters& parameters,
                                                                  DType dtype, const DecoderBatch& batch,
                                                                  Allocator& allocator) const {
  return std::make_unique<Scoring>(d_, parameters, dtype, batch, allocator);
}

std::unique_ptr<CachedPass> TransformerDecoder::allocate_cached(const DecoderParameters& parameters,
                                                                const DecoderBatch& batch,
                                                                const CachePlaces& places,
                                                                const CachedPassOptions& options,
                                                                Allocator& allocator) const {
  return std::make_unique<Cached>(d_, parameters, batch, places, options, allocator);
}

}  // namespace warpwright
