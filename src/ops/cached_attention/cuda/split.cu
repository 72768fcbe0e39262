// Attention to a cache on a GPU with the keys split among blocks ("flash-decoding"). A block has one query of
// one sequence, up to four query heads of one key head, and splits of 128 keys. It loads a split's keys and
// values into registers at once, 16 bytes per access, so that all loads are in flight together. Memory-bound.
//
// The result of a split is a maximum, a sum of exponentials and sums of values. They are joined in the order
// of the splits: by the block itself, or, with one query for each sequence, by a second kernel.
// Both ways give the same bits, which depend only on the query and the sequence's keys.
#include <algorithm>
#include <string>

#include "ops/cached_attention/cuda/sequences.cuh"
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

// The places of partial results: of row n, query head h and split i, HS sums and a Weight.
struct Partials {
  float* sums;
  Weight* weights;
  int splits;

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
  using Pack = gpu::Packed<T>;
  using Exchange = Shared<row_threads, heads, kLanes>;

  // `head` is the first of the block's query heads, of which `count` exist.
  __device__ Block(const Arguments<T>& a, Exchange& shared, int n, const RowOfSequence& row, int head,
                   int count)
      : a_(a),
        shared_(shared),
        row_(row),
        key_head_(head / (a.NH / a.KH)),
        column_(static_cast<int>(threadIdx.x) % row_threads * kLanes),
        at_(static_cast<int>(threadIdx.x) / row_threads) {
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      const bool exists = g < count && column_ < a.HS;
      const Pack pack =
          exists ? Pack::load(a.q + n * a.q_row + (head + g) * a.q_head + column_) : Pack::zero();
#pragma unroll
      for (int i = 0; i < kLanes; ++i) q_[g][i] = pack[i] * a.scale;
    }
  }

  // Runs a split. Its sums and weights are then in shared memory, a part of each warp.
  __device__ void run(int split) {
    load(split);
    float scores[kPasses][heads];
    score(scores);
    weigh(scores);
    add_values(scores);
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
  __device__ void load(int split) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int j = split * kSplit + p * kRowsAtOnce + at_;
      seen_[p] = j >= row_.first && j < row_.last;
      const bool wanted = seen_[p] && column_ < a_.HS;
      const std::int64_t place = wanted ? a_.place(row_.sequence, key_head_, j) + column_ : 0;
      keys_[p] = wanted ? Pack::load_streaming(a_.keys + place) : Pack::zero();
      values_[p] = wanted ? Pack::load_streaming(a_.values + place) : Pack::zero();
    }
  }
  // All threads of a row get its scores.
  __device__ void score(float (&scores)[kPasses][heads]) const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
#pragma unroll
      for (int g = 0; g < heads; ++g) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) s = fmaf(q_[g][i], keys_[p][i], s);
        s = gpu::warp_sum<row_threads>(s);
        scores[p][g] = seen_[p] ? s : -INFINITY;
      }
    }
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
  __device__ void add_values(const float (&scores)[kPasses][heads]) {
    const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      float sums[kLanes] = {};
#pragma unroll
      for (int p = 0; p < kPasses; ++p) {
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sums[i] = fmaf(scores[p][g], values_[p][i], sums[i]);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        // Over the rows of the warp, whose threads for one column are row_threads apart.
#pragma unroll
        for (int apart = row_threads; apart < gpu::kWarp; apart *= 2) {
          sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
        }
        if (static_cast<int>(threadIdx.x) % gpu::kWarp < row_threads)
          shared_.sums[warp][g][column_ + i] = sums[i];
      }
    }
    __syncthreads();
  }

  const Arguments<T>& a_;
  Exchange& shared_;
  const RowOfSequence row_;
  const int key_head_, column_, at_;
  float q_[heads][kLanes];
  Pack keys_[kPasses], values_[kPasses];
  bool seen_[kPasses];
};

// Grid: (N, KH · groups of heads, splits or 1).
template <class T, int row_threads, int heads>
__global__ void __launch_bounds__(kRowsAtOnce* row_threads)
    attend_in_splits(const Arguments<T> a, const Partials partials) {
  using Work = Block<T, row_threads, heads>;
  __shared__ typename Work::Exchange shared;
  gpu::wait_for_kernels_before();
  const auto n = static_cast<int>(blockIdx.x);
  const RowOfSequence row = a.row(n);
  if (row.sequence < 0) return;
  const int group = a.NH / a.KH, groups = (group + heads - 1) / heads;
  const int first = static_cast<int>(blockIdx.y) % groups * heads;  // of the group
  const int head = static_cast<int>(blockIdx.y) / groups * group + first, count = min(heads, group - first);
  const int end = (row.last + kSplit - 1) / kSplit;
  if (partials.sums) {
    const auto split = static_cast<int>(blockIdx.z);
    if (split < row.first / kSplit || split >= end) return;
    Work work(a, shared, n, row, head, count);
    work.run(split);
    for (int t = static_cast<int>(threadIdx.x); t < count * a.HS; t += Work::kThreads) {
      const std::int64_t at = partials.at(n, head + t / a.HS, a.NH, split);
      partials.sums[at * a.HS + t % a.HS] = work.sum(t / a.HS, t % a.HS);
      if (t % a.HS == 0) partials.weights[at] = work.weight(t / a.HS);
    }
    return;
  }
  Work work(a, shared, n, row, head, count);
  constexpr int kOwn = (heads * Work::kColumns + Work::kThreads - 1) / Work::kThreads;  // results of a thread
  Weight weights[kOwn];
  float sums[kOwn] = {};
  for (int split = row.first / kSplit; split < end; ++split) {
    __syncthreads();  // the last split has been read
    work.run(split);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = static_cast<int>(threadIdx.x) + i * Work::kThreads, g = t / Work::kColumns;
      if (g >= heads) continue;
      const float2 factors = join(weights[i], work.weight(g));
      sums[i] = joined(sums[i], work.sum(g, t % Work::kColumns), factors);
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = static_cast<int>(threadIdx.x) + i * Work::kThreads, g = t / Work::kColumns,
              d = t % Work::kColumns;
    if (g >= count || d >= a.HS) continue;
    a.out[n * a.out_row + (head + g) * a.out_head + d] = quotient<T>(sums[i], weights[i]);
  }
}

