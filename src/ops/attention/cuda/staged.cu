// Attention stage by stage, each a kernel over the whole problem and a tensor in scratch:
//   forward   permute, scores q·kᵀ, softmax, probabilities · v, unpermute
//   backward  permute dout, probabilities again, dout·vᵀ, dv, through the softmax, dq, dk, unpermute
// This is what the flash variants compute without ever storing a score, and the place to read what they do.
//
// Everything in scratch is fp32. Scores stand in (NH, Nq, Nk); a row is written and read only where its query
// sees a key, so that a causal mask costs no work in tiles above the diagonal, and no row needs −inf. The
// price is memory and its traffic: 4·NH·Nq·Nk bytes, twice that in the backward.
#include <algorithm>
#include <cstdint>

#include "ops/attention/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16;  // of a block's product
constexpr int kSide = 16;               // threads along a side of the tile, each with kEach results
constexpr int kEach = kTile / kSide;
constexpr int kThreads = kSide * kSide;
constexpr int kPadding = 4;

struct Sizes {
  std::int64_t sequences, Nq, Nk, NH, HS;
};

template <class Args>
Sizes sizes_of(const Args& a) {
  return {a.cu_seqlens_q.shape[0] - 1, a.q.shape[0], a.k.shape[0], a.q.shape[1], a.q.shape[2]};
}

// The keys that a query sees, or the queries that see a key: [begin, end).
struct Range {
  std::int32_t begin, end;
};

// Scratch, cut in the order in which it is asked for. With a null base it only counts.
class Scratch {
 public:
  explicit Scratch(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    auto* taken = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uintptr_t base_;
  std::size_t bytes_ = 0;
};

struct ForwardScratch {
  ForwardScratch(void* base, const Sizes& s) {
    Scratch scratch(base);
    keys_of = scratch.take<Range>(s.Nq);
    q = scratch.take<float>(s.NH * s.Nq * s.HS);
    k = scratch.take<float>(s.NH * s.Nk * s.HS);
    v = scratch.take<float>(s.NH * s.Nk * s.HS);
    scores = scratch.take<float>(s.NH * s.Nq * s.Nk);
    bytes = scratch.bytes();
  }
  Range* keys_of;
  float *q, *k, *v;  // (NH, N, HS); q's place holds out once the scores are there
  float* scores;     // (NH, Nq, Nk), then the probabilities
  std::size_t bytes;
};

struct BackwardScratch {
  BackwardScratch(void* base, const Sizes& s) : forward(base, s) {
    Scratch scratch(base ? static_cast<std::byte*>(base) + forward.bytes : nullptr);
    queries_of = scratch.take<Range>(s.Nk);
    dout = scratch.take<float>(s.NH * s.Nq * s.HS);
    dq = scratch.take<float>(s.NH * s.Nq * s.HS);
    dk = scratch.take<float>(s.NH * s.Nk * s.HS);
    dv = scratch.take<float>(s.NH * s.Nk * s.HS);
    dscores = scratch.take<float>(s.NH * s.Nq * s.Nk);
    bytes = forward.bytes + scratch.bytes();
  }
  ForwardScratch forward;
  Range* queries_of;
  float *dout, *dq, *dk, *dv;
  float* dscores;  // of the probabilities, then of the scores
  std::size_t bytes;
};

template <class T>
struct Heads {
  T* data;
  std::int64_t row, head;  // strides
};
template <class T>
Heads<T> heads_of(const Tensor& t) {
  return {static_cast<T*>(t.data), t.strides[0], t.strides[1]};
}

// The sequence that owns row i: the last that begins at or before it, so that empty ones are passed over.
__device__ std::int64_t sequence_of(const std::int32_t* bounds, std::int64_t sequences, std::int64_t i) {
  std::int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (bounds[middle] <= i ? low : high) = middle;
  }
  return low;
}

