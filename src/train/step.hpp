// One training step on one device: its tensors, their plan, and the operations in order.
//
// On a GPU the calls return before the work is done: results are available after collect(). Forward, backward
// and Muon's update are captured once and replayed as graphs. The order of a step is
//   begin, { host_batch (filled), forward_backward } for each slice, gradient_norm, update
// collect() waits for the loss and norm of the oldest step that has not been collected. Up to kStepsInFlight
// steps may be under way. On a CPU the work is done when a call returns.
//
// A step's batch consists of equal slices. Each stores its gradients by themselves, and a tree that depends
// on the number of slices alone adds them up (slice_tree.hpp). Over several ranks, each runs its
// share of the slices; the step's gradients, loss and norm are then the same on all of them
// (step_exchange.hpp). With Reduce::ring, the library that connects the ranks adds up their sums.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/decoder.hpp"
#include "ops/adamw/adamw.hpp"
#include "runtime/captured.hpp"
#include "runtime/host_view.hpp"
#include "runtime/planned.hpp"
#include "train/muon.hpp"
#include "train/optimizer_shard.hpp"
#include "train/state_part.hpp"
#include "train/step_exchange.hpp"

namespace warpwright {

//   adamw  AdamW for all parameters
//   muon   Muon for the matrices of the layers (muon.hpp), AdamW for the others
enum class Optimizer : std::uint8_t { adamw, muon };
inline constexpr Optimizer kOptimizers[] = {Optimizer::adamw, Optimizer::muon};
std::string_view name_of(Optimizer optimizer);

struct StepOptions {
  std::shared_ptr<const Decoder> model;
  DType dtype = DType::f32;  // of weights and activations
  // fp32 masters of bf16 weights (ops/adamw). Without them the update changes the bf16 weights and rounds at
  // random; the random numbers are a function of seed, step, tensor and element.
  bool master_weights = true;
  std::uint64_t rounding_seed = 0;
  std::int64_t B = 4;   // sequences of a slice
  std::int64_t T = 64;  // tokens of a sequence
  std::int64_t slices = 1;
  Sharding sharding = Sharding::optimizer;  // over several ranks
  Reduce reduce = Reduce::tree;             // over several ranks
  double clip = 1;                          // largest gradient norm; 0: do not clip
  Optimizer optimizer = Optimizer::adamw;
  double muon_momentum = 0.95;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  Recompute recompute = Recompute::none;
  NormBackwardFrom norms = NormBackwardFrom::input;  // output: not with Recompute::norm or block
  std::int64_t logits_mib = 2048;  // most MiB for logits; a slice that needs more passes the head in parts
  bool decay_all = false;          // decay biases and layer normalization too, not only matrices
  bool halt_on_non_finite = true;  // see TrainingStep::update
};

// The tokens that the head takes at a time, if the logits of one take row_bytes: as few equal parts of all
// tokens as keep within most_bytes. A single token may take more.
std::int64_t logits_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t most_bytes);

// The parameters that Muon updates.
LayerMatrices muon_matrices(const StepOptions& options);

class TrainingStep {
 public:
  struct Tensors {
    DecoderParameters parameters;  // of one layer at a time with Sharding::parameters
    OptimizerShard optimizer;      // of the parameters that this rank updates
    // A stack of partial sums. On a single rank, the lowest holds the step's gradients after the last slice.
    std::vector<DecoderParameters> gradients;
    RankSum::Memory sums;
    DecoderBatch batch;
    Tensor targets;  // (N) int32
    Tensor weights;  // (N) fp32: 1 / tokens of the whole step
    Tensor losses;   // (N) fp32
    std::unique_ptr<TrainingPass> pass;
    Tensor squares;        // (blocks) fp64: of all gradients (ops/global_norm)
    Tensor norm, scalars;  // (1), (4) fp32: AdamWScalars
    Tensor random;         // (3) int32 (ops/adamw), if bf16 weights have no masters
    Tensor loss_squares;   // (blocks) fp64: of a slice's losses
    Tensor loss_norm;      // (1) fp32
    Tensor gates;          // (ranks) fp32, over several ranks: NaN if a loss of the rank is not finite
    MuonBuffers muon;
  };

