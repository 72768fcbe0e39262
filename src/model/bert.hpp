// BERT-family encoders (BERT, MiniLM, RoBERTa) over packed batches: parameters by name, the forward an
// operation a line, and a model that owns both.
// Sources: J. Devlin et al., arXiv:1810.04805; Y. Liu et al., "RoBERTa", arXiv:1907.11692; padding-free:
// Y. Zhai et al., "ByteTransformer", arXiv:2210.03052.
//
// Sizes: N tokens in the batch, S sequences, H hidden, NH heads of HS = H/NH, I intermediate. Nothing is
// padded: the sequences of a batch lie one after the other, from the embedding to the pooling.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/bert_config.hpp"
#include "ops/op.hpp"
#include "runtime/context.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {

struct BertLinear {
  Tensor weight;    // (out, in); without data if there is `packed`
  Tensor bias;      // (out)
  Tensor packed{};  // the weight as ops/matmul/packed.hpp lays it out, if the device's kernels take that
};

struct BertBlock {
  BertLinear qkv;                       // (3H, H): q, k, v rows in this order
  BertLinear attproj;                   // (H, H)
  Tensor attnorm_weight, attnorm_bias;  // (H)
  BertLinear fc;                        // (I, H)
  BertLinear fcproj;                    // (H, I)
  Tensor outnorm_weight, outnorm_bias;  // (H)
};

struct BertParameters {
  Tensor word, position, type;          // (V, H), (P, H), (types, H)
  Tensor embnorm_weight, embnorm_bias;  // (H)
  std::vector<BertBlock> blocks;
  // Of a classification head, absent where the folder has none: tanh(pooler(first token)), then the labels.
  BertLinear pooler;              // (H, H)
  BertLinear classifier;          // (labels, H)
  std::vector<BertLinear> dense;  // fp32, behind the pooling
};

// The tensors of a forward pass. Several of them share memory and take turns.
struct BertActivations {
  Tensor tokens, types, positions;  // (N) int32
  Tensor cu_seqlens;                // (S + 1) int32
  Tensor rows;                      // (1) int32: N, for kernels whose grid was fixed before it was known
  Tensor hidden;                    // (N, H): the result
  Tensor other;                     // (N, H)
  Tensor qkv;                       // (N, 3, NH, HS)
  Tensor att;                       // (N, NH, HS)
  Tensor fc;                        // (N, I)
  bool batch_invariant = false;     // a row's bits do not depend on the others
  std::vector<Tensor> pooled;       // (S, …) fp32, one behind each layer from the pooling on
  Tensor first, pooler, logits;     // (S, H), (S, H), (S, labels) of a classification head
};

// A batch on the host: texts as token ids, one after the other.
struct PackedBatch {
  std::vector<std::int32_t> tokens;  // (N)
  std::vector<std::int32_t> types;   // (N), or empty: all 0
  std::vector<std::int32_t> cu_seqlens{
      0};  // (S + 1): sequence s is tokens [cu_seqlens[s], cu_seqlens[s + 1])

  std::int64_t sequences() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  void clear();
  // Appends a sequence; no types: all 0.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> type_ids = {});
};

// A tensor in the host's memory under its name in Hugging Face's form, maybe behind a prefix ("bert.").
struct BertTensor {
  std::string name;
  std::string stored_dtype;    // as its file calls it, "BF16"
  std::optional<DType> dtype;  // empty: none of DType's
  Shape shape;
  std::span<const std::byte> bytes;  // may be unaligned
};

struct BertOptions {
  DType dtype = DType::f32;                  // of weights and activations
  std::int64_t max_batch_tokens = 16384;     // the arena is allocated for these, once
  std::int64_t max_batch_sequences = 0;      // 0: as many as there can be tokens, at most 4,096
  bool batch_invariant = false;              // a text's bits do not depend on what shares its batch
  std::optional<ops::Pooling> pooling = {};  // instead of the folder's
  std::optional<bool> normalize = {};        // instead of the folder's
  // A folder that keeps the weights of a folder's model as a CPU's kernels take them, for all processes. If
  // it is empty or cannot be used, each process lays them out in its own memory; results are the same bits.
  std::filesystem::path weights_cache = {};
};