// of_queries: a row is a query and its range are keys; else the reverse.
template <bool of_queries>
__global__ void ranges_kernel(const std::int32_t* bounds_q, const std::int32_t* bounds_k,
                              std::int64_t sequences, std::int64_t rows, bool causal, Range* ranges) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  const std::int64_t s = sequence_of(of_queries ? bounds_q : bounds_k, sequences, i);
  const auto row = static_cast<std::int32_t>(i);
  const std::int32_t first_q = bounds_q[s], end_q = bounds_q[s + 1];
  const std::int32_t first_k = bounds_k[s], end_k = bounds_k[s + 1];
  // Query i of the sequence sees its key j where j ≤ i + ahead.
  const std::int32_t ahead = (end_k - first_k) - (end_q - first_q);
  Range range = of_queries ? Range{first_k, end_k} : Range{first_q, end_q};
  if (causal && of_queries) range.end = max(first_k, first_k + (row - first_q) + ahead + 1);
  if (causal && !of_queries) range.begin = min(end_q, first_q + max(0, row - first_k - ahead));
  ranges[i] = range;
}

// (NH, N, HS) from (N, NH, HS), and back.
template <class T>
__global__ void permute_kernel(Heads<const T> from, float* to, std::int64_t N, std::int64_t NH,
                               std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= N * NH * HS) return;
  const std::int64_t d = at % HS, n = at / HS % N, h = at / HS / N;
  to[at] = gpu::to_float(from.data[n * from.row + h * from.head + d]);
}
template <class T>
__global__ void unpermute_kernel(const float* from, Heads<T> to, std::int64_t N, std::int64_t NH,
                                 std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= N * NH * HS) return;
  const std::int64_t d = at % HS, h = at / HS % NH, n = at / HS / NH;
  to.data[n * to.row + h * to.head + d] = gpu::from_float<T>(from[(h * N + n) * HS + d]);
}

// A block's 64 × 64 results Σ_k a(i, k)·b(k, j) for k in [begin, end): i and j count from the tile's corner,
// a thread has results (my_row + 16·i, my_col + 16·j). A row takes part where k is in its limits: what its
// neighbours in the tile multiply, NaN perhaps, leaves it alone.
template <class A, class B>
__device__ void tile_product(std::int32_t begin, std::int32_t end, A&& a, B&& b, const Range (&limits)[kEach],
                             float (&sums)[kEach][kEach]) {
  __shared__ float a_tile[kDepth][kTile + kPadding];
  __shared__ float b_tile[kDepth][kTile + kPadding];
  const int thread = static_cast<int>(threadIdx.x);
  const int my_row = thread / kSide, my_col = thread % kSide;
  for (std::int32_t k0 = begin; k0 < end; k0 += kDepth) {
    __syncthreads();
    for (int n = thread; n < kTile * kDepth; n += kThreads) {
      const int k = n % kDepth, i = n / kDepth;
      a_tile[k][i] = k0 + k < end ? a(i, k0 + k) : 0.0f;
      b_tile[k][i] = k0 + k < end ? b(k0 + k, i) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (k0 + k < limits[i].begin || k0 + k >= limits[i].end) continue;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] = fmaf(a_tile[k][my_row + kSide * i], b_tile[k][my_col + kSide * j], sums[i][j]);
        }
      }
    }
  }
}

// The ranges of a thread's rows in a tile; empty behind the last row.
__device__ void limits_of(const Range* ranges, std::int64_t first_row, std::int64_t rows,
                          Range (&limits)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t row = first_row + threadIdx.x / kSide + kSide * i;
    limits[i] = row < rows ? ranges[row] : Range{0, 0};
  }
}

// Calls f(row, col, sum) for the thread's results that lie inside (rows, cols).
template <class F>
__device__ void for_each_result(std::int64_t first_row, std::int64_t rows, std::int64_t first_col,
                                std::int64_t cols, const float (&sums)[kEach][kEach], F&& f) {
  const int my_row = static_cast<int>(threadIdx.x) / kSide, my_col = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t row = first_row + my_row + kSide * i, col = first_col + my_col + kSide * j;
      if (row < rows && col < cols) f(row, col, sums[i][j]);
    }
  }
}

// Ranges begin and end later from row to row: those of a tile span from its first to its last.
__device__ Range span_of(const Range* ranges, std::int64_t first_row, std::int64_t rows) {
  return {ranges[first_row].begin, ranges[min(first_row + kTile, rows) - 1].end};
}

