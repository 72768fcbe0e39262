// Attention to a cache on a GPU with the keys in splits of 256 ("flash-decoding"). A block has one query of
// one sequence, up to eight query heads of one key head, and one or more splits. Each warp copies its own
// keys and values to shared memory (split_ring.cuh) and multiplies them (split_products.cuh); while a stage
// of 128 keys is computed, the next one is on its way. Memory-bound.
//
// The result of a split is a maximum, a sum of exponentials and sums of values. They are joined in the order
// of the splits (split_join.cuh): by the block itself if it has them all, otherwise by the last block of the
// query to finish. Both ways give the same bits, which depend only on the query and the sequence's keys.
#include <algorithm>
#include <bit>
#include <string>

#include "ops/cached_attention/cuda/sequences.cuh"
#include "ops/cached_attention/cuda/split_join.cuh"
#include "ops/cached_attention/cuda/split_products.cuh"
#include "ops/cached_attention/cuda/split_ring.cuh"
#include "ops/cuda/flags.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {
namespace {

constexpr int kSplitStages = 2, kSplit = kSplitStages * kStage;

// The most query heads in one block: tensor cores compute eight, and what the warps exchange must leave room
// for the ring.
constexpr int most_heads(int row_packs, std::size_t element_bytes) {
  return element_bytes == 4 ? (row_packs == 32 ? 2 : 4) : row_packs == 32 ? 4 : 8;
}

// Blocks on a multiprocessor for which the registers should suffice.
constexpr int blocks_at_once(int row_packs, int heads) {
  return (heads == 1 ? 48 : 32) / row_packs;
}

// A head's row in packs of 16 bytes, rounded up.
constexpr int packs_of(std::int64_t head_bytes) {
  const std::int64_t packs = (head_bytes + 15) / 16;
  return packs <= 4 ? 4 : packs <= 8 ? 8 : packs <= 16 ? 16 : 32;
}

// True in all threads of the block that is the last of `blocks` to call this. What the others have stored
// before is then visible. The flag is 0 before the first and after the last call.
__device__ bool arrives_last(unsigned* flag, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(flag, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// The shared memory of a block.
template <class T, int row_packs, int heads>
struct Shared {
  uint4 ring[2 * RingLayout<T, row_packs>::kPacks];
  typename Products<T, row_packs, heads>::Exchange exchange;
};

// Computes a stage whose copies are under way, and starts those of the stage `next`; negative: none.
template <class Ring, class Products>
__device__ void run_stage(Ring& ring, Products& products, int stage, int next) {
  ring.look_up(next);
  ring.wait();
  products.score(ring, stage);
  ring.start_keys(next);
  products.weigh(ring, stage);
  ring.wait();
  products.add_values(ring, stage);
  ring.start_values(next);
}

// Grid: (N · KH · groups of heads, blocks of a query). Blocks that run at the same time thus read all heads
// of a key, which are adjacent.
template <class T, int row_packs, int heads>
__global__ void __launch_bounds__(RingLayout<T, row_packs>::kThreads, blocks_at_once(row_packs, heads))
    attend_in_splits(const Arguments<T> a, const Division division) {
  using Layout = RingLayout<T, row_packs>;
  using Work = Products<T, row_packs, heads>;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<T, row_packs, heads>*>(memory);
  gpu::let_next_kernel_begin();
  const unsigned task = blockIdx.x, per_row = static_cast<unsigned>(a.KH * division.groups);
  const auto n = static_cast<int>(task / per_row), of_row = static_cast<int>(task % per_row);
  const RowOfSequence row = a.row(n);
  const int key_head = division.groups == 1 ? of_row : of_row / division.groups;
  const int first = (of_row - key_head * division.groups) * heads;  // of the key head's group
  const int head = key_head * division.group + first, count = min(heads, division.group - first);
  const int first_split = row.first / kSplit, last_split = (row.last + kSplit - 1) / kSplit;
  const int part = static_cast<int>(blockIdx.y), begin = first_split + part * division.splits_each;
  const int end = min(begin + division.splits_each, last_split);
  const bool alone = last_split - first_split <= division.splits_each;

  Ring<T, row_packs> ring(a, shared.ring, row, key_head);
  if (!a.k.data) gpu::wait_for_kernels_before();  // they may have written the cache
  if (begin < end) ring.start_from_cache(begin * kSplitStages);
  gpu::wait_for_kernels_before();
  if (row.sequence < 0 || (part > 0 && begin >= end)) return;
  if (begin < end) ring.start_rest(begin * kSplitStages);
  Work work;
  work.read_queries(a, n, head, count);
  if (part == 0 && first == 0) {
    // The last warps have the fewest keys.
    const int i = Layout::kThreads - 1 - static_cast<int>(threadIdx.x);
    a.template append<Layout::kLanes>(row, n, key_head, i, Layout::kThreads);
  }

  Results<T, Work> results(a, n, head, count);
  const int end_stage = min(end * kSplitStages, (row.last + kStage - 1) / kStage);
#pragma unroll 1
  for (int stage = begin * kSplitStages; stage < end_stage; ++stage) {
    const bool is_last = stage + 1 == end_stage;
    run_stage(ring, work, stage, is_last ? -1 : stage + 1);
    if (stage % kSplitStages != kSplitStages - 1 && !is_last) continue;
    __syncthreads();  // the results of the split before have been read
    work.store(shared.exchange, static_cast<int>(threadIdx.x) / gpu::kWarp);
    __syncthreads();
    alone ? results.add(shared.exchange)
          : results.store_split(shared.exchange, division, stage / kSplitStages);
  }
  if (!alone) {
    const int parts = (last_split - first_split + division.splits_each - 1) / division.splits_each;
    if (!arrives_last(division.flags + task, parts)) return;
    results.add(division, first_split, last_split);
  }
  results.store(row.last > row.first);
}

std::int64_t ceil_div(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}
std::int64_t splits_of(const CachedAttentionProblem& p) {
  return ceil_div(p.max_keys, kSplit);
}
int row_packs_of(const CachedAttentionProblem& p) {
  return packs_of(p.HS * static_cast<std::int64_t>(size_of(p.dtype)));
}
// Query heads of one key head for which a block has room.
int heads_of(const CachedAttentionProblem& p) {
  const int most = most_heads(row_packs_of(p), size_of(p.dtype));
  return static_cast<int>(std::min<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(p.NH / p.KH)),
                                                  static_cast<std::uint64_t>(most)));
}
// The rows' groups of query heads, whose splits are divided among blocks.
std::int64_t tasks_of(const CachedAttentionProblem& p) {
  return p.N * p.KH * ceil_div(p.NH / p.KH, heads_of(p));
}

// The splits of a block: all, if there are more queries than sequences or if there are many blocks in any
// case. Otherwise few enough for two blocks on each multiprocessor, and for a long sequence not to keep the
// others waiting.
std::int64_t splits_each(const CachedAttentionProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kMost = 4;
  const std::int64_t all = std::max<std::int64_t>(1, splits_of(p)), tasks = tasks_of(p);
  if (p.N > p.sequences || tasks == 0 || tasks > gpu::kFlagsOfSet) return all;
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(2 * device.gpu.multiprocessors, tasks));
  return std::min(ceil_div(all, blocks), kMost);
}
// Partial results in memory, if the splits of a query are divided.
std::int64_t partials_of(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return splits_each(p, device) < splits_of(p) ? p.N * p.NH * splits_of(p) : 0;
}
std::size_t split_workspace(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(partials_of(p, device)) *
         (sizeof(Weight) + static_cast<std::size_t>(p.HS) * sizeof(float));
}

