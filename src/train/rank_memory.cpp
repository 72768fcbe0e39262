#include "train/rank_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "comm/host.hpp"
#include "runtime/cgroup.hpp"
#include "runtime/device.hpp"

namespace warpwright {
namespace {

constexpr std::size_t kNumbers = kCategories + 3;

// The part of a step's tensors that differs between ranks: shards, sums, and gradients of other ranks.
class Parts {
 public:
  Parts(const StepOptions& options, int ranks)
      : options_(options),
        units_(*options.model),
        parameters_(options.model->allocate_parameters(options.dtype, Category::parameters, "", recorder_)),
        gradients_(options.model->allocate_parameters(ops::accumulation_dtype(options.dtype),
                                                      Category::gradients, "gradient.", recorder_)),
        muon_(muon_matrices(options)),
        shards_(shards_by_unit(units_, parameters_.tensors(), muon_, ranks)) {}

  std::size_t bytes(int rank) const {
    const auto comm = imagined_rank(rank, static_cast<int>(shards_.size()));
    const auto sum = make_rank_sum(
        options_.reduce, {*comm, units_, shards_, options_.slices, options_.sharding >= Sharding::gradients});
    Recorder recorder;
    sum->allocate(gradients_.tensors(), recorder);
    if (options_.sharding != Sharding::none) {
      const bool masters = options_.master_weights && options_.dtype == DType::bf16;
      const bool stores = options_.sharding == Sharding::parameters;
      allocate_optimizer(parameters_, shards_[static_cast<std::size_t>(rank)],
                         {.masters = masters, .stores_parameters = stores, .muon = muon_}, recorder);
    }
    for (std::size_t i = 0; i < sum->depth() && options_.sharding < Sharding::gradients; ++i) {
      options_.model->allocate_parameters(ops::accumulation_dtype(options_.dtype), Category::gradients,
                                          fmt::format("{}.", i), recorder);
    }
    return recorder.plan().total_bytes();
  }