// A model loaded from a folder, with the memory of its forward. Calls come from one thread at a time.
class BertModel {
 public:
  // The Context must outlive the model, and gives it device and threads.
  BertModel(Context& context, const std::filesystem::path& folder, const BertOptions& options = {});
  // Weights that are elsewhere than in a folder; nothing of them is kept. Mean pooling.
  BertModel(Context& context, const BertConfig& config, std::vector<BertTensor> tensors,
            const BertOptions& options = {});
  // Random weights (a pure function of the config), mean pooling: for benches and tests.
  BertModel(Context& context, const BertConfig& config, const BertOptions& options = {});
  ~BertModel();
  BertModel(const BertModel&) = delete;
  BertModel& operator=(const BertModel&) = delete;

  const BertConfig& config() const { return config_; }
  const BertPooling& pooling() const { return pooling_; }
  const BertOptions& options() const { return options_; }
  // Tokens of a sequence, by positions and sentence_bert_config.json.
  std::int64_t max_length() const;
  std::int64_t vector_size() const;  // of embed()
  std::int64_t labels() const;       // of classify(); 0: the folder has no classification head

  // A vector for each sequence, (S, vector_size()), behind pooling, dense layers and normalization. A
  // sequence without tokens gives zeros. A batch that does not fit, ids that are not the vocabulary's and
  // values that are not finite are an Error that names the sequence ("text 3 of the batch").
  void embed(const PackedBatch& batch, std::span<float> vectors);
  // The logits of the classification head, (S, labels()).
  void classify(const PackedBatch& batch, std::span<float> logits);
  // The last hidden states, (N, H).
  void hidden(const PackedBatch& batch, std::span<float> states);

  // A forward whose result stays where it is, on the model's device, until the next call: (N, H),
  // (S, vector_size()) or (S, labels()), of options().dtype, but vectors of fp32. On a GPU it is put on the
  // Context's stream, nothing waits for it, and values are not looked at. Calls on several streams are the
  // caller's to order.
  enum class Result : std::uint8_t { hidden, vectors, logits };
  // states: the embedding is left out. What stands in states(N) then takes its place, and of batch.tokens
  // only their number counts.
  enum class From : std::uint8_t { tokens, states };
  Tensor launch(const PackedBatch& batch, Result result, From from = From::tokens);
  Tensor states(std::int64_t tokens) const;  // (N, H)

  // Launches the last call's forward once more, its result staying on the device: for benches.
  void repeat();

  // Rows computed so far beyond the tokens that were given.
  std::int64_t wasted_tokens() const { return wasted_tokens_; }

 private:
  void allocate(bool classifier);
  void check(const PackedBatch& batch, Result result) const;
  Tensor result_of(const BertActivations& a, Result result) const;
  Tensor start(const PackedBatch& batch, Result result, From from);
  void forward(const PackedBatch& batch, Result result, std::span<float> out);

  Context& context_;
  BertConfig config_;
  BertPooling pooling_;
  BertOptions options_;
  struct Memory;
  struct Call;
  void run(const Call& call);
  std::unique_ptr<Memory> memory_;
  std::int64_t wasted_tokens_ = 0;
};

// Tokens to the embedding, a.hidden, and from there through the layers to the last hidden states, in place.
void bert_embed(Context& context, const BertConfig& config, const BertParameters& p,
                const BertActivations& a);
void bert_layers(Context& context, const BertConfig& config, const BertParameters& p,
                 const BertActivations& a);
// True if the layers compute the rows of the batch and no other rows of the activations. On a GPU their
// products may not know how many rows there are.
bool bert_layers_are_exact(Context& context, const BertConfig& config, const BertParameters& p,
                           const BertActivations& a);
// From there to a.pooled.back(), and to a.logits.
void bert_pool(Context& context, const BertPooling& pooling, const BertParameters& p,
               const BertActivations& a);
void bert_classify(Context& context, const BertParameters& p, const BertActivations& a);

}  // namespace warpwright
