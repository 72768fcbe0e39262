// Attention to a cache on a GPU with the keys in splits of 128 ("flash-decoding"). A block has one query of
// one sequence, up to four query heads of one key head, and one or more splits. Its threads copy the keys and
// the values of a split to shared memory, 16 bytes at a time, and each reads only what it has copied. While a
// split is computed, the next one is on its way. Memory-bound.
//
// The result of a split is a maximum, a sum of exponentials and sums of values. They are joined in the order
// of the splits: by the block itself if it has them all, otherwise by the last block of the query to finish.
// Both ways give the same bits, which depend only on the query and the sequence's keys.
#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>

#include "ops/cached_attention/cuda/sequences.cuh"
#include "ops/cuda/flags.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {
namespace {

constexpr int kSplit = 128, kRowsAtOnce = 16, kPasses = kSplit / kRowsAtOnce;
// The most query heads in one block: what they exchange must fit into 48 KB.
constexpr int most_heads(int row_threads) {
  return row_threads == 32 ? 2 : 4;
}

// Blocks on a multiprocessor for which the registers should suffice.
constexpr int blocks_at_once(int row_threads, int heads) {
  return (heads == 1 ? 48 : 32) / row_threads;
}

// A head's row in the registers of `threads` neighbouring threads, 16 bytes each.
constexpr int threads_of(std::int64_t head_bytes) {
  const std::int64_t packs = (head_bytes + 15) / 16;
  return packs <= 4 ? 4 : packs <= 8 ? 8 : packs <= 16 ? 16 : 32;
}

// The maximum and the sum of exponentials of one split, or of several that are joined.
struct Weight {
  float largest = -INFINITY, total = 0;
};

// Joins the weight of the next split. Returns the factors for the sums so far and for those of the split.
__device__ float2 join(Weight& so_far, const Weight& next) {
  if (next.total == 0) return {1, 0};  // it sees no key
  const float largest = fmaxf(so_far.largest, next.largest);
  const float2 factors{exp2f(so_far.largest - largest), exp2f(next.largest - largest)};
  so_far = {largest, __fmaf_rn(so_far.total, factors.x, __fmul_rn(next.total, factors.y))};
  return factors;
}
__device__ float joined(float so_far, float next, float2 factors) {
  return __fmaf_rn(so_far, factors.x, __fmul_rn(next, factors.y));
}
template <class T>
__device__ T quotient(float sum, const Weight& weight) {
  return gpu::from_float<T>(weight.total == 0 ? 0.0f : sum / weight.total);
}

// How the splits of a query are divided among blocks. Each has `splits_each`; with more than one block, their
// results meet in memory: of row n, query head h and split i, HS sums and a Weight.
struct Division {
  int splits, splits_each;
  float* sums;
  Weight* weights;
  unsigned* flags;  // of the blocks of a query that have finished

  __device__ std::int64_t at(int n, int head, int NH, int split) const {
    return (static_cast<std::int64_t>(n) * NH + head) * splits + split;
  }
};

// Values that the threads of a block exchange.
template <int row_threads, int heads, int lanes>
struct Shared {
  static constexpr int kWarps = kRowsAtOnce * row_threads / gpu::kWarp;
  float largest[kWarps][heads], total[kWarps][heads];
  float sums[kWarps][heads][row_threads * lanes];
};

template <class T, int row_threads, int heads>
class Block {
 public:
  static constexpr int kThreads = kRowsAtOnce * row_threads, kWarps = kThreads / gpu::kWarp;
  static constexpr int kLanes = gpu::kPackedLanes<T>, kColumns = row_threads * kLanes;
  static constexpr int kPacks = kPasses * kThreads;                 // of the keys of a split
  static constexpr std::size_t kRing = 2 * kPacks * sizeof(uint4);  // keys, then values
  using Pack = gpu::Packed<T>;
  using Exchange = Shared<row_threads, heads, kLanes>;

  __device__ Block(const Arguments<T>& a, uint4* ring, Exchange& shared, const RowOfSequence& row,
                   int key_head)
      : a_(a),
        shared_(shared),
        row_(row),
        key_head_(key_head),
        column_(static_cast<int>(threadIdx.x) % row_threads * kLanes),
        at_(static_cast<int>(threadIdx.x) / row_threads),
        inside_(column_ < a.HS),
        cached_keys_(a.keys + a.at(0, key_head) + (inside_ ? column_ : 0)),
        cached_values_(a.values + (cached_keys_ - a.keys)),
        keys_(ring + threadIdx.x),
        values_(keys_ + kPacks) {}

