// The results of splits of a sequence's keys, and how they are joined: always in the order of the splits, so
// that the bits do not depend on which blocks compute them.
#pragma once

#include "ops/cached_attention/cuda/sequences.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {

// The maximum of some scores and the sum of exp2(score − maximum). A sum of 0
// means that there are none, or that all are −∞.
struct Weight {
  float largest = -INFINITY, total = 0;
};

// Joins the weight of the next split. Returns the factors for the sums so far and for those of the split.
__device__ inline float2 join(Weight& so_far, const Weight& next) {
  if (next.total == 0) return {1, 0};
  const float largest = fmaxf(so_far.largest, next.largest);
  const float2 factors{exp2f(so_far.largest - largest), exp2f(next.largest - largest)};
  so_far = {largest, __fmaf_rn(so_far.total, factors.x, __fmul_rn(next.total, factors.y))};
  return factors;
}
__device__ inline float joined(float so_far, float next, float2 factors) {
  return __fmaf_rn(so_far, factors.x, __fmul_rn(next, factors.y));
}

// The results that the warps of a block have for one split.
template <int warps, int heads, int columns>
struct Exchange {
  Weight weights[warps][heads];
  float sums[warps][heads][columns];

  // The split's weight and its sum of one column.
  __device__ Weight total(int g, int column, float& sum) const {
    Weight all;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      if (weights[w][g].total != 0) all.largest = fmaxf(all.largest, weights[w][g].largest);
    }
    sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const Weight part = weights[w][g];
      const float factor = part.total == 0 ? 0.0f : exp2f(part.largest - all.largest);
      all.total = __fmaf_rn(part.total, factor, all.total);
      sum = __fmaf_rn(sums[w][g][column], factor, sum);
    }
    return all;
  }
};

// The division of a launch among blocks. The `group` query heads of a key head are divided into `groups`,
// each with blocks of its own, and a block takes `splits_each` splits. If a query needs several blocks, their
// results meet in memory: for row n, query head h and split i, HS sums and a Weight.
struct Division {
  int group, groups, splits, splits_each;
  float* sums = nullptr;
  Weight* weights = nullptr;
  unsigned* flags = nullptr;  // of a query and a group of heads: blocks that have finished

  __device__ std::int64_t at(int n, int head, int NH, int split) const {
    return (static_cast<std::int64_t>(n) * NH + head) * splits + split;
  }
};

// The results of a block's query heads, `head` to head + count − 1 of row n. Each thread has some columns.
template <class T, class Products>
class Results {
 public:
  using Exchange = typename Products::Exchange;

  __device__ Results(const Arguments<T>& a, int n, int head, int count)
      : a_(a), n_(n), head_(head), count_(count) {}

  // Adds the split whose results the warps have exchanged.
  __device__ void add(const Exchange& exchange) {
    for_each([&](int i, int g, int d) {
      float next = 0;
      const Weight weight = exchange.total(g, d, next);
      const float2 factors = join(weights_[i], weight);
      sums_[i] = joined(sums_[i], next, factors);
    });
  }
  // Stores the results of that split instead, for the block that adds all.
  __device__ void store_split(const Exchange& exchange, const Division& division, int split) const {
    for_each([&](int, int g, int d) {
      float sum = 0;
      const Weight weight = exchange.total(g, d, sum);
      const std::int64_t at = division.at(n_, head_ + g, a_.NH, split);
      division.sums[at * a_.HS + d] = sum;
      if (d == 0) division.weights[at] = weight;
    });
  }
  // Adds the splits [begin, end) that blocks have stored. Several are read at once.
  __device__ void add(const Division& division, int begin, int end) {
    for (int first = begin; first < end; first += kAtOnce) {
      Weight weights[kOwn][kAtOnce];
      float sums[kOwn][kAtOnce] = {};
      for_each([&](int i, int g, int d) {
        const std::int64_t at = division.at(n_, head_ + g, a_.NH, first);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          if (first + s >= end) continue;
          const float2 pair = __ldcg(reinterpret_cast<const float2*>(division.weights + at + s));
          weights[i][s] = {pair.x, pair.y};
          sums[i][s] = __ldcg(division.sums + (at + s) * a_.HS + d);
        }
      });
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          const float2 factors = join(weights_[i], weights[i][s]);
          sums_[i] = joined(sums_[i], sums[i][s], factors);
        }
      }
    }
  }
  // Without any finite score, the result is NaN; without any key, it is 0.
  __device__ void store(bool has_keys) const {
    for_each([&](int i, int g, int d) {
      a_.out.at(n_, head_ + g)[d] = gpu::from_float<T>(has_keys ? sums_[i] / weights_[i].total : 0.0f);
    });
  }

 private:
  static constexpr int kColumns = Products::Layout::kColumns, kThreads = Products::Layout::kThreads;
  static constexpr int kOwn = (Products::kHeads * kColumns + kThreads - 1) / kThreads;
  static constexpr int kAtOnce = kOwn == 1 ? 16 : 8;

  // Calls f(i, head of the block, column) for this thread's results.
  template <class F>
  __device__ void for_each(const F& f) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int t = static_cast<int>(threadIdx.x) + i * kThreads;
      if (t / kColumns < count_ && t % kColumns < a_.HS) f(i, t / kColumns, t % kColumns);
    }
  }

  const Arguments<T>& a_;
  const int n_, head_, count_;
  Weight weights_[kOwn];
  float sums_[kOwn] = {};
};

}  // namespace warpwright::ops::cached
