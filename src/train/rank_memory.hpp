// The memory that each rank of a run takes, and what its device has.
//
// A rank plans its own part. All ranks then learn what the others need, so that they decide alike.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "infer/decoding_engine.hpp"
#include "train/options.hpp"

namespace warpwright {

// Samples are drawn one at a time, from a prompt of a token.
DecodingOptions sampling_engine(const TrainOptions& options);

// Bytes of a rank, by what they are for.
struct RankMemory {
  std::array<std::size_t, kCategories> tensors{};  // of the step
  std::size_t workspace = 0;                       // of the step and of samples
  std::size_t samples = 0;                         // tensors of the sample generator, on rank 0
  std::size_t nccl = 0;                            // an allowance for NCCL's own buffers

  std::size_t total() const;
};

// An allowance for NCCL's buffers on a GPU. NCCL takes memory for each connection when it is first used, and
// how much depends on links and ranks.
inline constexpr std::size_t kNcclBytes = std::size_t{512} << 20;

// step, samples: the plans of a rank among this many.
RankMemory rank_memory(const MemoryPlan& step, const MemoryPlan& samples, Device device, int ranks);
// Plans the rank of `comm`, which takes no memory and exchanges nothing. The ranks divide the slices.
RankMemory planned_rank_memory(Context& context, const TrainOptions& options, const Comm& comm);
// The rank that holds most, samples aside.
int rank_with_most(const StepOptions& options, int ranks);
// A rank's largest shard of a layer, in equal parts. It is more than 1 if there are fewer groups of rows
// (shard_rows) than ranks, or few more; and with Muon, which leaves the matrices whole.
double largest_shard(const StepOptions& options, int ranks);
// The work of the rank whose part of a divided update takes longest, in equal parts: 1 for AdamW. Muon's is
// counted by the FLOPs of its matrices.
double largest_update(const StepOptions& options, int ranks);

// Those of all ranks, by rank. Every rank makes this call.
std::vector<RankMemory> memory_of_ranks(const Comm& comm, const RankMemory& mine);

// The devices of all ranks. Ranks on CPUs share the memory of their machine.
class RankDevices {
 public:
  // Every rank makes this call, before it takes memory for tensors.
  RankDevices(Device device, const Comm& comm);

  // The need of the ranks of one device, and what it has.
  struct Use {
    std::vector<int> ranks;
    std::string host;
    std::size_t needed = 0, available = 0;

    bool fits() const { return needed <= available; }
  };
  // The use of the device that lacks the most memory, or has the least left.
  Use tightest(const std::vector<RankMemory>& ranks) const;

 private:
  std::vector<Use> devices_;  // needed: 0
};

// The shardings with which a step may run, the least first: from `--shard` on, or all but none if the planner
// chooses. Samples need whole parameters.
std::vector<Sharding> possible_shardings(const TrainOptions& options, int ranks);
// The first of them that fits, or the last if none does.
Sharding first_sharding(TrainOptions options, int ranks,
                        const std::function<bool(const TrainOptions& options)>& fits);
// The planner's choice, or the sharding of the options. Every rank makes this call and chooses the same.
Sharding chosen_sharding(Context& context, const TrainOptions& options, const Comm& comm);

}  // namespace warpwright