  // Starts the copies of the first split; negative: none.
  __device__ void start(int split) {
    look_up(split);
    start_keys(split);
    start_values(split);
  }
  // `head` is the first of the block's query heads, of which `count` exist.
  __device__ void read_queries(int n, int head, int count) {
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      const bool exists = g < count && column_ < a_.HS;
      const Pack pack = exists ? Pack::load(a_.q.at(n, head + g) + column_) : Pack::zero();
#pragma unroll
      for (int i = 0; i < kLanes; ++i) q_[g][i] = pack[i] * a_.scale;
    }
  }

  // Runs a split whose copies are under way, and starts those of the split `next`; negative: none. The sums
  // and weights are then in shared memory, a part of each warp.
  __device__ void run(int split, int next) {
    look_up(next);
    gpu::wait_for_groups<1>();
    float scores[kPasses][heads];
    score(split, scores);
    __syncwarp();  // the keys have been read
    start_keys(next);
    weigh(scores);
    gpu::wait_for_groups<1>();
    add_values(split, scores);
    start_values(next);
  }

  // The split's weight and the sum of one column, from the parts of all warps.
  __device__ Weight weight(int g) const {
    Weight w;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) w.largest = fmaxf(w.largest, shared_.largest[warp][g]);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) w.total = __fadd_rn(w.total, shared_.total[warp][g]);
    return w;
  }
  __device__ float sum(int g, int column) const {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total = __fadd_rn(total, shared_.sums[warp][g][column]);
    return total;
  }

 private:
  // This thread's key of a pass, and whether the query sees it.
  __device__ int key(int split, int pass) const {
    return split * kSplit + pass * kRowsAtOnce + at_;
  }
  __device__ bool sees(int j) const {
    return j >= row_.first && j < row_.last;
  }

  // The passes of a split that are computed: all that have keys, rounded up so that each number has code
  // without branches.
  __device__ int passes_of(int split) const {
    const int passes = (row_.last - split * kSplit + kRowsAtOnce - 1) / kRowsAtOnce;
    return passes <= 2 ? 2 : passes <= 4 ? 4 : kPasses;
  }
  template <class F>
  __device__ void with_passes(int split, const F& f) const {
    const int passes = passes_of(split);
    if (passes == 2) return f(std::integral_constant<int, 2>());
    if (passes == 4) return f(std::integral_constant<int, 4>());
    f(std::integral_constant<int, kPasses>());
  }
  // True if the query sees all keys of a split, and the cache has them.
  __device__ bool is_whole(int split) const {
    return split * kSplit >= row_.first && (split + 1) * kSplit <= min(row_.last, row_.appended);
  }

  // Finds the places of a split's keys. All block numbers are read at once, so that no copy waits for the one
  // before it.
  __device__ void look_up(int split) {
    if (split < 0) return;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int j = max(0, min(key(split, p), row_.last - 1));
      places_[p] = static_cast<int>(a_.place(row_, j, j >> a_.block_shift));  // not wide
    }
  }
  // Each call is a group of copies, even without any.
  __device__ void start_keys(int split) {
    start_copies(split, keys_, a_.k, cached_keys_);
  }
  __device__ void start_values(int split) {
    start_copies(split, values_, a_.v, cached_values_);
  }
  __device__ void start_copies(int split, uint4* to, const Heads<const T>& rows, const T* cache) {
    if (split >= 0) {
      is_whole(split) ? copy_whole(to, cache) : copy_part(split, to, rows, cache);
    }
    gpu::commit_copies();
  }
  __device__ void copy_whole(uint4* to, const T* cache) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      gpu::copy_async<16>(to + p * kThreads, cache + std::int64_t{places_[p]} * a_.HS, inside_ ? 16 : 0);
    }
  }
  // Keys that the query does not see become zeros.
  __device__ void copy_part(int split, uint4* to, const Heads<const T>& rows, const T* cache) {
    const int passes = passes_of(split);
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      if (p >= passes) break;
      const int j = key(split, p);
      const bool wanted = sees(j) && inside_;
      const T* from = cache + std::int64_t{places_[p]} * a_.HS;
      if (j >= row_.appended && wanted) from = rows.at(j + row_.to_row, key_head_) + column_;
      gpu::copy_async<16>(to + p * kThreads, from, wanted ? 16 : 0);
    }
  }
  // All threads of a row get its scores.
  __device__ void score(int split, float (&scores)[kPasses][heads]) const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
