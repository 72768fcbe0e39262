// Shared by the classifier's kernels. A row's largest logit and its sum of exponentials are found in one pass
// (M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867). The loss, the
// gradient and the probabilities follow from them.
#pragma once

#include "ops/classifier/classifier.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::classifier_kernels {

// e^x for x ≤ 0, in one instruction after a product. The error is 2 ulp plus the effect of half an ulp of the
// product. Results below 1e-38 are 0.
__device__ inline float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// The maximum and the sum over the logits that one thread has seen.
struct Normalizer {
  float largest = -3.402823466e38f;  // finite, so that the first logits never meet inf − inf
  float sum = 0;                     // Σ exp(logit − largest)

  template <int lanes>
  __device__ void add(const float (&logits)[lanes]) {
    float peak = largest;
#pragma unroll
    for (int j = 0; j < lanes; ++j) peak = fmaxf(peak, logits[j]);
    sum *= exponential(largest - peak);
    largest = peak;
#pragma unroll
    for (int j = 0; j < lanes; ++j) sum += exponential(logits[j] - peak);
  }
};

struct ReductionSpace {
  float largest[gpu::kWarp], sum[gpu::kWarp];
};

// Combines the normalizers of all threads of a block. It begins with a barrier, which covers their earlier
// accesses.
__device__ inline Normalizer of_block(const Normalizer& mine, ReductionSpace& shared) {
  Normalizer all;
  all.largest = gpu::block_max(mine.largest, shared.largest);
  all.sum = gpu::block_sum(mine.sum * exponential(mine.largest - all.largest), shared.sum);
  return all;
}

// The state of one row in a kernel.
struct RowState {
  int target = -1;
  float weight = 0;
  float at_target = 0;                        // the target's logit
  float largest = 0, inverse = 0, scale = 0;  // largest logit; 1 / sum; weight / sum

  __device__ bool counted() const { return target >= 0; }
  __device__ void normalize(const Normalizer& n) {
    largest = n.largest;
    inverse = 1.0f / n.sum;
    scale = weight * inverse;
  }
  __device__ float loss(const Normalizer& n) const {
    return counted() ? logf(n.sum) - (at_target - n.largest) : 0.0f;
  }
  // Replaces the logits of the columns from v on by their gradients, and by 0 from column V on.
  template <int lanes, class Index>
  __device__ void to_gradient(float (&x)[lanes], Index v, Index V) const {
#pragma unroll
    for (int j = 0; j < lanes; ++j) x[j] = counted() ? exponential(x[j] - largest) * scale : 0.0f;
    const Index place = target - v;
    if (counted() && place >= 0 && place < lanes) {
      const float gradient = (exponential(at_target - largest) * inverse - 1.0f) * weight;
#pragma unroll
      for (int j = 0; j < lanes; ++j) x[j] = j == place ? gradient : x[j];
    }
    if (v + lanes > V) {
#pragma unroll
      for (int j = 0; j < lanes; ++j) x[j] = v + j < V ? x[j] : 0.0f;
    }
  }
};

template <class T>
struct Rows {
  T* logits;             // (N, Vp)
  const int* targets;    // (N)
  const float* weights;  // (N), or null
  float* losses;         // (N)
  T* probabilities;      // (N, V), or null
  std::int64_t N, V, Vp;
  bool gradient;

  __device__ T* row(std::int64_t n) const { return logits + n * Vp; }
  // Reads the row's target, weight and target logit. Must be called before the row is overwritten.
  __device__ RowState state(std::int64_t n) const {
    RowState s;
    s.target = targets[n];
    s.weight = weights ? weights[n] : 1.0f / static_cast<float>(N);
    if (s.counted()) s.at_target = gpu::to_float(row(n)[s.target]);
    return s;
  }
};

template <class T>
Rows<T> rows_of(const Classifier& a) {
  return {static_cast<T*>(a.logits.data),
          static_cast<const int*>(a.targets.data),
          static_cast<const float*>(a.weights.data),
          static_cast<float*>(a.losses.data),
          static_cast<T*>(a.probabilities.data),
          a.logits.shape[0],
          a.V,
          a.logits.shape[1],
          a.gradient};
}

// The number of threads of a block: whole warps, with about eight packs of a row per thread. Short rows thus
// leave room for other blocks.
inline int threads_for(std::int64_t packs, int most) {
  const std::int64_t warps = packs / 8 / gpu::kWarp + 1;
  return warps * gpu::kWarp < most ? static_cast<int>(warps) * gpu::kWarp : most;
}

}  // namespace warpwright::ops::classifier_kernels
