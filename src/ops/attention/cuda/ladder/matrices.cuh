// Attention with whole matrices in memory and the library's batched products: what the rungs of the ladder
// share.
//
// Sequences of one length L are stored as (S, NH, L, HS), and a matrix of scores as (Lq, Lk), whose rows are
// padded so that each begins at 16 bytes. The products take whole matrices. So what a query does not see is
// written as 0 before a product reads it.
#pragma once

#include <cstdint>
#include <cstdio>

#include "ops/attention/cuda/ladder/batched.hpp"
#include "ops/attention/cuda/refuse.cuh"
#include "ops/attention/cuda/sequences.cuh"
#include "ops/attention/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::attention::cuda {

// S sequences of at most Lq queries and Lk keys.
struct Sizes {
  std::int64_t S, NH, Lq, Lk, HS;
  std::int64_t lanes;  // numbers in 16 bytes

  __host__ __device__ std::int64_t heads() const { return S * NH; }
  __host__ __device__ std::int64_t row_of_scores() const { return (Lk + lanes - 1) / lanes * lanes; }
  std::int64_t queries() const { return heads() * Lq * HS; }
  std::int64_t keys() const { return heads() * Lk * HS; }
  std::int64_t scores() const { return heads() * Lq * row_of_scores(); }
};

template <class T, class Problem>
Sizes sizes_of(const Problem& p) {
  return {p.sequences, p.NH, p.Nq / p.sequences, p.Nk / p.sequences, p.HS, 16 / sizeof(T)};
}

// ---- Permutation: between (N, NH, HS) and (S, NH, L, HS) ----

inline constexpr int kPermuteThreads = 256;

// The place in (N, NH, HS) of an element of (S, NH, L, HS).
struct Place {
  std::int64_t row, head, d;
  bool used;  // the sequence has this row
};
__device__ inline Place place_of(std::int64_t at, const std::int32_t* cu_seqlens, int sequences, int N,
                                 std::int64_t NH, std::int64_t L, std::int64_t HS) {
  const std::int64_t row = at / HS, head = row / L;
  const auto s = static_cast<int>(head / NH);
  if (s >= sequences) return {0, 0, 0, false};
  const int first = bound(cu_seqlens, s, N), end = bound(cu_seqlens, s + 1, N);
  return {first + row % L, head % NH, at % HS, first + row % L < end};
}

template <class T>
__global__ void __launch_bounds__(kPermuteThreads)
    permute_rows(Rows from, const std::int32_t* cu_seqlens, int sequences, int N, T* to, std::int64_t NH,
                 std::int64_t L, std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kPermuteThreads + threadIdx.x;
  if (at >= sequences * NH * L * HS) return;
  const Place place = place_of(at, cu_seqlens, sequences, N, NH, L, HS);
  to[at] = place.used ? reinterpret_cast<const T*>(
                            from.at(static_cast<int>(place.row), static_cast<int>(place.head)))[place.d]
                      : T(0.0f);
}

template <class T>
__global__ void __launch_bounds__(kPermuteThreads)
    unpermute_rows(const T* from, const std::int32_t* cu_seqlens, int sequences, int N, Rows to,
                   std::int64_t NH, std::int64_t L, std::int64_t HS) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kPermuteThreads + threadIdx.x;
  if (at >= sequences * NH * L * HS) return;
  const Place place = place_of(at, cu_seqlens, sequences, N, NH, L, HS);
  if (!place.used) return;
  reinterpret_cast<T*>(to.at(static_cast<int>(place.row), static_cast<int>(place.head)))[place.d] = from[at];
}

// ---- Rows of scores ----

// The scores of all heads, row by row.
struct Scores {
  Sequences sequences;
  Sizes sizes;
  float scale;

