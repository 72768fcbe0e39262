// A BERT-family encoder at work: token ids to hidden states, vectors or logits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "model/bert_attention.hpp"
#include "model/bert_batch.hpp"
#include "model/bert_weights.hpp"

namespace warpwright {

struct BertOptions {
  std::int64_t max_batch_tokens = 16384;     // the arena is allocated for these, once
  std::int64_t max_batch_sequences = 0;      // 0: as many as there can be tokens, at most 4,096
  bool batch_invariant = false;              // a text's bits do not depend on what shares its batch
  std::optional<ops::Pooling> pooling = {};  // instead of the folder's
  std::optional<bool> normalize = {};        // instead of the folder's
  BertAttention attention = {};              // of calls that give none; without a mask
};

// The memory of a forward over weights that other sessions may share. Calls come from one thread at a time.
class BertSession {
 public:
  // The Context must be one of the weights' device and outlive the session.
  BertSession(Context& context, std::shared_ptr<const BertWeights> weights, const BertOptions& options = {});
  ~BertSession();
  BertSession(const BertSession&) = delete;
  BertSession& operator=(const BertSession&) = delete;

  const std::shared_ptr<const BertWeights>& weights() const { return weights_; }
  const MemoryPlan& plan() const;  // of the session alone
  const BertConfig& config() const { return weights_->config(); }
  const BertPooling& pooling() const { return pooling_; }
  const BertOptions& options() const { return options_; }
  // Tokens of a sequence, by positions and sentence_bert_config.json.
  std::int64_t max_length() const;
  std::int64_t vector_size() const;  // of embed()
  std::int64_t labels() const;       // of classify(); 0: the folder has no classification head

  // A vector for each sequence, (S, vector_size()), after pooling, dense layers and normalization. A sequence
  // without tokens gives zeros. A batch that does not fit, ids beyond the vocabulary and values that are not
  // finite are an Error that names the sequence ("text 3 of the batch").
  void embed(const PackedBatch& batch, std::span<float> vectors, const BertAttention& attention = {});
  // The logits of the classification head, (S, labels()).
  void classify(const PackedBatch& batch, std::span<float> logits, const BertAttention& attention = {});
  // The last hidden states, (N, H).
  void hidden(const PackedBatch& batch, std::span<float> states, const BertAttention& attention = {});

  // A forward whose result stays where it is, on the weights' device, until the next call: (N, H),
  // (S, vector_size()) or (S, labels()), of the weights' dtype, but vectors of fp32. On a GPU it is put on
  // the Context's stream, nothing waits for it, and values are not looked at. Calls on several streams are
  // the caller's to order.
  enum class Result : std::uint8_t { hidden, vectors, logits };
  // states: skips the embedding and reads states(N). Token ids are checked but not used. cu_seqlens still
  // delimits the sequences.
  enum class From : std::uint8_t { tokens, states };
  Tensor launch(const PackedBatch& batch, Result result, From from = From::tokens,
                const BertAttention& attention = {});
  Tensor states(std::int64_t tokens) const;  // (N, H)

  // The layers alone, over padded states (B, S, H) with a mask (B, S) in any dtype (ops/padding/mask.hpp),
  // both on the weights' device. The device finds lengths and places, so the host waits for nothing. out is
  // (B, S, H), with 0 in padding.
  void layers(const Tensor& states, const Tensor& mask, const Tensor& out);

  // Waits until the last launch has read its mask, and throws Error if a value was neither 0 nor 1. On a GPU,
  // the next call throws it, too; on a CPU, launch does.
  void check_mask();

  // Launches the last call's forward once more, its result staying on the device: for benches.
  void repeat();

  // Rows computed so far beyond the tokens that were given.
  std::int64_t wasted_tokens() const { return wasted_tokens_; }

 private:
  struct Memory;
  struct Call;
  void plan_memory();
  void take_host_memory();
  const BertAttention& or_default(const BertAttention& attention) const {
    return attention.changes_anything() ? attention : options_.attention;
  }
  void check(const PackedBatch& batch, Result result, const BertAttention& attention) const;
  void run(const Call& call);
  Tensor flag();
  void report(const Tensor& flag, const Shape& mask);
  // Waits until the last call's copies from and to pinned memory are done.
  void wait_for_copies();
  void read_mask(const Tensor& mask);
  Tensor result_of(const BertActivations& a, Result result) const;
  Tensor start(const PackedBatch& batch, Result result, From from, const BertAttention& attention);
  void forward(const PackedBatch& batch, Result result, std::span<float> out, const BertAttention& attention);

  Context& context_;
  std::shared_ptr<const BertWeights> weights_;
  BertPooling pooling_;
  BertOptions options_;
  std::unique_ptr<Memory> memory_;
  std::int64_t wasted_tokens_ = 0;
};

}  // namespace warpwright