// to[h][i][j] = left[h][i] · right[h][j] for the keys j that query i sees.
__global__ void __launch_bounds__(kThreads)
    scores_kernel(const float* left, const float* right, const Range* keys_of, float* to, Sizes s) {
  const std::int64_t h = blockIdx.z;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const Range seen = span_of(keys_of, first_row, s.Nq);
  if (first_col >= seen.end || first_col + kTile <= seen.begin) return;
  left += h * s.Nq * s.HS, right += h * s.Nk * s.HS, to += h * s.Nq * s.Nk;
  const auto HS = static_cast<std::int32_t>(s.HS);
  const Range whole[kEach] = {{0, HS}, {0, HS}, {0, HS}, {0, HS}};
  float sums[kEach][kEach] = {};
  tile_product(
      0, HS,
      [&](int i, std::int64_t d) { return first_row + i < s.Nq ? left[(first_row + i) * s.HS + d] : 0.0f; },
      [&](std::int64_t d, int j) { return first_col + j < s.Nk ? right[(first_col + j) * s.HS + d] : 0.0f; },
      whole, sums);
  for_each_result(first_row, s.Nq, first_col, s.Nk, sums, [&](std::int64_t i, std::int64_t j, float sum) {
    if (j >= keys_of[i].begin && j < keys_of[i].end) to[i * s.Nk + j] = sum;
  });
}

// to[h][i] = Σ_j weights[h][i][j] · of[h][j] over the keys j that query i sees.
__global__ void __launch_bounds__(kThreads)
    sum_over_keys_kernel(const float* weights, const float* of, const Range* keys_of, float* to, Sizes s) {
  const std::int64_t h = blockIdx.z;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const Range seen = span_of(keys_of, first_row, s.Nq);
  weights += h * s.Nq * s.Nk, of += h * s.Nk * s.HS, to += h * s.Nq * s.HS;
  Range limits[kEach];
  limits_of(keys_of, first_row, s.Nq, limits);
  float sums[kEach][kEach] = {};
  tile_product(
      seen.begin, seen.end,
      [&](int i, std::int64_t j) {
        return first_row + i < s.Nq ? weights[(first_row + i) * s.Nk + j] : 0.0f;
      },
      [&](std::int64_t j, int d) { return first_col + d < s.HS ? of[j * s.HS + first_col + d] : 0.0f; },
      limits, sums);
  for_each_result(first_row, s.Nq, first_col, s.HS, sums,
                  [&](std::int64_t i, std::int64_t d, float sum) { to[i * s.HS + d] = sum; });
}

// to[h][j] = Σ_i weights[h][i][j] · of[h][i] over the queries i that see key j.
__global__ void __launch_bounds__(kThreads)
    sum_over_queries_kernel(const float* weights, const float* of, const Range* queries_of, float* to,
                            Sizes s) {
  const std::int64_t h = blockIdx.z;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const Range seen = span_of(queries_of, first_row, s.Nk);
  weights += h * s.Nq * s.Nk, of += h * s.Nq * s.HS, to += h * s.Nk * s.HS;
  Range limits[kEach];
  limits_of(queries_of, first_row, s.Nk, limits);
  float sums[kEach][kEach] = {};
  tile_product(
      seen.begin, seen.end,
      [&](int j, std::int64_t i) { return first_row + j < s.Nk ? weights[i * s.Nk + first_row + j] : 0.0f; },
      [&](std::int64_t i, int d) { return first_col + d < s.HS ? of[i * s.HS + first_col + d] : 0.0f; },
      limits, sums);
  for_each_result(first_row, s.Nk, first_col, s.HS, sums,
                  [&](std::int64_t j, std::int64_t d, float sum) { to[j * s.HS + d] = sum; });
}

constexpr int kRowWarps = 8;  // of a block whose warps take a row each

// The row (h, i) of this warp, h·Nq + i, or −1.
__device__ std::int64_t row_of_warp(const Sizes& s) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / gpu::kWarp;
  return row < s.NH * s.Nq ? row : -1;
}