template <class T, int row_packs, int heads>
struct BlockShape {
  using Element = T;
  static constexpr int kRowPacks = row_packs, kHeads = heads, kThreads = RingLayout<T, row_packs>::kThreads;
  static constexpr std::size_t kShared = sizeof(Shared<T, row_packs, heads>);
};

// Calls f with the BlockShape that a problem needs.
template <class T, int row_packs, class F>
void visit_heads(const CachedAttentionProblem& p, const F& f) {
  const int heads = heads_of(p);
  if (heads == 1) return f(BlockShape<T, row_packs, 1>());
  if (heads == 2) return f(BlockShape<T, row_packs, 2>());
  constexpr int kMost = most_heads(row_packs, sizeof(T));
  if constexpr (kMost == 8) {
    if (heads == 8) return f(BlockShape<T, row_packs, 8>());
  }
  f(BlockShape<T, row_packs, std::min(kMost, 4)>());
}
template <class F>
void visit_block_shape(const CachedAttentionProblem& p, const F& f) {
  gpu::visit_gpu_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (row_packs_of(p)) {
      case 4:
        return visit_heads<T, 4>(p, f);
      case 8:
        return visit_heads<T, 8>(p, f);
      case 16:
        return visit_heads<T, 16>(p, f);
      default:
        return visit_heads<T, 32>(p, f);
    }
  });
}

