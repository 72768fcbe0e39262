// Sampling on a GPU: a block draws the token of a row, from the second-level cache, where the product that
// made the logits has just left them.
//   largest logit   one pass; a temperature of 0 needs no other
//   weights         one pass, which keeps the sums of tiles of tokens; then the tile of the drawn token again
//   a cut           a histogram of the weights over the logits, and a list of the tokens in the bin where the
//                   cut is. If the list is too short for them, because many logits are equal, 16 passes find
//                   the least logit that stays, two bits of it in each.
// Sums of weights are integers, so their order does not matter.
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/sampling/kernels.hpp"

namespace warpwright::ops::sampling {
namespace {

using Weight = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / gpu::kWarp;
constexpr int kLanes = 8;                 // adjacent tokens of a thread
constexpr int kTile = kThreads * kLanes;  // tokens
constexpr int kMostTiles = kMostTokens / kTile;
constexpr int kTokenBits = 24;
constexpr int kBins = kThreads, kListed = kThreads;  // one of each for a thread
constexpr float kWidest = 28;  // exp(−28) · 2^40 < 1: tokens that far below the largest logit have no weight

template <class T>
struct Arguments {
  const T* logits;
  std::int64_t stride;
  int V;
  bool packed;  // rows begin at multiples of 16 bytes
  const double *temperature, *top_p, *min_p, *penalty;
  const std::int64_t *top_k, *random;
  const std::uint32_t* seen;         // may be null
  std::int32_t *token, *next_input;  // next_input may be null

  __device__ void store(int m, std::int32_t drawn) const {
    token[m] = drawn;
    if (next_input) next_input[m] = max(drawn, 0);
  }
};

// Ascends with the logit, as an integer.
__device__ inline unsigned key_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0f);  // −0 becomes 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The tokens that stay: those with a larger key, and of those with this key the first ones.
struct Cut {
  unsigned key = 0;
  int last = 1 << kTokenBits;

  __device__ bool keeps(unsigned key_of_token, int v) const {
    return key_of_token > key || (key_of_token == key && v <= last);
  }
};

// One row, as all threads of its block see it.
template <class T>
struct Row {
  const T* logits;
  const std::uint32_t* seen;
  float penalty;
  int V;
  bool packed;
  float largest = 0, least = 0, scale = 0;  // set before weights are asked for

