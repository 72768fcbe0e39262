#include "train/step_exchange.hpp"

#include "ops/global_norm/global_norm.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {

StepExchange::StepExchange(Context& context, const Comm& comm, const Decoder& decoder,
                           const std::vector<Tensor>& parameters, const LayerMatrices& whole,
                           Sharding sharding, Reduce reduce, std::int64_t slices)
    : context_(context),
      comm_(comm),
      sharding_(sharding),
      units_(decoder),
      shards_(shards_by_unit(units_, parameters, whole, comm.size())),
      sum_(make_rank_sum(reduce, {comm, units_, shards_, slices, sharding >= Sharding::gradients})),
      side_(context.device().device),
      reached_(context.device().device) {}

void StepExchange::prepare(const Tensors& t) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  const std::vector<Tensor> gradients = t.gradients.front().tensors();
  sum_->prepare(t.gradients, t.sums);
  squares_ = t.squares;
  gates_ = t.gates;
  gate_ = t.gate;
  for (std::size_t u = 0; u < units_.count(); ++u) {
    added_.emplace_back(context_.device().device);
    arrived_.emplace_back(context_.device().device);
    const Shards part = units_.part(u, shards_);
    Unit& unit = prepared_.emplace_back();
    unit.gather = prepare_gather(comm_, part, sharding_ == Sharding::none ? gradients : t.parameters);
    for (const DecoderParameters& set : t.gradients) unit.sets.push_back(units_.of_all(u, set.tensors()));
    unit.mine = units_.indices(u, shards_[rank]);
    unit.sum = at(sum_->sum(), unit.mine);
    unit.gradients = pieces_of(part[rank], gradients);
    unit.parameters = pieces_of(part[rank], t.parameters);
    unit.squares = squares_runs(part[rank], gradients);
    unit.gather_squares = prepare_gather(comm_, squares_sent_with(u, gradients), {t.squares, t.gates});
  }
}

Shards StepExchange::squares_sent_with(std::size_t unit, const std::vector<Tensor>& gradients) const {
  Shards blocks(shards_.size());
  if (unit == units_.others()) return blocks;
  for (std::size_t r = 0; r < blocks.size(); ++r) {
    const auto append = [&](std::size_t u) {
      for (const SquaresRun& run : squares_runs(units_.part(u, shards_)[r], gradients)) {
        blocks[r].push_back(run.blocks);
      }
    };
    append(unit);
    if (unit != Units::kLast) continue;
    append(units_.others());
    blocks[r].push_back({1, static_cast<std::int64_t>(r), 1});
  }
  return blocks;
}

void StepExchange::follow() {
  reached_.set(context_.stream());
  reached_.hold(side_.stream());
}

void StepExchange::add_gradients(std::size_t index, std::size_t round, std::size_t below) {
  follow();
  const OnStream beside(context_, side_.stream());
  const Unit& unit = prepared_[index];
  std::size_t top = below;
  for (int addition = 0; addition < sum_->additions(round); ++addition, --top) {
    const std::vector<Tensor>& sums = unit.sets[top - 1];
    ops::gradient_sum(context_, {.sums = sums, .firsts = sums, .addends = unit.sets[top]});
  }
  sum_->run(context_, index, round);
  if (round + 1 == sum_->rounds()) finish_gradients(index);
  added_[index].set(side_.stream());
  comm_.watch(side_.stream());
}

void StepExchange::finish_gradients(std::size_t index) {
  const Unit& unit = prepared_[index];
  for (const SquaresRun& run : unit.squares) {
    const auto first = unit.sum.begin() + static_cast<std::ptrdiff_t>(run.first);
    ops::squares(context_, {.gradients = {first, first + static_cast<std::ptrdiff_t>(run.count)},
                            .sums = run.blocks.of(squares_)});
  }
  if (index == Units::kLast) copy(gates_.slice(0, comm_.rank(), 1), gate_, context_.stream());
  unit.gather_squares->run(context_.stream());
  if (sharding_ != Sharding::none) return;
  bring(unit.gradients, unit.sum, context_.stream());
  unit.gather->run(context_.stream());
}

void StepExchange::send_parameters(std::size_t index, const std::vector<Tensor>& stored) {
  follow();
  const Unit& unit = prepared_[index];
  bring(unit.parameters, at(stored, unit.mine), side_.stream());
  unit.gather->run(side_.stream());
  arrived_[index].set(side_.stream());
  comm_.watch(side_.stream());
}

}  // namespace warpwright