#pragma unroll
      for (int g = 0; g < heads; ++g) scores[p][g] = -INFINITY;
    }
    with_passes(split, [&](auto passes) {
#pragma unroll
      for (int p = 0; p < passes; ++p) {
        const Pack keys = pack_at(keys_, p);
        const bool seen = sees(key(split, p));
#pragma unroll
        for (int g = 0; g < heads; ++g) {
          float s = 0;
#pragma unroll
          for (int i = 0; i < kLanes; ++i) s = fmaf(q_[g][i], keys[i], s);
          s = gpu::warp_sum<row_threads>(s);
          if (seen) scores[p][g] = s;
        }
      }
    });
  }
  // Scores become exp(score − largest); a split without keys gets zeros.
  __device__ void weigh(float (&scores)[kPasses][heads]) {
    const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      float largest = scores[0][g];
#pragma unroll
      for (int p = 1; p < kPasses; ++p) largest = fmaxf(largest, scores[p][g]);
      largest = gpu::warp_max(largest);
      if (threadIdx.x % gpu::kWarp == 0) shared_.largest[warp][g] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      float largest = shared_.largest[0][g];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, shared_.largest[w][g]);
      if (largest == -INFINITY) largest = 0;
      float total = 0;
#pragma unroll
      for (int p = 0; p < kPasses; ++p) total += scores[p][g] = exp2f(scores[p][g] - largest);
      total = gpu::warp_sum(column_ == 0 ? total : 0.0f);
      if (threadIdx.x % gpu::kWarp == 0) shared_.total[warp][g] = total;
    }
  }
  __device__ void add_values(int split, const float (&scores)[kPasses][heads]) {
    const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
    float sums[heads][kLanes] = {};
    with_passes(split, [&](auto passes) {
#pragma unroll
      for (int p = 0; p < passes; ++p) {
        const Pack values = pack_at(values_, p);
#pragma unroll
        for (int g = 0; g < heads; ++g) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) sums[g][i] = fmaf(scores[p][g], values[i], sums[g][i]);
        }
      }
    });
#pragma unroll
    for (int g = 0; g < heads; ++g) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        // Over the rows of the warp, whose threads for one column are row_threads apart.
#pragma unroll
        for (int apart = row_threads; apart < gpu::kWarp; apart *= 2) {
          sums[g][i] += __shfl_xor_sync(gpu::kAllLanes, sums[g][i], apart);
        }
        if (static_cast<int>(threadIdx.x) % gpu::kWarp < row_threads) {
          shared_.sums[warp][g][column_ + i] = sums[g][i];
        }
      }
    }
    __syncthreads();
  }
  static __device__ Pack pack_at(const uint4* ring, int pass) {
    return Pack::load(reinterpret_cast<const T*>(ring + pass * kThreads));
  }

  const Arguments<T>& a_;
  Exchange& shared_;
  const RowOfSequence row_;
  const int key_head_, column_, at_;
  const bool inside_;                                  // the column is one of the head's
  const T *const cached_keys_, *const cached_values_;  // this thread's column in place 0
  uint4 *const keys_, *const values_;                  // this thread's packs, kThreads apart
  int places_[kPasses];                                // of the split whose copies start next
  float q_[heads][kLanes];
};

// The results of all splits so far of the columns that a thread owns.
template <class Work, int heads>
struct Joined {
  static constexpr int kOwn = (heads * Work::kColumns + Work::kThreads - 1) / Work::kThreads;
  Weight weights[kOwn];
  float sums[kOwn] = {};

  template <class F>
  __device__ void for_each(const F& f) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = static_cast<int>(threadIdx.x) + i * Work::kThreads;
      if (t < heads * Work::kColumns) f(weights[i], sums[i], t / Work::kColumns, t % Work::kColumns);
    }
  }
  __device__ void add(const Work& work) {
    for_each([&](Weight& weight, float& sum, int g, int d) {
      const float2 factors = join(weight, work.weight(g));
      sum = joined(sum, work.sum(g, d), factors);
    });
  }
  // Adds the results of a split that are in memory.
  template <class T>
  __device__ void add(const Arguments<T>& a, const Division& division, int n, int head, int count,
                      int split) {
    for_each([&](Weight& weight, float& sum, int g, int d) {
      if (g >= count || d >= a.HS) return;
      const std::int64_t at = division.at(n, head + g, a.NH, split);
      const float2 pair = __ldcg(reinterpret_cast<const float2*>(division.weights + at));
      const float2 factors = join(weight, {pair.x, pair.y});
      sum = joined(sum, __ldcg(division.sums + at * a.HS + d), factors);
    });
  }
  template <class T>
  __device__ void store(const Arguments<T>& a, int n, int head, int count) {
    for_each([&](Weight& weight, float& sum, int g, int d) {
      if (g < count && d < a.HS) a.out.at(n, head + g)[d] = quotient<T>(sum, weight);
    });
  }
};