  // Calls f(token, logit) for this thread's tokens of a tile, in order.
  template <class F>
  __device__ void for_each_in_tile(int tile, F&& f) const {
    const int first = tile * kTile + static_cast<int>(threadIdx.x) * kLanes;
    if (first >= V) return;
    float values[kLanes];
    if (packed && first + kLanes <= V) {
      constexpr int kPack = gpu::kPackedLanes<T>;
#pragma unroll
      for (int i = 0; i < kLanes; i += kPack) {
        const auto pack = gpu::Packed<T>::load(logits + first + i);
#pragma unroll
        for (int j = 0; j < kPack; ++j) values[i + j] = pack[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) values[i] = first + i < V ? gpu::to_float(logits[first + i]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int v = first + i;
      if (v >= V) return;
      f(v, is_seen(seen, v) ? penalized(values[i], penalty) : values[i]);
    }
  }
  template <class F>
  __device__ void for_each(F&& f) const {
    for (int tile = 0; tile * kTile < V; ++tile) for_each_in_tile(tile, f);
  }
  __device__ Weight weight(float logit) const {
    return static_cast<Weight>(expf((logit - largest) * scale) * static_cast<float>(kOne));
  }
};

// The sums over the block of three numbers of each thread.
struct Three {
  Weight of[3];

  __device__ void sum(Three* shared) {
    const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
    for (Weight& w : of) w = gpu::warp_sum(w);
    __syncthreads();  // of the call before
    if (lane == 0) shared[threadIdx.x / gpu::kWarp] = *this;
    __syncthreads();
    *this = shared[lane];
    for (Weight& w : of) w = gpu::warp_sum(w);
  }
};
static_assert(kWarps == gpu::kWarp);

// The largest number below 2^bits for which the weight of all tokens with at least this key is `wanted` or
// more. entries(f) calls f(key, weight) for this thread's tokens.
template <int bits, class Entries>
__device__ unsigned largest_key(Weight wanted, Three* shared, Entries&& entries) {
  unsigned key = 0;
  for (int shift = bits - 2; shift >= 0; shift -= 2) {
    Three weights{};
    entries([&](unsigned k, Weight w) {
#pragma unroll
      for (unsigned digit = 1; digit <= 3; ++digit) {
        if (k >= (key | digit << shift)) weights.of[digit - 1] += w;
      }
    });
    weights.sum(shared);
    for (unsigned digit = 3; digit > 0; --digit) {
      if (weights.of[digit - 1] < wanted) continue;
      key |= digit << shift;
      break;
    }
  }
  return key;
}

// Keeps, of the tokens that `before` keeps, the likeliest ones whose weights reach `wanted`.
template <class T, class WeightOf>
__device__ Cut cut_by_bits(const Row<T>& row, const Cut& before, Weight wanted, Three* shared,
                           const WeightOf& weight_of) {
  Cut cut;
  cut.key = largest_key<32>(wanted, shared, [&](auto&& put) {
    row.for_each([&](int v, float logit) {
      const unsigned key = key_of(logit);
      if (before.keeps(key, v)) put(key, weight_of(logit));
    });
  });
  if (cut.key == before.key) cut.last = before.last;
  Three weights{};  // of larger keys, of this key, and the number of its tokens
  row.for_each([&](int v, float logit) {
    const unsigned key = key_of(logit);
    if (!before.keeps(key, v)) return;
    if (key > cut.key) weights.of[0] += weight_of(logit);
    if (key == cut.key) weights.of[1] += weight_of(logit), ++weights.of[2];
  });
  weights.sum(shared);
  const auto [above, here, count] = weights.of;
  if (count < 2 || wanted <= above) return cut;
  const Weight each = here / count, needed = (wanted - above + each - 1) / each;
  if (needed >= count) return cut;
  constexpr unsigned kLast = (1u << kTokenBits) - 1;  // the first tokens have the largest keys
  cut.last = static_cast<int>(kLast - largest_key<kTokenBits>(needed, shared, [&](auto&& put) {
                                row.for_each([&](int v, float logit) {
                                  if (key_of(logit) == cut.key && before.keeps(cut.key, v))
                                    put(kLast - static_cast<unsigned>(v), 1);
                                });
                              }));
  return cut;
}

// Sums the numbers of this thread and of those before it.
__device__ inline Weight block_scan(Weight mine, Weight* warps) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  for (int distance = 1; distance < gpu::kWarp; distance *= 2) {
    const Weight before = __shfl_up_sync(gpu::kAllLanes, mine, distance);
    if (lane >= distance) mine += before;
  }
  if (lane == gpu::kWarp - 1) warps[warp] = mine;
  __syncthreads();
  for (int w = 0; w < warp; ++w) mine += warps[w];
  return mine;
}

// Weights by distance from the largest logit. Shared memory has no 64-bit additions, so a bin is two words.
struct Histogram {
  unsigned low[kBins], high[kBins];

