// Exchanges a step's gradients, sums of squares and parameters between ranks. Gradients and parameters travel
// unit by unit, on a stream of their own, while the Context's stream goes on. On a CPU an exchange is over
// when the call returns.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.hpp"
#include "runtime/context.hpp"
#include "runtime/side_stream.hpp"
#include "train/rank_sum.hpp"
#include "train/shards.hpp"
#include "train/units.hpp"

namespace warpwright {

class StepExchange {
 public:
  // parameters: their shapes and dtypes. whole: those that no shard cuts. slices: of the step.
  StepExchange(Context& context, const Comm& comm, const Decoder& decoder,
               const std::vector<Tensor>& parameters, const LayerMatrices& whole, Sharding sharding,
               Reduce reduce, std::int64_t slices);
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  const Units& units() const { return units_; }
  const Shards& shards() const { return shards_; }
  const RankSum& sum() const { return *sum_; }

  struct Tensors {
    std::vector<Tensor> parameters;
    std::vector<DecoderParameters> gradients;  // the stack of sums over this rank's slices
    RankSum::Memory sums;
    Tensor squares;  // (blocks) fp64
    Tensor gates;    // (ranks) fp32
    Tensor gate;     // (1) fp32, this rank's: its value is there before the backward
  };
  // Several ranks make this call, once the memory is there.
  void prepare(const Tensors& tensors);

  // Begins the exchange of a unit whose gradients of this round are there, on top of `below` sums. The
  // additions follow, and after the last round the sums of squares. The first layer comes last; after its
  // exchange all ranks have all sums of squares, and all gates.
  void add_gradients(std::size_t unit, std::size_t round, std::size_t below);
  // The Context's stream waits until the latest exchange of this unit's gradients is over, and those before.
  void wait_for_gradients(std::size_t unit) const { added_[unit].hold(context_.stream()); }
  // This rank's shard of the step's gradients; with Sharding::none all ranks then have all of them.
  const std::vector<Tensor>& gradients() const { return sum_->sum(); }

  // Begins to send this rank's shard of a unit's parameters to all others. stored: the shard, by piece; it
  // may be in its place already.
  void send_parameters(std::size_t unit, const std::vector<Tensor>& stored);
  // The Context's stream waits for the unit's parameters, and for those sent before.
  void wait_for_parameters(std::size_t unit) const { arrived_[unit].hold(context_.stream()); }

 private:
  struct Unit {
    std::unique_ptr<const Comm::Exchange> gather;          // of parameters; with Sharding::none of gradients
    std::unique_ptr<const Comm::Exchange> gather_squares;  // see squares_sent_with()
    std::vector<std::vector<Tensor>> sets;                 // gradients, by set
    // This rank's shard: its indices, the gradients' sum, and the places in all gradients and parameters.
    std::vector<std::size_t> mine;
    std::vector<Tensor> sum, gradients, parameters;
    std::vector<SquaresRun> squares;  // of the sum
  };

  // The side stream's later work waits for all work that the Context's stream has so far.
  void follow();
  // The blocks of squares that the ranks exchange when this unit is done: its own. The first layer takes
  // along the gates, and the blocks of the parameters outside of the layers, for which its gradients would
  // wait.
  Shards squares_sent_with(std::size_t unit, const std::vector<Tensor>& gradients) const;
  void finish_gradients(std::size_t unit);

  Context& context_;
  const Comm& comm_;
  Sharding sharding_;
  Units units_;
  Shards shards_;
  std::unique_ptr<RankSum> sum_;
  SideStream side_;
  Milestone reached_;
  std::vector<Milestone> added_, arrived_;  // by unit
  std::vector<Unit> prepared_;
  Tensor squares_, gates_, gate_;
};

}  // namespace warpwright