// Joins the partial results of one row and head. Grid: (N, NH).
template <class T>
__global__ void join_splits(const Arguments<T> a, const Partials partials) {
  gpu::wait_for_kernels_before();
  const auto n = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
             d = static_cast<int>(threadIdx.x);
  const RowOfSequence row = a.row(n);
  if (row.sequence < 0 || d >= a.HS) return;
  Weight weight;
  float sum = 0;
  for (int split = row.first / kSplit; split * kSplit < row.last; ++split) {
    const std::int64_t at = partials.at(n, head, a.NH, split);
    const float2 factors = join(weight, partials.weights[at]);
    sum = joined(sum, partials.sums[at * a.HS + d], factors);
  }
  a.out[n * a.out_row + head * a.out_head + d] = quotient<T>(sum, weight);
}

// With more queries than sequences, no splits are needed, and partial results of all rows would take much
// memory.
bool splits(const CachedAttentionProblem& p) {
  return p.N <= p.sequences && p.max_keys > kSplit;
}
std::int64_t splits_of(const CachedAttentionProblem& p) {
  return (p.max_keys + kSplit - 1) / kSplit;
}
std::int64_t partials_of(const CachedAttentionProblem& p) {
  return splits(p) ? p.N * p.NH * splits_of(p) : 0;
}

std::size_t split_workspace(const CachedAttentionProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(partials_of(p)) *
         (sizeof(Weight) + static_cast<std::size_t>(p.HS) * sizeof(float));
}

template <class T, int row_threads, int heads>
void launch(const Context& context, const CachedAttention& args, const CachedAttentionProblem& p) {
  constexpr const char* kName = "cached_attention.forward cuda.split";
  const Arguments<T> a = arguments_of<T>(args);
  const std::int64_t group = p.NH / p.KH, groups = (group + heads - 1) / heads;
  Partials partials{nullptr, nullptr, static_cast<int>(splits_of(p))};
  if (splits(p)) {
    partials.sums = static_cast<float*>(context.scratch());
    partials.weights = reinterpret_cast<Weight*>(partials.sums + partials_of(p) * p.HS);
  }
  const auto N = static_cast<unsigned>(p.N);
  const dim3 grid(N, static_cast<unsigned>(p.KH * groups),
                  splits(p) ? static_cast<unsigned>(splits_of(p)) : 1);
  gpu::launch_overlapped(context, attend_in_splits<T, row_threads, heads>, grid, kRowsAtOnce * row_threads, 0,
                         kName, a, partials);
  if (!splits(p)) return;
  const int threads = static_cast<int>((p.HS + gpu::kWarp - 1) / gpu::kWarp) * gpu::kWarp;
  gpu::launch_overlapped(context, join_splits<T>, dim3(N, static_cast<unsigned>(p.NH)), threads, 0, kName, a,
                         partials);
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
    switch (threads_of(p.HS * static_cast<std::int64_t>(sizeof(T)))) {
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

Refusal refuse_unaligned(const CachedAttentionProblem& p, const DeviceInfo&) {
  if (!p.aligned) return "heads do not begin at multiples of 16 bytes";
  const auto bytes = p.HS * static_cast<std::int64_t>(size_of(p.dtype));
  if (bytes > 16 * gpu::kWarp) return "a head has more than 512 bytes";
  if (std::max(p.NH, splits_of(p)) > 65535) return "more than 65535 heads or splits of 128 keys";
  return {};
}

std::string way(const CachedAttentionProblem& p, const DeviceInfo&) {
  const int threads = threads_of(p.HS * static_cast<std::int64_t>(size_of(p.dtype)));
  const std::int64_t heads = std::min<std::int64_t>(p.NH / p.KH, most_heads(threads));
  const std::string ways = splits(p) ? std::to_string(splits_of(p)) + " splits" : "no splits";
  return std::to_string(heads) + " heads at once, " + ways;
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CachedAttention, "cuda.split"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = cached::split_attention,
                                                           .refuse = cached::refuse_unaligned,
                                                           .workspace = cached::split_workspace,
                                                           .configuration = cached::way};

}  // namespace warpwright::ops
