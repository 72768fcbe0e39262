// The loss of given texts under a model: evaluation on shards, and multiple choice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/loader.hpp"
#include "infer/share.hpp"
#include "model/decoder.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

// Runs packed sequences forward and returns each token's loss, over weights that other sessions may share.
// All memory is planned and taken at construction.
class Scorer {
 public:
  // At most `sequences` at once, of together at most `max_tokens`. The Context must be one of the weights'
  // device and outlive the Scorer.
  Scorer(Context& context, DecoderWeights weights, std::int64_t sequences, std::int64_t max_tokens);
  ~Scorer();

  struct Sequence {
    std::span<const std::int32_t> inputs;   // 1 to context tokens
    std::span<const std::int32_t> targets;  // as many; −1 for those that do not count
  };
  // Losses in nats, in the order of the tokens; 0 for a target of −1. Valid until the next call. Throws Error
  // for sequences that do not fit and for targets of another number than the inputs.
  std::span<const float> score(std::span<const Sequence> sequences);

 private:
  struct Tensors;
  struct HostViews;
  static Tensors allocate(const DecoderWeights& weights, std::int64_t sequences, std::int64_t max_tokens,
                          Allocator& allocator);
  void run(const Tensors& tensors, std::int64_t N);

  Context& context_;
  DecoderWeights weights_;
  std::unique_ptr<Planned<Tensors>> tensors_;
  std::unique_ptr<HostViews> host_;
};

struct LossReport {
  double loss = 0;  // mean, in nats per token
  std::int64_t tokens = 0;
};

// The mean loss over the stream in samples of T tokens, B at a time (max_batches: 0 for all). The processes
// of a share divide the batches; the report of process 0 counts all of them.
LossReport evaluate_loss(Context& context, const DecoderWeights& weights, const TokenStream& stream,
                         std::int64_t B, std::int64_t T, std::int64_t max_batches,
                         const std::function<void(std::int64_t done, std::int64_t total)>& progress,
                         const Share& share = {});

// One question in HellaSwag's form: a text and its possible endings. Text and endings have at least one token
// each.
struct Choice {
  std::vector<std::int32_t> text;
  std::vector<std::vector<std::int32_t>> endings;
  std::int64_t label = 0;
};

struct ChoiceReport {
  std::int64_t questions = 0;
  std::int64_t right = 0;             // by the sum of the ending's losses
  std::int64_t right_normalized = 0;  // by their mean over the ending's tokens
};

// Text and ending together must fit the context. Throws Error for a question that does not, and for an empty
// text or ending. The processes of a share divide the questions; the report
// of process 0 counts all of them.
ChoiceReport evaluate_choices(Context& context, const DecoderWeights& weights,
                              std::span<const Choice> choices,
                              const std::function<void(std::int64_t done)>& progress,
                              const Share& share = {});

}  // namespace warpwright