template <class S>
void launch(const Context& context, const CachedAttention& args, const CachedAttentionProblem& p) {
  using T = typename S::Element;
  const std::int64_t tasks = tasks_of(p), each = splits_each(p, context.device());
  const std::int64_t partials = partials_of(p, context.device());
  Division division{.group = static_cast<int>(p.NH / p.KH),
                    .groups = static_cast<int>(ceil_div(p.NH / p.KH, S::kHeads)),
                    .splits = static_cast<int>(splits_of(p)),
                    .splits_each = static_cast<int>(each)};
  if (partials > 0) {
    division.weights = static_cast<Weight*>(context.scratch());
    division.sums = reinterpret_cast<float*>(division.weights + partials);
    division.flags = gpu::flags_of(context);
  }
  const dim3 grid(static_cast<unsigned>(tasks),
                  static_cast<unsigned>(ceil_div(std::max<std::int64_t>(1, splits_of(p)), each)));
  const auto kernel = attend_in_splits<T, S::kRowPacks, S::kHeads>;
  gpu::allow_shared(kernel, S::kShared);
  gpu::launch_overlapped(context, kernel, grid, S::kThreads, S::kShared,
                         "cached_attention.forward cuda.split", arguments_of<T>(args), division);
}

void split_attention(const Context& context, const CachedAttention& args) {
  const CachedAttentionProblem p = args.problem();
  if (p.N == 0 || p.sequences == 0) return;
  visit_block_shape(p, [&](auto shape) { launch<decltype(shape)>(context, args, p); });
}

std::size_t shared_bytes(const CachedAttentionProblem& p) {
  constexpr std::size_t kFlag = 16;  // of arrives_last, and what aligns it
  std::size_t bytes = 0;
  visit_block_shape(p, [&](auto shape) { bytes = decltype(shape)::kShared + kFlag; });
  return bytes;
}

Refusal refuse_split(const CachedAttentionProblem& p, const DeviceInfo& device) {
  if (!p.aligned) return "heads do not begin at multiples of 16 bytes";
  const auto bytes = p.HS * static_cast<std::int64_t>(size_of(p.dtype));
  if (bytes > 16 * gpu::kWarp) return "a head has more than 512 bytes";
  if (!std::has_single_bit(static_cast<std::uint64_t>(p.block_size))) return "a block is not a power of two";
  if (splits_of(p) > 65535) return "more than 65535 splits of 256 keys";
  if (p.wide) return "31 bits cannot count the cache's places of all heads";
  if (shared_bytes(p) > device.gpu.shared_bytes_per_block) return "a block's shared memory is too small";
  return {};
}

std::string way(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return std::to_string(heads_of(p)) + " heads and " + std::to_string(splits_each(p, device)) +
         " splits a block";
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CachedAttention, "cuda.split"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = cached::split_attention,
                                                           .refuse = cached::refuse_split,
                                                           .workspace = cached::split_workspace,
                                                           .configuration = cached::way};

}  // namespace warpwright::ops