  // Records the step and lays out its memory, but takes none yet. The ranks divide the slices.
  TrainingStep(Context& context, const StepOptions& options, const Comm& comm = single_rank());
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const MemoryPlan& plan() const { return planned_.plan(); }
  std::uint64_t plan_hash() const { return plan_hash_; }  // of the variants chosen for the step
  void allocate();
  std::size_t allocated_bytes() const { return planned_.arenas().allocated_bytes(); }
  const Tensors& tensors() const { return planned_.tensors(); }
  // Takes weights in full precision: masters, rounded to parameters. Not within a step.
  ParameterWriter full_precision() const;
  // Takes the parameters of a checkpoint, whose masters come from elsewhere.
  ParameterWriter parameter_writer() const;
  // Every rank reads the same parameters in the same order, but only rank 0 gets them.
  ParameterReader parameter_reader() const;
  // Takes part in rank 0's reading of all parameters.
  void give_parameters() const;
  // For sessions that end before this does. Not with Sharding::parameters.
  DecoderWeights weights() const;
  // This rank's part of a checkpoint. Parameters that are whole on no rank are gathered into memory of
  // `heap`. Every rank makes this call, and not within a step.
  StatePart state_part(Allocator& heap) const;
  std::size_t state_part_bytes() const;

  static constexpr int kStepsInFlight = 2;
  // Begins a step. An Error if kStepsInFlight steps are waiting for collect().
  void begin();
  // The index within the step of this rank's slice.
  std::int64_t slice_of_rank(std::int64_t slice) const;
  // The place of the next slice on the host, (B, T) each.
  struct HostBatch {
    Tensor tokens, targets;
  };
  HostBatch host_batch();
  // Runs the batch that host_batch() gave, as this rank's next slice. An Error if it has run all.
  void forward_backward();
  // The norm of the gradients. An Error if a slice has not run. Also leaves the clipping factor for
  // update().
  void gradient_norm();
  // step counts from 1; 0 is an Error. If a loss or a gradient is not finite, the update changes nothing.
  // With halt_on_non_finite, neither do the updates of the steps that had begun before collect() reported it.
  void update(double learning_rate, std::int64_t step);

  struct Result {
    double loss_sum = 0;  // over the tokens of all ranks' slices, in nats
    double norm = 0;
    // From the norm of the step before, or from the step's begin if none was under way, to this one's norm,
    // by the device's clock.
    double seconds = 0;
  };
  Result collect();

  // The sum of the losses, in nats, of the batch that host_batch() gave. Not within a step.
  double forward();

  // "h.3.qkv (out of matmul.forward)": the first tensor that is not finite when the present batch runs
  // through forward and backward; nothing if all are finite. Not within a step.
  std::optional<std::string> first_non_finite();

 private:
  // The host's side of one slice, and the point at which the device is done with it.
  struct BatchSlot {
    HostView tokens, targets, losses;
    std::optional<Event> done;
    int step = -1;  // the StepSlot that its losses belong to; −1: none
  };
  // The host's side of one step.
  struct StepSlot {
    HostView norm, scalars, random;
    std::optional<Event> begun, scalars_read;
    bool follows = false;        // another step was under way at its begin
    std::vector<double> losses;  // of this rank's slices
    double gradient_norm = 0;
  };

  // Parameters that are updated at a time.
  struct Update {
    ops::AdamW adamw;
    std::vector<MuonMatrix> muon;
    Captured captured{};  // with Muon, whose kernels are many
  };
  // pieces: their indices in the optimizer's.
  Update update_of(const Tensors& t, const OptimizerShard& optimizer, const std::vector<Tensor>& gradients,
                   const std::vector<std::size_t>& pieces) const;
  void run_update(const Tensors& t, const Update& update);
  void update_pieces(Update& update);

