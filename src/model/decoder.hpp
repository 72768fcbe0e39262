// Decoder: what training and inference need of a decoder-only transformer, whatever its family.
//
// A decoder makes passes: a forward, with or without its backward, over tensors that an Allocator gives and
// parameters that live elsewhere. A pass keeps views of both, so both must outlive it. The gradients of
// parameters go where each call says.
//
// Sizes: N tokens in the batch, S sequences, C channels, V vocabulary and Vp the same padded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/boundary_tokens.hpp"
#include "ops/op.hpp"
#include "runtime/context.hpp"
#include "runtime/memory.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

// One tensor per parameter, in the decoder's order: the parameters themselves, or their gradients or
// moments. The names are Hugging Face's, but for matrices that files keep in parts (q, k and v).
class DecoderParameters {
 public:
  struct Entry {
    std::string name;
    Tensor tensor;
  };
  // For inference (model/packed_decoder.hpp): matrices as a CPU's kernels take them, by parameter. The
  // parameter's own tensor then has only a shape, unless tokens are looked up in it.
  std::map<std::size_t, Tensor> packed;
  bool int8 = false;  // the matrices multiply in int8

  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  void append(std::string name, const Tensor& tensor) { entries_.push_back({std::move(name), tensor}); }

  // An Error if no parameter has this name.
  const Tensor& at(std::string_view name) const;
  Tensor packed_at(std::size_t index) const;  // absent if the parameter is not packed
  std::vector<Tensor> tensors() const;

 private:
  std::vector<Entry> entries_;
};

// The way into parameters that need not all be in memory: fill() gets memory on the host for the parameter of
// this index, in its shape and some floating dtype, and writes its values.
using ParameterWriter =
    std::function<void(std::size_t index, const std::function<void(const Tensor& host)>& fill)>;
ParameterWriter writer_to(const DecoderParameters& parameters);
// The way out: use() gets the values of the parameter of this index on the host.
using ParameterReader =
    std::function<void(std::size_t index, const std::function<void(const Tensor& host)>& use)>;
ParameterReader reader_of(const DecoderParameters& parameters, const Stream& stream);

// The parameters of layer l are those from first + l · each on; all others are used outside of the layers.
struct LayerParameters {
  std::size_t first = 0, each = 0, layers = 0;
};

// The matrices that multiply activations in the layers, by parameter: the rows of each, in order. A parameter
// may join several, such as q, k and v, or gate and up.
using LayerMatrices = std::map<std::size_t, std::vector<std::int64_t>>;

// A matrix that multiplies activations in a forward, by the index of its parameter.
struct ForwardMatrix {
  std::size_t parameter = 0;
  bool looked_up = false;  // it is also the token embedding
  // The parameters of the normalization from which its input comes, if it does.
  std::optional<std::size_t> norm_weight = {}, norm_bias = {};
  // The output is most sensitive to the rows from here on. In a product of q, k and v, these are v's.
  std::int64_t first_row = 0;
};

// A pass calls these, if they are set, around each layer, for parameters that are not always in memory. It
// uses a layer's parameters only between enter() of this layer and of another one, and its gradients only
// until leave(), which the backward calls when all of them are there. It calls leave_others() when the
// gradients of the parameters outside of the layers are complete, before leave() of the first layer.
struct LayerHooks {
  std::function<void(std::size_t layer)> enter, leave;
  std::function<void()> leave_others;
};

// The tokens of a forward. Sequences are packed one after the other.
struct DecoderBatch {
  Tensor tokens;                // (N) int32, below V
  Tensor positions;             // (N) int32, below the context
  Tensor cu_seqlens;            // (S + 1) int32: the queries of each sequence
  std::int64_t max_seqlen = 0;  // no sequence has more tokens or keys than this; 0: unknown

  // The first n tokens.
  DecoderBatch first(std::int64_t n) const;
  // The first n tokens, of the first S sequences.
  DecoderBatch first(std::int64_t n, std::int64_t S) const;
};
DecoderBatch allocate_batch(std::int64_t sequences, std::int64_t N, Allocator& allocator);