  struct Row {
    Tile tile;         // the whole sequence
    int head, query;   // query: counts from the sequence's first
    int keys;          // that the query sees; 0 if the sequence has no such query
    std::int64_t lse;  // its place in lse (NH, Nq)
  };
  __device__ Row row(std::int64_t index) const {
    const std::int64_t matrix = index / sizes.Lq;
    Row row;
    row.tile = whole_sequence(sequences, static_cast<int>(matrix / sizes.NH));
    row.head = static_cast<int>(matrix % sizes.NH);
    row.query = static_cast<int>(index % sizes.Lq);
    const bool used = row.query < row.tile.Lq;
    const int seen = used ? row.tile.visible_keys(row.query, sequences.causal) : 0;
    row.keys = min(seen, static_cast<int>(sizes.Lk));
    row.lse = used ? static_cast<std::int64_t>(row.head) * sequences.Nq + row.tile.q0 + row.query : -1;
    return row;
  }
  __device__ std::int64_t rows() const { return sizes.heads() * sizes.Lq; }
};

__device__ inline int my_lane() {
  return static_cast<int>(threadIdx.x) % gpu::kWarp;
}

// The warp's row; rows() or more if it has none. In reverse order, the longest rows of a causal mask come
// first, and the caches keep the first rows for the product that follows.
__device__ inline std::int64_t row_of_warp(bool reverse) {
  const std::int64_t block = reverse ? gridDim.x - blockIdx.x - 1 : blockIdx.x;
  return block * (blockDim.x / gpu::kWarp) + threadIdx.x / gpu::kWarp;
}

// ---- Stages ----

// Hands out the scratch after the library's workspace. With a null base it only counts.
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
  std::size_t bytes_ = kBatchedWorkspace;
};

template <class T>
struct ForwardTensors {
  ForwardTensors(Scratch& scratch, const Sizes& s)
      : q(scratch.take<T>(s.queries())),
        k(scratch.take<T>(s.keys())),
        v(scratch.take<T>(s.keys())),
        scores(scratch.take<T>(s.scores())) {}
  T *q, *k, *v;  // (S, NH, L, HS); out replaces q once the scores exist
  T* scores;     // (S, NH, Lq, Lk); later the probabilities
};

template <class T>
class Matrices {
 public:
  template <class Args>
  Matrices(const Context& context, const Args& args, const Sizes& sizes)
      : context_(context), s_{Sequences(args), sizes, args.scale} {}

  void permute_queries(const Tensor& from, T* to) const { permute(from, s_.sequences.q, s_.sizes.Lq, to); }
  void permute_keys(const Tensor& from, T* to) const { permute(from, s_.sequences.k, s_.sizes.Lk, to); }
  void unpermute_queries(const T* from, const Tensor& to) const {
    unpermute(from, s_.sequences.q, s_.sizes.Lq, to);
  }
  void unpermute_keys(const T* from, const Tensor& to) const {
    unpermute(from, s_.sequences.k, s_.sizes.Lk, to);
  }
  // scores = factor · queries · keysᵀ
  void scores(const T* queries, const T* keys, T* to, float factor = 1) const {
    multiply({.rows = s_.sizes.Lq, .cols = s_.sizes.Lk, .depth = s_.sizes.HS},
             {of_queries(), transposed(of_keys()), of_scores()}, queries, keys, to, factor);
  }
  // queries = weights · keys
  void sum_over_keys(const T* weights, const T* keys, T* to) const {
    multiply({.rows = s_.sizes.Lq, .cols = s_.sizes.HS, .depth = s_.sizes.Lk},
             {of_scores(), of_keys(), of_queries()}, weights, keys, to);
  }
  // keys = weightsᵀ · queries
  void sum_over_queries(const T* weights, const T* queries, T* to) const {
    multiply({.rows = s_.sizes.Lk, .cols = s_.sizes.HS, .depth = s_.sizes.Lq},
             {transposed(of_scores()), of_queries(), of_keys()}, weights, queries, to);
  }