  __device__ void add(int bin, Weight w) {
    const auto word = static_cast<unsigned>(w);
    auto upper = static_cast<unsigned>(w >> 32);
    if (word != 0 && atomicAdd(low + bin, word) > ~word) ++upper;
    if (upper != 0) atomicAdd(high + bin, upper);
  }
  __device__ Weight of(int bin) const { return Weight{high[bin]} << 32 | low[bin]; }
};

// Memory that the threads of a block share to find a cut.
struct CutSearch {
  Histogram histogram;
  Weight warps[kWarps];
  Weight wanted, above;  // above: the weight of the bins before
  int bin, count;
  Weight order[kListed], weights[kListed];  // of the tokens in the bin; the likeliest have the largest order
  unsigned key;                             // of the cut
  int last;
};

// Keeps, of the tokens that `before` keeps, the likeliest ones whose weights reach wanted(their sum). The
// bins divide the range of logits below the largest one; what is below the range is in the last bin.
template <class T, class WeightOf, class Wanted>
__device__ Cut cut_at(const Row<T>& row, const Cut& before, float range, CutSearch& s, Three* shared,
                      const WeightOf& weight_of, const Wanted& wanted) {
  const int i = static_cast<int>(threadIdx.x);
  const float scale = fminf((kBins - 1) / range, 0x1p100f);
  const auto bin_of = [&](float logit) {
    const float distance = (row.largest - logit) * scale;
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  };
  s.histogram.low[i] = s.histogram.high[i] = 0;
  if (i == 0) s.count = 0;
  __syncthreads();
  row.for_each([&](int v, float logit) {
    if (before.keeps(key_of(logit), v)) s.histogram.add(bin_of(logit), weight_of(logit));
  });
  __syncthreads();
  const Weight mine = s.histogram.of(i), end = block_scan(mine, s.warps);
  if (i == kThreads - 1) s.wanted = wanted(end);
  __syncthreads();
  if (end - mine < s.wanted && s.wanted <= end) s.bin = i, s.above = end - mine;
  __syncthreads();
  row.for_each([&](int v, float logit) {
    const unsigned key = key_of(logit);
    if (bin_of(logit) != s.bin || !before.keeps(key, v)) return;
    const int place = atomicAdd(&s.count, 1);
    if (place >= kListed) return;
    s.order[place] = Weight{key} << 32 | ~static_cast<unsigned>(v);
    s.weights[place] = weight_of(logit);
  });
  __syncthreads();
  if (s.count > kListed) return cut_by_bits(row, before, s.wanted, shared, weight_of);
  if (i < s.count) {
    Weight sum = s.above;
    for (int other = 0; other < s.count; ++other) sum += s.order[other] > s.order[i] ? s.weights[other] : 0;
    if (sum < s.wanted && s.wanted <= sum + s.weights[i]) {
      s.key = static_cast<unsigned>(s.order[i] >> 32);
      s.last = static_cast<int>(~static_cast<unsigned>(s.order[i]));
    }
  }
  __syncthreads();
  return {s.key, s.last};
}

// Finds the largest and the least logit of the row. Returns the first token with the largest one, or −1 if a
// logit is not finite.
template <class T>
__device__ int find_range(Row<T>& row) {
  __shared__ float values[2][kWarps];
  __shared__ int tokens[kWarps];
  float best = -INFINITY, lowest = INFINITY, sum = 0;
  int token = row.V;
  row.for_each([&](int v, float logit) {
    sum += logit * 0;  // NaN if any is not finite
    lowest = fminf(lowest, logit);
    if (logit > best) best = logit, token = v;
  });
  row.largest = gpu::block_max(best, values[0]);
  row.least = -gpu::block_max(-lowest, values[1]);
  token = best == row.largest ? token : row.V;
  for (int distance = gpu::kWarp / 2; distance > 0; distance /= 2) {
    token = min(token, __shfl_xor_sync(gpu::kAllLanes, token, distance));
  }
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  if (lane == 0) tokens[threadIdx.x / gpu::kWarp] = token;
  const bool finite = __syncthreads_and(sum == 0);
  token = tokens[lane];
  for (int distance = gpu::kWarp / 2; distance > 0; distance /= 2) {
    token = min(token, __shfl_xor_sync(gpu::kAllLanes, token, distance));
  }
  return finite ? token : -1;
}

// Stores the token of row m at which the weights exceed the drawn share.
template <class T, class WeightOf>
__device__ void draw(const Arguments<T>& a, int m, const Row<T>& row, Three* shared,
                     const WeightOf& weight_of) {
  __shared__ Weight tiles[kMostTiles];
  __shared__ Weight warps[kWarps];
  const int count = (row.V + kTile - 1) / kTile;
  for (int tile = 0; tile < count; ++tile) {
    Weight sum = 0;
    row.for_each_in_tile(tile, [&](int v, float logit) { sum += weight_of(v, logit); });
    Three all{{sum}};
    all.sum(shared);
    if (threadIdx.x == 0) tiles[tile] = all.of[0];
  }
  __syncthreads();
  Weight total = 0;
  for (int tile = 0; tile < count; ++tile) total += tiles[tile];
  Weight rest = __umul64hi(static_cast<std::uint64_t>(a.random[m]), total);
  int tile = 0;
  while (tile + 1 < count && rest >= tiles[tile]) rest -= tiles[tile++];

  // This thread's weights of the tile follow those of the threads before it.
  Weight mine = 0;
  row.for_each_in_tile(tile, [&](int v, float logit) { mine += weight_of(v, logit); });
  const Weight end = block_scan(mine, warps);
  Weight begin = end - mine;
  if (rest < begin || rest >= end) return;
  row.for_each_in_tile(tile, [&](int v, float logit) {
    const Weight w = weight_of(v, logit);
    if (rest >= begin && rest < begin + w) a.store(m, v);
    begin += w;
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) block_row(const Arguments<T> a) {
  __shared__ Three shared[kWarps];
  __shared__ CutSearch search;
  const int m = static_cast<int>(blockIdx.x);
  gpu::wait_for_kernels_before();
  const double temperature = a.temperature[m], top_p = a.top_p[m], min_p = a.min_p[m], penalty = a.penalty[m];
  Row<T> row{a.logits + m * a.stride,
             a.seen && penalty != 1 ? a.seen + static_cast<std::int64_t>(m) * ((a.V + 31) / 32) : nullptr,
             bounded_factor(penalty), a.V, a.packed};
  const int likeliest = find_range(row);
  if (temperature == 0 || likeliest < 0) {
    if (threadIdx.x == 0) a.store(m, likeliest);
    return;
  }
  row.scale = bounded_factor(1 / temperature);
  Cut cut;
  if (const std::int64_t k = a.top_k[m]; k > 0 && k < a.V) {
    cut = cut_at(
        row, cut, row.largest - row.least, search, shared, [](float) { return Weight{1}; },
        [&](Weight) { return static_cast<Weight>(k); });
  }
  if (top_p < 1) {
    cut = cut_at(
        row, cut, kWidest / row.scale, search, shared, [&](float logit) { return row.weight(logit); },
        [&](Weight total) { return least_weight(top_p, total); });
  }
  const double least = min_p * kOne;
  draw(a, m, row, shared, [&](int v, float logit) {
    if (!cut.keeps(key_of(logit), v)) return Weight{0};
    const Weight w = row.weight(logit);
    return static_cast<double>(w) < least ? Weight{0} : w;
  });
}

void forward(const Context& context, const Sampling& args) {
  const std::int64_t M = args.logits.shape[0];
  if (M == 0) return;
  gpu::visit_gpu_dtype(args.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t stride = M > 1 ? args.logits.strides[0] : args.logits.shape[1];
    const Arguments<T> a{.logits = static_cast<const T*>(args.logits.data),
                         .stride = stride,
                         .V = static_cast<int>(args.logits.shape[1]),
                         .packed = args.problem().aligned,
                         .temperature = static_cast<const double*>(args.temperature.data),
                         .top_p = static_cast<const double*>(args.top_p.data),
                         .min_p = static_cast<const double*>(args.min_p.data),
                         .penalty = static_cast<const double*>(args.repetition_penalty.data),
                         .top_k = static_cast<const std::int64_t*>(args.top_k.data),
                         .random = static_cast<const std::int64_t*>(args.random.data),
                         .seen = static_cast<const std::uint32_t*>(args.seen.data),
                         .token = static_cast<std::int32_t*>(args.token.data),
                         .next_input = static_cast<std::int32_t*>(args.next_input.data)};
    gpu::launch_overlapped(context, block_row<T>, dim3(static_cast<unsigned>(M)), kThreads, 0,
                           "sampling cuda.block_row", a);
  });
}

}  // namespace
}  // namespace warpwright::ops::sampling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Sampling, "cuda.block_row"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = sampling::forward};

}  // namespace warpwright::ops
