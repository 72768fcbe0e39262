// One training step on one device: its tensors, their plan, and the operations in order.
//
// A GPU works behind the calls: what they compute is there after collect(), and the forward and backward are
// captured once and replayed as graphs. The order of a step is
//   begin, { host_batch (filled), forward_backward } for each micro-batch, gradient_norm, update
// and collect() waits for the loss and norm of the oldest step that has them still to give. Up to
// kStepsInFlight steps may have begun; on a CPU everything has happened when a call returns.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.hpp"
#include "ops/adamw/adamw.hpp"
#include "runtime/captured.hpp"
#include "runtime/host_view.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

struct StepOptions {
  std::shared_ptr<const Decoder> model;
  DType dtype = DType::f32;  // of weights and activations
  // Beside bf16 weights, in fp32. Without them AdamW updates the bf16 weights themselves and
  // rounds at random, by numbers that the seed, the step, the tensor and the element give.
  bool master_weights = true;
  std::uint64_t rounding_seed = 0;
  std::int64_t B = 4;   // sequences of a micro-batch
  std::int64_t T = 64;  // tokens of a sequence
  std::int64_t micro_batches = 1;
  double clip = 1;  // largest gradient norm; 0: do not clip
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  Recompute recompute = Recompute::none;
  NormBackwardFrom norms = NormBackwardFrom::input;  // output: not beside Recompute::norm and block
  bool decay_all = false;          // decay biases and layer normalization too, not only matrices
  bool halt_on_non_finite = true;  // see TrainingStep::update
};

class TrainingStep {
 public:
  struct Tensors {
    // masters: empty if all parameters are fp32, or if there are to be none. A parameter that is fp32 is its
    // own master.
    DecoderParameters parameters, masters, gradients, m, v;
    DecoderBatch batch;
    Tensor targets;  // (N) int32
    Tensor weights;  // (N) fp32: 1 / tokens of the whole step
    Tensor losses;   // (N) fp32
    std::unique_ptr<TrainingPass> pass;
    Tensor norm, scalars;  // (1), (4) fp32: AdamWScalars
    Tensor random;         // (3) int32 (ops/adamw), where bf16 weights have no masters
    Tensor loss_norm;      // (1) fp32: of a micro-batch's losses
  };

  // Records the step and lays out its memory, but takes none yet.
  TrainingStep(Context& context, const StepOptions& options);

  const MemoryPlan& plan() const { return planned_.plan(); }
  std::uint64_t plan_hash() const { return plan_hash_; }  // of the variants chosen for the step
  void allocate();
  std::size_t allocated_bytes() const { return planned_.arenas().allocated_bytes(); }
  const Tensors& tensors() const { return planned_.tensors(); }
  // What holds the weights in full precision: the masters where there are any.
  const DecoderParameters& full_precision() const;
  // For sessions that end before this does.
  DecoderWeights weights() const;
  // Makes the parameters the rounded masters, where there are any.
  void round_masters();

  static constexpr int kStepsInFlight = 2;
  // Begins a step. An Error where kStepsInFlight are waiting for collect().
  void begin();
  // Where the next micro-batch goes, (B, T) each, on the host.
  struct HostBatch {
    Tensor tokens, targets;
  };
  HostBatch host_batch();
  // On the batch that host_batch() gave.
  void forward_backward(ops::Store store);
  // The norm of the gradients; also leaves the clipping factor for update().
  void gradient_norm();
  // step counts from 1. After a loss or a gradient that is not finite nothing changes; with
  // halt_on_non_finite, nor does it in any update of a step that had begun before collect() told of it.
  void update(double learning_rate, std::int64_t step);

  struct Result {
    double loss_sum = 0;  // over the tokens of all micro-batches, in nats
    double norm = 0;
  };
  Result collect();

  // Outside of any step: the sum of the losses of the batch that host_batch() gave, in nats.
  double forward();

  // "h.3.qkv, written by matmul.forward": the first tensor that is not finite when the present batch runs
  // through forward and backward; nothing where all are finite. Outside of any step.
  std::optional<std::string> first_non_finite();

 private:
  // The host's side of one micro-batch, and the point at which the device is done with it.
  struct BatchSlot {
    HostView tokens, targets, losses;
    std::optional<Event> done;
    int step = -1;  // the StepSlot that its losses belong to; −1: none
  };
  // The host's side of one step.
  struct StepSlot {
    HostView norm, scalars, random;
    std::optional<Event> done, scalars_read;
    Result result;
  };

  static Tensors allocate_tensors(const StepOptions& options, Allocator& allocator);
  Planned<Tensors> plan_step();
  void fill_constants();
  void make_slots();
  // Waits for the slot and gives its losses to their step.
  void reclaim(BatchSlot& slot);
  // Forward, head, backward and the gate, as every micro-batch runs them.
  void run_micro_batch(const Tensors& t, ops::Store store);
  // LM head and classifier, a chunk of rows after the other, and with a gradient the head's backward.
  void run_head(const Tensors& t, bool gradient, ops::Store store = ops::Store::assign);
  // Makes the factor of update() NaN where a loss is not finite, as after logits of −inf, whose gradient is.
  void run_loss_gate(const Tensors& t, ops::Store store);
  void run_norm(const Tensors& t);
  ops::AdamW adamw_arguments(const Tensors& t) const;

  Context& context_;
  StepOptions options_;
  Planned<Tensors> planned_;
  std::uint64_t plan_hash_ = 0;
  ops::AdamW adamw_;

  static constexpr int kBatchSlots = 2;
  std::array<BatchSlot, kBatchSlots> batch_slots_;
  std::array<StepSlot, kStepsInFlight> step_slots_;
  int next_batch_ = 0;             // the slot that host_batch() gives
  int begun_ = 0, collected_ = 0;  // steps
  Captured assign_, add_, forward_;
};

}  // namespace warpwright