  Tensors allocate_tensors(Allocator& allocator) const;
  Planned<Tensors> plan_step();
  // The arguments of the update, for all parameters at once or by unit.
  void prepare_update();
  void fill_constants();
  void make_slots();
  Event& norm_of(int step);
  // Waits for the slot and gives its losses to their step.
  void reclaim(BatchSlot& slot);
  // Forward, head, the gate and backward. Stores the gradients on top of `below` partial sums.
  void run_slice(const Tensors& t, std::size_t below);
  bool divides_gradients() const { return options_.sharding >= Sharding::gradients; }
  bool divides_parameters() const { return options_.sharding == Sharding::parameters; }
  // True if a rank updates its shard, and all ranks have all parameters.
  bool sends_parameters() const { return options_.sharding != Sharding::none && !divides_parameters(); }
  void update_units();
  // Both are empty while the step is recorded.
  // direction: to the next layer, 1 or −1.
  LayerHooks parameter_hooks(int direction);
  LayerHooks backward_hooks();
  // Brings the layer to its place, if it is not there.
  void hold_layer(std::size_t layer);
  // Makes the stream wait for the exchange of all gradients.
  void wait_for_gradients();
  // True if that slice does the same in every step, so that it can be a graph.
  bool repeats_exchange() const {
    return !divides_parameters() && (!divides_gradients() || exchange_.sum().rounds() == 1);
  }
  // Adds the present slice to the sums, as far as the tree says.
  void add_slice();
  // Makes the stream wait for the parameters that other ranks have updated.
  void wait_for_parameters();
  // LM head and classifier, part by part (logits_rows). With gradients, also the head's backward.
  void run_head(const Tensors& t, const DecoderParameters* gradients);
  // Makes the factor of update() NaN if a loss is not finite. A logit of −inf makes the loss infinite and
  // leaves the gradient finite.
  static constexpr int kLossGateCalls = 2;  // of operations
  void run_loss_gate(const Tensors& t, bool first_slice);
  // Makes the factor NaN if it is NaN on any rank.
  void run_gates_of_ranks(const Tensors& t);
  void run_squares(const std::vector<Tensor>& gradients, const Tensor& sums);
  void run_norm(const Tensors& t);

  Context& context_;
  StepOptions options_;
  LayerMatrices muon_;  // the parameters that Muon updates
  const Comm& comm_;
  StepExchange exchange_;
  Shards updates_;  // of the parameters that ranks update: the exchange's, or all of them for everyone
  std::vector<Tensor> parameters_, gradients_;  // in the parameters' order
  bool exchanging_ = false;                     // the present slice's gradients, as soon as a unit has them
  bool parameters_arrive_ = false;              // some may still be under way
  // The places that all layers share, for gradients or parameters that are divided: one layer is exchanged
  // while another one is computed.
  static constexpr std::size_t kLayerPlaces = 2;
  // With Sharding::parameters: the layers in these places, and whether the other parameters are there.
  std::array<std::optional<std::size_t>, kLayerPlaces> held_layers_;
  bool holds_others_ = false;
  Planned<Tensors> planned_;
  std::uint64_t plan_hash_ = 0;
  std::vector<Update> update_;  // of all parameters, or of each unit

  static constexpr int kBatchSlots = 2;
  std::array<BatchSlot, kBatchSlots> batch_slots_;
  std::array<StepSlot, kStepsInFlight> step_slots_;
  // Set by the norm of each step, and there until the next step is collected.
  std::vector<Event> norms_;
  int next_batch_ = 0;             // the slot that host_batch() gives
  int begun_ = 0, collected_ = 0;  // steps
  std::size_t slice_ = 0;          // of the step that has begun: the next one
  std::size_t sums_ = 0;           // partial sums on the stack
  std::vector<Captured> slices_;   // by the partial sums below
  Captured exchanging_slice_, forward_;
};

}  // namespace warpwright