// Online softmax: one pass for the maximum and the sum of exponentials, which a lane corrects whenever its
// maximum grows and the warp once more at the end; a second pass writes the probabilities.
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp)
    softmax_kernel(float* scores, const Range* keys_of, float* lse, float scale, Sizes s) {
  const std::int64_t row = row_of_warp(s);
  if (row < 0) return;
  const Range seen = keys_of[row % s.Nq];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  float* x = scores + row * s.Nk;
  float largest = -INFINITY, sum = 0;
  for (std::int64_t j = seen.begin + lane; j < seen.end; j += gpu::kWarp) {
    const float score = scale * x[j];
    if (score > largest) {
      sum *= expf(largest - score);
      largest = score;
    }
    sum += expf(score - largest);
  }
  const float top = gpu::warp_max(largest);
  const float total = gpu::warp_sum(sum * expf(largest - top));
  for (std::int64_t j = seen.begin + lane; j < seen.end; j += gpu::kWarp) {
    x[j] = expf(scale * x[j] - top) / total;
  }
  if (lse && lane == 0) lse[row] = seen.begin < seen.end ? top + logf(total) : -INFINITY;
}

// The forward's probabilities, from the scores and what the forward kept of each row.
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp)
    probabilities_kernel(float* scores, const Range* keys_of, const float* lse, float scale, Sizes s) {
  const std::int64_t row = row_of_warp(s);
  if (row < 0) return;
  const Range seen = keys_of[row % s.Nq];
  float* x = scores + row * s.Nk;
  for (std::int64_t j = seen.begin + threadIdx.x % gpu::kWarp; j < seen.end; j += gpu::kWarp) {
    x[j] = expf(scale * x[j] - lse[row]);
  }
}

// dscores = scale · P ∘ (dP − dout·out), in the place of dP.
template <class T>
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp)
    softmax_backward_kernel(const float* probabilities, float* dprobabilities, const Range* keys_of,
                            const float* dout, Heads<const T> out, float scale, Sizes s) {
  const std::int64_t row = row_of_warp(s);
  if (row < 0) return;
  const std::int64_t i = row % s.Nq, h = row / s.Nq;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  float dot = 0;
  for (std::int64_t d = lane; d < s.HS; d += gpu::kWarp) {
    dot = fmaf(dout[row * s.HS + d], gpu::to_float(out.data[i * out.row + h * out.head + d]), dot);
  }
  dot = gpu::warp_sum(dot);
  const Range seen = keys_of[i];
  for (std::int64_t j = seen.begin + lane; j < seen.end; j += gpu::kWarp) {
    float& d = dprobabilities[row * s.Nk + j];
    d = scale * probabilities[row * s.Nk + j] * (d - dot);
  }
}

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

// The stages, on one stream. A stage without work is not launched.
struct Stages {
  const Sizes s;
  CudaStream stream;

  template <class T>
  void permute(const Tensor& from, float* to) const {
    const std::int64_t N = from.shape[0], count = N * s.NH * s.HS;
    if (count == 0) return;
    permute_kernel<T>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(heads_of<const T>(from), to, N, s.NH, s.HS);
  }
  template <class T>
  void unpermute(const float* from, const Tensor& to) const {
    const std::int64_t N = to.shape[0], count = N * s.NH * s.HS;
    if (count == 0) return;
    unpermute_kernel<T>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(from, heads_of<T>(to), N, s.NH, s.HS);
  }
  template <bool of_queries, class Args>
  void ranges(const Args& a, Range* to) const {
    const std::int64_t rows = of_queries ? s.Nq : s.Nk;
    if (rows == 0) return;
    ranges_kernel<of_queries><<<blocks_for(rows, kThreads), kThreads, 0, stream>>>(
        a.cu_seqlens_q.template as<std::int32_t>(), a.cu_seqlens_k.template as<std::int32_t>(), s.sequences,
        rows, a.mask == Mask::causal, to);
  }
  void scores(const float* left, const float* right, const Range* keys_of, float* to) const {
    if (s.Nq == 0 || s.Nk == 0) return;
    scores_kernel<<<grid(s.Nq, s.Nk), kThreads, 0, stream>>>(left, right, keys_of, to, s);
  }
  void sum_over_keys(const float* weights, const float* of, const Range* keys_of, float* to) const {
    if (s.Nq == 0) return;
    sum_over_keys_kernel<<<grid(s.Nq, s.HS), kThreads, 0, stream>>>(weights, of, keys_of, to, s);
  }
  void sum_over_queries(const float* weights, const float* of, const Range* queries_of, float* to) const {
    if (s.Nk == 0) return;
    sum_over_queries_kernel<<<grid(s.Nk, s.HS), kThreads, 0, stream>>>(weights, of, queries_of, to, s);
  }
  template <class Kernel, class... Args>
  void rows(Kernel kernel, Args... args) const {
    if (s.Nq == 0) return;
    kernel<<<blocks_for(s.NH * s.Nq, kRowWarps), kRowWarps * gpu::kWarp, 0, stream>>>(args..., s);
  }