// Activations that the backward computes again instead of keeping them: none, those of the activation
// function, also those of the normalizations, or all of a block but its output.
enum class Recompute : std::uint8_t { none, gelu, norm, block };
inline constexpr Recompute kRecomputes[] = {Recompute::none, Recompute::gelu, Recompute::norm,
                                            Recompute::block};  // each saves more than the one before
std::string_view name_of(Recompute recompute);

// The tensor that the backward of a normalization reads: its input, the residual stream, which nothing else
// keeps; or its output, which the products after it keep anyway.
enum class NormBackwardFrom : std::uint8_t { input, output };

class DecoderPass {
 public:
  virtual ~DecoderPass() = default;
  // Writes the tensors of the pass that never change, once their memory is there. No other call is valid
  // before.
  virtual void fill_constants(const Stream& stream) const = 0;
  // logits (M, Vp) of M rows of the last hidden states. Columns V ≤ v < Vp are padding and mean nothing.
  virtual void head(Context& context, const Tensor& hidden, const Tensor& logits) const = 0;
};

// Forward and backward over a batch.
class TrainingPass : public DecoderPass {
 public:
  // The tensors between which the caller runs head and loss, in chunks of rows.
  const Tensor& hidden() const { return hidden_; }    // (N, C): the last hidden states
  const Tensor& dhidden() const { return dhidden_; }  // (N, C)
  const Tensor& logits() const { return logits_; }    // (rows, Vp)

  // Tokens to hidden().
  virtual void forward(Context& context, const LayerHooks& hooks) const = 0;
  // The gradient (=) of rows of hidden(), and the head's share of the parameters' gradients (= or += by
  // store).
  virtual void head_backward(Context& context, const Tensor& hidden, const Tensor& dlogits,
                             const Tensor& dhidden, const DecoderParameters& gradients,
                             ops::Store store) const = 0;
  // The gradients (=) of all parameters from dhidden(). It adds to the share that head_backward has stored.
  virtual void backward(Context& context, const DecoderParameters& gradients,
                        const LayerHooks& hooks) const = 0;

 protected:
  Tensor hidden_, dhidden_, logits_;
};

struct TrainingPassOptions {
  DType dtype = DType::f32;  // of the activations
  std::int64_t logits_rows = 0;
  Recompute recompute = Recompute::none;
  NormBackwardFrom norms = NormBackwardFrom::input;
};

// A forward over whole sequences.
class ScoringPass : public DecoderPass {
 public:
  // Returns the last hidden states (n, C) of the first n tokens of the batch.
  virtual Tensor forward(Context& context, std::int64_t n) const = 0;
};

// Places of the keys and values of a batch's tokens in a cache of blocks (ops/cached_attention).
struct CachePlaces {
  Tensor slots;        // (N) int32: each token's place, block · block_size + place in it; −1: it has none
  Tensor block_table;  // (S, blocks of the longest sequence) int32: the blocks of each sequence, in order
  Tensor lengths;      // (S) int32: tokens of each sequence, those of the batch included
  Tensor last_rows;    // (S) int32: the batch's row of each sequence's last token; −1: none
};

struct CachedPassOptions {
  DType dtype = DType::f32;  // of the activations and the cache
  std::int64_t blocks = 0, block_size = 0;
  std::int64_t positions = 0;    // all positions of tokens are below
  bool batch_invariant = false;  // a sequence's bits do not depend on the others
};