// Stores the results of a split.
template <class T, class Work>
__device__ void store_split(const Arguments<T>& a, const Division& division, const Work& work, int n,
                            int head, int count, int split) {
  for (int t = static_cast<int>(threadIdx.x); t < count * a.HS; t += Work::kThreads) {
    const std::int64_t at = division.at(n, head + t / a.HS, a.NH, split);
    division.sums[at * a.HS + t % a.HS] = work.sum(t / a.HS, t % a.HS);
    if (t % a.HS == 0) division.weights[at] = work.weight(t / a.HS);
  }
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

// Grid: (N · KH · groups of heads, blocks of a query). Blocks that run at the same time thus read all heads
// of a key, which are adjacent.
template <class T, int row_threads, int heads>
__global__ void __launch_bounds__(kRowsAtOnce* row_threads, blocks_at_once(row_threads, heads))
    attend_in_splits(const Arguments<T> a, const Division division) {
  using Work = Block<T, row_threads, heads>;
  extern __shared__ uint4 ring[];
  __shared__ typename Work::Exchange shared;
  gpu::let_next_kernel_begin();
  const int group = a.NH / a.KH, groups = (group + heads - 1) / heads, per_row = a.KH * groups;
  const auto task = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y), n = task / per_row;
  const RowOfSequence row = a.row(n);
  const int key_head = task % per_row / groups, first = task % groups * heads;  // of the key head's group
  const int head = key_head * group + first, count = min(heads, group - first);
  const int first_split = row.first / kSplit, last_split = (row.last + kSplit - 1) / kSplit;
  const int begin = first_split + part * division.splits_each;
  const int end = min(begin + division.splits_each, last_split);
  const int parts = max(1, (last_split - first_split + division.splits_each - 1) / division.splits_each);

  Work work(a, ring, shared, row, key_head);
  const bool early = begin < end && min((begin + 1) * kSplit, row.last) <= row.appended && a.k.data;
  if (early) work.start(begin);
  gpu::wait_for_kernels_before();
  if (row.sequence < 0 || part >= parts) return;
  if (!early) work.start(begin < end ? begin : -1);
  work.read_queries(n, head, count);
  if (part == 0 && first == 0) {
    a.template append<Work::kLanes>(row, n, key_head, static_cast<int>(threadIdx.x), Work::kThreads);
  }

  Joined<Work, heads> all;
  for (int split = begin; split < end; ++split) {
    if (split > begin) __syncthreads();  // the last split has been read
    work.run(split, split + 1 < end ? split + 1 : -1);
    if (parts == 1) {
      all.add(work);
    } else {
      store_split(a, division, work, n, head, count, split);
    }
  }
  if (parts > 1) {
    if (!arrives_last(division.flags + task, parts)) return;
    for (int split = first_split; split < last_split; ++split) all.add(a, division, n, head, count, split);
  }
  all.store(a, n, head, count);
}

std::int64_t ceil_div(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}
std::int64_t splits_of(const CachedAttentionProblem& p) {
  return ceil_div(p.max_keys, kSplit);
}
int row_threads_of(const CachedAttentionProblem& p) {
  return threads_of(p.HS * static_cast<std::int64_t>(size_of(p.dtype)));
}
// Query heads of one key head in a block.
std::int64_t heads_of(const CachedAttentionProblem& p) {
  return std::min<std::int64_t>(p.NH / p.KH, most_heads(row_threads_of(p)));
}
// Groups of query heads that need a block each, of all rows.
std::int64_t groups_of(const CachedAttentionProblem& p) {
  return p.N * p.KH * ceil_div(p.NH / p.KH, heads_of(p));
}