 private:
  dim3 grid(std::int64_t rows, std::int64_t cols) const {
    return dim3(blocks_for(cols, kTile), blocks_for(rows, kTile), static_cast<unsigned>(s.NH));
  }
};

}  // namespace

std::size_t staged_forward_bytes(const AttentionForwardProblem& p) {
  return ForwardScratch(nullptr, {p.sequences, p.Nq, p.Nk, p.NH, p.HS}).bytes;
}
std::size_t staged_backward_bytes(const AttentionBackwardProblem& p) {
  return BackwardScratch(nullptr, {p.sequences, p.Nq, p.Nk, p.NH, p.HS}).bytes;
}

void staged_forward(const Context& context, const AttentionForward& args) {
  const Stages stages{sizes_of(args), context.stream().get()};
  const ForwardScratch at(context.scratch(), stages.s);
  gpu::visit_gpu_dtype(args.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    stages.ranges<true>(args, at.keys_of);
    stages.permute<T>(args.q, at.q);
    stages.permute<T>(args.k, at.k);
    stages.permute<T>(args.v, at.v);
    stages.scores(at.q, at.k, at.keys_of, at.scores);
    stages.rows(softmax_kernel, at.scores, static_cast<const Range*>(at.keys_of), args.lse.as<float>(),
                args.scale);
    stages.sum_over_keys(at.scores, at.v, at.keys_of, at.q);
    stages.unpermute<T>(at.q, args.out);
  });
  warpwright::cuda::check_launch("attention.forward cuda.staged");
}

void staged_backward(const Context& context, const AttentionBackward& args) {
  const Stages stages{sizes_of(args), context.stream().get()};
  const BackwardScratch at(context.scratch(), stages.s);
  const ForwardScratch& again = at.forward;
  gpu::visit_gpu_dtype(args.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    stages.ranges<true>(args, again.keys_of);
    stages.ranges<false>(args, at.queries_of);
    stages.permute<T>(args.q, again.q);
    stages.permute<T>(args.k, again.k);
    stages.permute<T>(args.v, again.v);
    stages.permute<T>(args.dout, at.dout);
    const Range* keys_of = again.keys_of;
    const float* probabilities = again.scores;
    stages.scores(again.q, again.k, keys_of, again.scores);
    stages.rows(probabilities_kernel, again.scores, keys_of, static_cast<const float*>(args.lse.as<float>()),
                args.scale);
    stages.scores(at.dout, again.v, keys_of, at.dscores);
    stages.sum_over_queries(probabilities, at.dout, at.queries_of, at.dv);
    stages.rows(softmax_backward_kernel<T>, probabilities, at.dscores, keys_of,
                static_cast<const float*>(at.dout), heads_of<const T>(args.out), args.scale);
    stages.sum_over_keys(at.dscores, again.k, keys_of, at.dq);
    stages.sum_over_queries(at.dscores, again.q, at.queries_of, at.dk);
    stages.unpermute<T>(at.dq, args.dq);
    stages.unpermute<T>(at.dk, args.dk);
    stages.unpermute<T>(at.dv, args.dv);
  });
  warpwright::cuda::check_launch("attention.backward cuda.staged");
}

}  // namespace warpwright::ops::attention::cuda