// A forward over parts of sequences, with a cache of everything that later tokens attend to.
class CachedPass : public DecoderPass {
 public:
  // The keys that the batch's tokens see: only those of the batch, which has whole sequences, or all.
  enum class Sees : std::uint8_t { batch, cache };
  // Runs the first n tokens of the batch, which belong to its first S sequences, and stores their keys and
  // values. If n = S, row i is the token of sequence i, or of none. Returns the last hidden state (S, C) of
  // the last token of each sequence.
  virtual Tensor forward(Context& context, std::int64_t n, std::int64_t S, Sees sees) const = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual std::int64_t vocab() const = 0;
  virtual std::int64_t padded_vocab() const = 0;
  virtual std::int64_t context() const = 0;          // most tokens in a sequence
  virtual std::int64_t channels() const = 0;         // C
  virtual std::int64_t parameter_count() const = 0;  // without padding
  virtual std::string describe() const = 0;          // "12 layers, 12 heads, 768 channels"
  // FLOPs of forward and backward per token at sequence length T.
  virtual double flops_per_token(std::int64_t T) const = 0;
  // The last of these keys that a query sees, on average over the layers: fewer if there are windows.
  virtual double keys_seen(std::int64_t keys) const = 0;
  // The folder's config.json, which also tells one decoder from another.
  virtual nlohmann::json config(const BoundaryTokens& tokens) const = 0;
  // The dtype of a folder's or file's weights: fp32, bf16 or fp16 (that of the token embedding).
  virtual DType stored_dtype(const std::filesystem::path& source) const = 0;
  // Throws Error, naming the place that the sizes come from, for sizes that cannot be.
  virtual void validate(const std::string& where) const = 0;

  // One tensor per parameter, named prefix + the parameter's name.
  virtual DecoderParameters allocate_parameters(DType dtype, Category category, std::string_view prefix,
                                                Allocator& allocator) const = 0;
  virtual LayerParameters layer_parameters() const = 0;
  virtual LayerMatrices layer_matrices() const = 0;
  virtual std::vector<ForwardMatrix> forward_matrices() const = 0;
  // The values that a training starts from: a pure function of seed, tensor and element.
  virtual void initialize(std::uint64_t seed, const ParameterWriter& write) const = 0;
  // Fills the parameters from a model's folder or file.
  virtual void load(const std::filesystem::path& source, const ParameterWriter& write) const = 0;
  // Writes these parameters, some or all, into a safetensors file. Only the names, dtypes and shapes of
  // `parameters` count; the values are read in order.
  virtual void save_weights(const std::filesystem::path& file, const DecoderParameters& parameters,
                            const ParameterReader& read) const = 0;
  // Writes config.json into an existing folder.
  void save_config(const std::filesystem::path& folder, const BoundaryTokens& tokens) const;
  // Writes config.json and all parameters: model.safetensors or, if that would be larger than most_bytes,
  // shards of at most this size with their index. A parameter that is larger has a shard of its own.
  static constexpr std::uint64_t kMostFileBytes = 5'000'000'000;  // as transformers does
  void save(const std::filesystem::path& folder, const DecoderParameters& parameters,
            const ParameterReader& read, const BoundaryTokens& tokens,
            std::uint64_t most_bytes = kMostFileBytes) const;

  virtual std::unique_ptr<TrainingPass> allocate_training(const DecoderParameters& parameters,
                                                          const DecoderBatch& batch,
                                                          const TrainingPassOptions& options,
                                                          Allocator& allocator) const = 0;
  virtual std::unique_ptr<ScoringPass> allocate_scoring(const DecoderParameters& parameters, DType dtype,
                                                        const DecoderBatch& batch,
                                                        Allocator& allocator) const = 0;
  virtual std::unique_ptr<CachedPass> allocate_cached(const DecoderParameters& parameters,
                                                      const DecoderBatch& batch, const CachePlaces& places,
                                                      const CachedPassOptions& options,
                                                      Allocator& allocator) const = 0;

  // For M rows of hidden states: (M, Vp).
  Tensor allocate_logits(std::int64_t M, DType dtype, Allocator& allocator) const;
};

// A decoder and its parameters, for sessions that read them. A copy shares the memory, which lives as long as
// the last copy; without `memory`, the parameters are another's (a TrainingStep's), who must outlive the
// sessions. Nothing may write them while a session runs.
struct DecoderWeights {
  std::shared_ptr<const Decoder> decoder;
  DType dtype = DType::f32;  // of the matrices; in int8, of everything else
  DecoderParameters parameters;
  std::shared_ptr<const void> memory;
};

// Weights as they are, on any device: `write` hands a writer to whoever has the values, such as
// Decoder::load().
DecoderWeights unpacked_weights(std::shared_ptr<const Decoder> decoder, DType dtype, Device device,
                                const std::function<void(const ParameterWriter&)>& write);

}  // namespace warpwright