 protected:
  cudaStream_t stream() const { return context_.stream().get(); }
  static unsigned blocks_of(std::int64_t count, std::int64_t each) {
    return static_cast<unsigned>((count + each - 1) / each);
  }
  unsigned blocks_of_rows(int threads) const {
    return blocks_of(s_.sizes.heads() * s_.sizes.Lq, threads / gpu::kWarp);
  }
  void permute(const Tensor& from, const std::int32_t* cu_seqlens, std::int64_t L, T* to) const {
    const std::int64_t count = s_.sizes.heads() * L * s_.sizes.HS;
    permute_rows<T><<<blocks_of(count, kPermuteThreads), kPermuteThreads, 0, stream()>>>(
        Rows(from), cu_seqlens, s_.sequences.count, static_cast<int>(from.shape[0]), to, s_.sizes.NH, L,
        s_.sizes.HS);
  }
  void unpermute(const T* from, const std::int32_t* cu_seqlens, std::int64_t L, const Tensor& to) const {
    const std::int64_t count = s_.sizes.heads() * L * s_.sizes.HS;
    unpermute_rows<T><<<blocks_of(count, kPermuteThreads), kPermuteThreads, 0, stream()>>>(
        from, cu_seqlens, s_.sequences.count, static_cast<int>(to.shape[0]), Rows(to), s_.sizes.NH, L,
        s_.sizes.HS);
  }

  const Context& context_;
  Scores s_;

 private:
  struct Factors {
    BatchedFactor a, b, out;
  };
  BatchedFactor of_queries() const { return {s_.sizes.HS, s_.sizes.Lq * s_.sizes.HS}; }
  BatchedFactor of_keys() const { return {s_.sizes.HS, s_.sizes.Lk * s_.sizes.HS}; }
  BatchedFactor of_scores() const {
    return {s_.sizes.row_of_scores(), s_.sizes.Lq * s_.sizes.row_of_scores()};
  }
  static BatchedFactor transposed(BatchedFactor factor) {
    factor.transposed = true;
    return factor;
  }
  void multiply(BatchedProduct product, const Factors& factors, const T* a, const T* b, T* to,
                float factor = 1) const {
    product.count = s_.sizes.heads();
    product.dtype = sizeof(T) == 4 ? DType::f32 : DType::f16;
    product.factor = factor;
    product.a = factors.a, product.b = factors.b, product.out = factors.out;
    cuda::multiply(context_, product, a, b, to);
  }
};

// One length for all sequences is what a problem can promise: as many rows as S sequences of max_seqlen have.
// Bytes are counted in fp64, because for shapes that no memory can hold the product exceeds 64 bits.
template <class T, class Problem>
Refusal refuse_matrices(const Problem& p, int matrices) {
  constexpr double kMostBytes = 0x1p32;
  constexpr std::int64_t kMostHeads = 65535;  // in a grid's second dimension
  if (p.sequences == 0 || p.Nq == 0 || p.Nk == 0) return "there are no queries or no keys";
  const bool one_length = p.Nq == p.Nk && p.Nq == p.sequences * p.max_seqlen;
  if (p.sequences > 1 && !one_length) return "takes one sequence, or a batch that max_seqlen fills";
  if (Refusal refusal = refuse_pairs(p)) return refusal;
  if (Refusal refusal = refuse_window(p)) return refusal;
  if (Refusal refusal = refuse_groups(p)) return refusal;
  if (!p.positive_scale) return "the scale is not positive";
  if (p.sequences * p.NH > kMostHeads) return "has more heads than a grid allows";
  const Sizes sizes = sizes_of<T>(p);
  const double bytes = sizeof(T) * static_cast<double>(matrices) * static_cast<double>(sizes.heads()) *
                       static_cast<double>(sizes.Lq) * static_cast<double>(sizes.row_of_scores());
  if (bytes <= kMostBytes) return refuse_batched();
  char text[64];
  std::snprintf(text, sizeof(text), "its scores take %.1f GiB", bytes / 0x1p30);
  return text;
}

}  // namespace warpwright::ops::attention::cuda