 private:
  const StepOptions& options_;
  const Units units_;
  Recorder recorder_;
  DecoderParameters parameters_, gradients_;
  LayerMatrices muon_;
  Shards shards_;
};

std::vector<Tensor> recorded_parameters(const StepOptions& options) {
  Recorder recorder;
  return options.model->allocate_parameters(options.dtype, Category::parameters, "", recorder).tensors();
}

// The part of the rank that has most, in equal parts. size(piece): its part of the whole.
template <class F>
double largest_part(const Shards& shards, const F& size) {
  double all = 0, largest = 0;
  for (const ShardPieces& pieces : shards) {
    double part = 0;
    for (const ShardPiece& piece : pieces) part += size(piece);
    all += part;
    largest = std::max(largest, part);
  }
  return largest * static_cast<double>(shards.size()) / all;
}

}  // namespace

std::size_t RankMemory::total() const {
  return std::accumulate(tensors.begin(), tensors.end(), workspace + samples + nccl);
}

RankMemory rank_memory(const MemoryPlan& step, const MemoryPlan& samples, Device device, int ranks) {
  RankMemory memory;
  std::ranges::copy(step.arena_bytes, memory.tensors.begin());
  memory.workspace = std::max(step.workspace_bytes, samples.workspace_bytes);
  memory.samples = samples.total_bytes() - samples.workspace_bytes;
  if (ranks > 1 && device.kind == DeviceKind::cuda) memory.nccl = kNcclBytes;
  return memory;
}

DecodingOptions sampling_engine(const TrainOptions& options) {
  return {.context = context_for(*options.step.model, options.sample_tokens + 1), .batch_tokens = 64};
}

RankMemory planned_rank_memory(Context& context, const TrainOptions& options, const Comm& comm) {
  const Trial trial(context);
  const StepOptions& s = options.step;
  const bool samples = options.sample_every > 0 && comm.rank() == 0;
  return rank_memory(
      TrainingStep(context, s, comm).plan(),
      samples ? DecodingEngine::planned(context, *s.model, s.dtype, sampling_engine(options)) : MemoryPlan{},
      context.device().device, comm.size());
}

int rank_with_most(const StepOptions& options, int ranks) {
  const Parts parts(options, ranks);
  std::vector<std::size_t> bytes;
  for (int r = 0; r < ranks; ++r) bytes.push_back(parts.bytes(r));
  return static_cast<int>(std::ranges::max_element(bytes) - bytes.begin());
}

double largest_shard(const StepOptions& options, int ranks) {
  const std::vector<Tensor> parameters = recorded_parameters(options);
  const Units units(*options.model);
  const Shards shards = shards_by_unit(units, parameters, muon_matrices(options), ranks);
  return largest_part(units.part(0, shards), [&](const ShardPiece& piece) {
    return static_cast<double>(piece.of(parameters).elements());
  });
}

double largest_update(const StepOptions& options, int ranks) {
  const LayerMatrices matrices = muon_matrices(options);
  if (matrices.empty()) return 1;
  const std::vector<Tensor> parameters = recorded_parameters(options);
  const Shards shards = shards_by_unit(Units(*options.model), parameters, matrices, ranks);
  return largest_part(shards, [&](const ShardPiece& piece) {
    const auto found = matrices.find(piece.tensor);
    double flops = 0;
    if (found == matrices.end()) return flops;
    for (const std::int64_t rows : found->second)
      flops += orthogonalization_flops({rows, parameters[piece.tensor].shape[1]});
    return flops;
  });
}

std::vector<RankMemory> memory_of_ranks(const Comm& comm, const RankMemory& mine) {
  std::vector<double> numbers(mine.tensors.begin(), mine.tensors.end());
  for (const std::size_t bytes : {mine.workspace, mine.samples, mine.nccl}) {
    numbers.push_back(static_cast<double>(bytes));
  }
  const std::vector<double> all = gathered(comm, numbers);
  std::vector<RankMemory> ranks;
  for (std::size_t at = 0; at < all.size(); at += kNumbers) {
    const auto number = [&](std::size_t i) { return static_cast<std::size_t>(all[at + i]); };
    RankMemory& memory = ranks.emplace_back();
    for (std::size_t c = 0; c < kCategories; ++c) memory.tensors[c] = number(c);
    memory.workspace = number(kCategories);
    memory.samples = number(kCategories + 1);
    memory.nccl = number(kCategories + 2);
  }
  return ranks;
}

RankDevices::RankDevices(Device device, const Comm& comm) {
  const std::vector<double> available = gathered(comm, {static_cast<double>(available_memory(device))});
  const std::vector<std::string> hosts = comm.all_gather(host_name());
  // A GPU has one rank. The ranks of a machine share its memory or, if there is a limit, that of their group.
  std::string name = device.kind == DeviceKind::cpu ? machine_id() : fmt::format("{}", comm.rank());
  const auto limit = cgroup_available_memory();
  if (limit && device.kind == DeviceKind::cpu) name += limit->group;
  const std::vector<std::string> names = comm.all_gather(name);
  for (std::size_t r = 0; r < names.size(); ++r) {
    const auto bytes = static_cast<std::size_t>(available[r]);
    const auto first = static_cast<std::size_t>(std::ranges::find(names, names[r]) - names.begin());
    const auto same = std::ranges::find_if(
        devices_, [&](const Use& use) { return use.ranks.front() == static_cast<int>(first); });
    if (same == devices_.end()) {
      devices_.push_back({{static_cast<int>(r)}, hosts[r], 0, bytes});
    } else {
      same->ranks.push_back(static_cast<int>(r));
      same->available = std::min(same->available, bytes);
    }
  }
}

RankDevices::Use RankDevices::tightest(const std::vector<RankMemory>& ranks) const {
  std::vector<Use> uses = devices_;
  for (Use& use : uses) {
    for (const int r : use.ranks) use.needed += ranks[static_cast<std::size_t>(r)].total();
  }
  const auto left = [](const Use& use) {
    return static_cast<double>(use.available) - static_cast<double>(use.needed);
  };
  return *std::ranges::min_element(uses, {}, left);
}

std::vector<Sharding> possible_shardings(const TrainOptions& options, int ranks) {
  if (ranks == 1) return {options.step.sharding};
  const Sharding least = options.planner_shards ? Sharding::optimizer : options.step.sharding;
  std::vector<Sharding> possible;
  for (const Sharding sharding : kShardings) {
    const bool draws = sharding == Sharding::parameters && options.sample_every > 0;
    if (sharding >= least && !draws) possible.push_back(sharding);
  }
  return possible;
}

Sharding first_sharding(TrainOptions options, int ranks,
                        const std::function<bool(const TrainOptions& options)>& fits) {
  for (const Sharding sharding : possible_shardings(options, ranks)) {
    options.step.sharding = sharding;
    if (fits(options)) break;
  }
  return options.step.sharding;
}

Sharding chosen_sharding(Context& context, const TrainOptions& options, const Comm& comm) {
  if (!options.planner_shards || comm.size() == 1) return options.step.sharding;
  const RankDevices devices(context.device().device, comm);
  return first_sharding(options, comm.size(), [&](const TrainOptions& o) {
    return devices.tightest(memory_of_ranks(comm, planned_rank_memory(context, o, comm))).fits();
  });
}

}  // namespace warpwright
