// One training step on one device: its tensors, their plan, and the operations in order.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/gpt2.hpp"
#include "ops/adamw/adamw.hpp"

namespace warpwright {

struct StepOptions {
  GPT2Config model;
  DType dtype = DType::f32;  // of weights and activations; bf16 keeps fp32 master weights
  std::int64_t B = 4;        // sequences of a micro-batch
  std::int64_t T = 64;       // tokens of a sequence
  std::int64_t micro_batches = 1;
  double clip = 1;  // largest gradient norm; 0: do not clip
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all = false;  // decay biases and layer normalization too, not only matrices
};

class TrainingStep {
 public:
  struct Tensors {
    GPT2Parameters parameters, masters, gradients, m, v;  // masters: no tensors where parameters are fp32
    GPT2Batch batch;
    Tensor targets;  // (N) int32
    Tensor weights;  // (N) fp32: 1 / tokens of the whole step
    GPT2Activations activations;
    GPT2BackwardBuffers backward;
    Tensor logits;          // (N, Vp)
    Tensor losses;          // (N) fp32
    Tensor norm, schedule;  // (1), (4) fp32
  };

  // Records the step and lays out its memory, but takes none yet.
  TrainingStep(Context& context, const StepOptions& options);

  const MemoryPlan& plan() const { return plan_; }
  std::uint64_t plan_hash() const { return plan_hash_; }  // of the variants chosen for the step
  void allocate();
  std::size_t allocated_bytes() const { return arenas_->allocated_bytes(); }
  Tensors& tensors() { return tensors_; }
  // What holds the weights in full precision: the masters where there are any.
  const GPT2Parameters& full_precision() const;
  // Makes the parameters the rounded masters; nothing in fp32.
  void round_masters();

  // On the tokens and targets in the batch. Both return the sum of the losses, in nats.
  double forward_backward(ops::Store store);
  double forward();
  // The norm of the gradients; also leaves the clipping factor for update().
  double gradient_norm();
  // step counts from 1.
  void update(double learning_rate, std::int64_t step);

  // "h.3.qkv, written by matmul.forward": the first tensor that is not finite when the present batch runs
  // through forward and backward; nothing where all are finite.
  std::optional<std::string> first_non_finite();

 private:
  static Tensors allocate_tensors(const StepOptions& options, Allocator& allocator);
  void record();
  void run_forward(const Tensors& t);
  void run_backward(const Tensors& t, ops::Store store);
  void run_classifier(const Tensors& t, bool gradient);
  void run_norm(const Tensors& t);
  ops::AdamW adamw_arguments(const Tensors& t) const;
  double sum_of_losses() const;

  Context& context_;
  StepOptions options_;
  MemoryPlan plan_;
  std::uint64_t plan_hash_ = 0;
  std::unique_ptr<Arenas> arenas_;
  Tensors tensors_;
  ops::AdamW adamw_;
};

}  // namespace warpwright