// The splits of a block: all, if there are more queries than sequences or if there are many blocks in any
// case. Otherwise few enough for two blocks on each multiprocessor, and for a long sequence not to keep the
// others waiting; but two take less time than blocks that wait for each other.
std::int64_t splits_each(const CachedAttentionProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kLeast = 2, kMost = 8;
  const std::int64_t all = std::max<std::int64_t>(1, splits_of(p)), groups = groups_of(p);
  if (p.N > p.sequences || groups == 0 || groups > gpu::kFlagsOfSet) return all;
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(2 * device.gpu.multiprocessors, groups));
  return std::clamp(ceil_div(all, blocks), kLeast, kMost);
}
// Partial results in memory, if the splits of a query are divided.
std::int64_t partials_of(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return splits_each(p, device) < splits_of(p) ? p.N * p.NH * splits_of(p) : 0;
}
std::size_t split_workspace(const CachedAttentionProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(partials_of(p, device)) *
         (sizeof(Weight) + static_cast<std::size_t>(p.HS) * sizeof(float));
}

template <class T, int row_threads, int heads>
void launch(const Context& context, const CachedAttention& args, const CachedAttentionProblem& p) {
  using Work = Block<T, row_threads, heads>;
  const std::int64_t groups = groups_of(p), each = splits_each(p, context.device());
  const std::int64_t partials = partials_of(p, context.device());
  Division division{static_cast<int>(splits_of(p)), static_cast<int>(each), nullptr, nullptr, nullptr};
  if (partials > 0) {
    division.weights = static_cast<Weight*>(context.scratch());
    division.sums = reinterpret_cast<float*>(division.weights + partials);
    division.flags = gpu::flags_of(context, static_cast<int>(groups));
  }
  const dim3 grid(static_cast<unsigned>(groups),
                  static_cast<unsigned>(ceil_div(std::max<std::int64_t>(1, splits_of(p)), each)));
  const auto kernel = attend_in_splits<T, row_threads, heads>;
  gpu::allow_shared(kernel, Work::kRing);
  gpu::launch_overlapped(context, kernel, grid, Work::kThreads, Work::kRing,
                         "cached_attention.forward cuda.split", arguments_of<T>(args), division);
}

template <class T, int row_threads>
void choose_heads(const Context& context, const CachedAttention& args, const CachedAttentionProblem& p) {
  const std::int64_t group = p.NH / p.KH;
  if (group == 1) return launch<T, row_threads, 1>(context, args, p);
  if (group == 2) return launch<T, row_threads, 2>(context, args, p);
  launch<T, row_threads, most_heads(row_threads)>(context, args, p);
}

void split_attention(const Context& context, const CachedAttention& args) {
  const CachedAttentionProblem p = args.problem();
  if (p.N == 0 || p.sequences == 0) return;
  gpu::visit_gpu_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (row_threads_of(p)) {
      case 4:
        return choose_heads<T, 4>(context, args, p);
      case 8:
        return choose_heads<T, 8>(context, args, p);
      case 16:
        return choose_heads<T, 16>(context, args, p);
      default:
        return choose_heads<T, 32>(context, args, p);
    }
  });
}

// The shared memory of a block: the ring, and at most what its warps exchange.
std::size_t shared_bytes(const CachedAttentionProblem& p) {
  const auto row_threads = static_cast<std::size_t>(row_threads_of(p)),
             warps = row_threads * kRowsAtOnce / gpu::kWarp;
  const std::size_t heads = p.NH / p.KH <= 2 ? static_cast<std::size_t>(p.NH / p.KH)
                                             : static_cast<std::size_t>(most_heads(row_threads_of(p)));
  const std::size_t columns = row_threads * 16 / size_of(p.dtype);
  constexpr std::size_t kFlag = 16;  // and what aligns it
  return 2 * kSplit * row_threads * sizeof(uint4) + warps * heads * (2 + columns) * sizeof(float) + kFlag;
}

Refusal refuse_split(const CachedAttentionProblem& p, const DeviceInfo& device) {
  if (!device.gpu.at_least(8)) return "needs compute capability 8.0";
  if (!p.aligned) return "heads do not begin at multiples of 16 bytes";
  const auto bytes = p.HS * static_cast<std::int64_t>(size_of(p.dtype));
  if (bytes > 16 * gpu::kWarp) return "a head has more than 512 bytes";
  if (!std::has_single_bit(static_cast<std::uint64_t>(p.block_size))) return "a block is not a power of two";
  if (splits_of(p) > 65535) return "more than 65535 splits of 128 keys";
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
