// Sampling on a GPU: a block draws the token of a row, from the second-level cache, where the product that
// made the logits has just left them.
//   largest logit   one pass; a temperature of 0 needs no other
//   weights         one pass, which keeps the sums of tiles of tokens; then the tile of the drawn token again
//   a cut           16 passes that find the least logit that stays, two bits of it in each. Sums of weights
//                   are integers, so their order does not matter.
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
constexpr int kMostTiles = (1 << 24) / kTile;
constexpr int kTokenBits = 24;

template <class T>
struct Arguments {
  const T* logits;
  std::int64_t stride;
  int V;
  bool packed;  // rows begin at multiples of 16 bytes
  const double *temperature, *top_p, *min_p, *penalty;
  const std::int64_t *top_k, *random;
  const std::uint32_t* seen;  // may be null
  std::int32_t* token;
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
  double penalty;
  int V;
  bool packed;
  float largest = 0, scale = 0;  // set before weights are asked for

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
__device__ Cut cut_at(const Row<T>& row, const Cut& before, Weight wanted, Three* shared,
                      const WeightOf& weight_of) {
  Cut cut;
  cut.key = largest_key<32>(wanted, shared, [&](auto&& put) {
    row.for_each([&](int v, float logit) {
      const unsigned key = key_of(logit);
      if (before.keeps(key, v)) put(key, weight_of(logit));
    });
  });
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

// The largest logit of the row and its first token; −1 if a logit is not finite.
template <class T>
__device__ int find_largest(const Row<T>& row, float& largest) {
  __shared__ float values[kWarps];
  __shared__ int tokens[kWarps];
  float best = -INFINITY, sum = 0;
  int token = row.V;
  row.for_each([&](int v, float logit) {
    sum += logit * 0;  // NaN if any is not finite
    if (logit > best) best = logit, token = v;
  });
  largest = gpu::block_max(best, values);
  token = best == largest ? token : row.V;
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

// Writes the token at which the weights exceed the drawn share.
template <class T, class WeightOf>
__device__ void draw(const Row<T>& row, std::uint64_t random, std::int32_t* token, Three* shared,
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
  Weight rest = __umul64hi(random, total);
  int tile = 0;
  while (tile + 1 < count && rest >= tiles[tile]) rest -= tiles[tile++];

  // This thread's weights of the tile follow those of the threads before it.
  Weight mine = 0;
  row.for_each_in_tile(tile, [&](int v, float logit) { mine += weight_of(v, logit); });
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  Weight end = mine;  // of the warp's threads up to this one
  for (int distance = 1; distance < gpu::kWarp; distance *= 2) {
    const Weight before = __shfl_up_sync(gpu::kAllLanes, end, distance);
    if (lane >= distance) end += before;
  }
  if (lane == gpu::kWarp - 1) warps[threadIdx.x / gpu::kWarp] = end;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / gpu::kWarp; ++warp) end += warps[warp];
  Weight begin = end - mine;
  if (rest < begin || rest >= end) return;
  row.for_each_in_tile(tile, [&](int v, float logit) {
    const Weight w = weight_of(v, logit);
    if (rest >= begin && rest < begin + w) *token = v;
    begin += w;
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) block_row(const Arguments<T> a) {
  __shared__ Three shared[kWarps];
  const int m = static_cast<int>(blockIdx.x);
  gpu::wait_for_kernels_before();
  const double penalty = a.penalty[m], temperature = a.temperature[m], top_p = a.top_p[m], min_p = a.min_p[m];
  Row<T> row{a.logits + m * a.stride,
             a.seen && penalty != 1 ? a.seen + static_cast<std::int64_t>(m) * ((a.V + 31) / 32) : nullptr,
             penalty, a.V, a.packed};
  const int likeliest = find_largest(row, row.largest);
  if (temperature == 0 || likeliest < 0) {
    if (threadIdx.x == 0) a.token[m] = likeliest;
    return;
  }
  row.scale = static_cast<float>(fmin(1 / temperature, 0x1p127));
  Cut cut;
  if (const std::int64_t k = a.top_k[m]; k > 0 && k < a.V) {
    cut = cut_at(row, cut, static_cast<Weight>(k), shared, [](float) { return Weight{1}; });
  }
  if (top_p < 1) {
    Three total{};
    row.for_each([&](int v, float logit) {
      if (cut.keeps(key_of(logit), v)) total.of[0] += row.weight(logit);
    });
    total.sum(shared);
    cut = cut_at(row, cut, least_weight(top_p, total.of[0]), shared,
                 [&](float logit) { return row.weight(logit); });
  }
  const double least = min_p * kOne;
  draw(row, static_cast<std::uint64_t>(a.random[m]), a.token + m, shared, [&](int v, float logit) {
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
    const Arguments<T> a{
        .logits = static_cast<const T*>(args.logits.data),
        .stride = stride,
        .V = static_cast<int>(args.logits.shape[1]),
        .packed = begin_at_packs(args.logits) && (M == 1 || stride % gpu::kPackedLanes<T> == 0),
        .temperature = static_cast<const double*>(args.temperature.data),
        .top_p = static_cast<const double*>(args.top_p.data),
        .min_p = static_cast<const double*>(args.min_p.data),
        .penalty = static_cast<const double*>(args.repetition_penalty.data),
        .top_k = static_cast<const std::int64_t*>(args.top_k.data),
        .random = static_cast<const std::int64_t*>(args.random.data),
        .seen = static_cast<const std::uint32_t*>(args.seen.data),
        .token = static_cast<std::int32_t*>(args.token.data)};
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
