// Softmax cross entropy on a CPU, one row at a time, in two passes. The first pass keeps a running maximum
// and sum (M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867). The
// second pass writes the gradient and the probabilities. A row of GPT-2's vocabulary, 200 KB in fp32, stays
// in L2 for the second pass, so the logits cross the memory bus once in each direction. ~45 FLOP per element,
// nearly all of them in two exponentials.
#include "ops/classifier/classifier.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

using namespace simd;

// Finite, so that the first logits of a row never meet inf − inf. It is below any logit that matters.
constexpr float kLowest = -3.402823466e38f;

struct Normalizer {
  float largest;  // of the logits
  float sum;      // Σ exp(logit − largest)
};

// Each lane keeps its own maximum and sum. They are rescaled once per eight vectors.
template <class T>
inline Normalizer normalizer(const T* logits, std::int64_t V) {
  constexpr int kVectors = 8;
  vec largest = set1(kLowest), sum0 = zero(), sum1 = zero();
  std::int64_t v = 0;
  for (; v + kVectors * kLanes <= V; v += kVectors * kLanes) {
    vec x[kVectors], peak = largest;
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load(logits + v + i * kLanes);
      peak = max(peak, x[i]);
    }
    const vec rescale = exp(largest - peak);
    largest = peak;
    sum0 *= rescale;
    sum1 *= rescale;
    for (int i = 0; i < kVectors; i += 2) {
      sum0 += exp(x[i] - largest);
      sum1 += exp(x[i + 1] - largest);
    }
  }
  vec total = sum0 + sum1;
  for_each_vector(v, V, [&](std::int64_t i, int n) {
    const vec x = keep(load_lanes(logits + i, n), n, set1(kLowest));
    const vec peak = max(largest, x);
    total = total * exp(largest - peak) + keep(exp(x - peak), n, zero());
    largest = peak;
  });
  const float row = maximum(largest);
  return {row, sum(total * exp(largest - set1(row)))};
}

template <class T>
inline float value(const T* p) {
  return sum(load(p, 1));
}

template <class T>
struct Row {
  T* logits;         // (Vp)
  T* probabilities;  // (V), or null
  std::int64_t V, Vp, target;
  float weight;
  bool gradient;
};

template <bool gradient, bool probabilities, class T>
inline void write_row(const Row<T>& row, Normalizer s) {
  const vec largest = set1(s.largest), inverse = set1(1.0f / s.sum), weight = set1(row.weight);
  const Row<T> r = row;  // kept in registers: a vector store could alias the caller's
  for_each_vector(0, r.V, [=](std::int64_t v, int n) {
    // Prefetches the next row, so that the arithmetic here hides the latency of memory.
    __builtin_prefetch(r.logits + r.Vp + v);
    const vec p = exp(load_lanes(r.logits + v, n) - largest) * inverse;
    if constexpr (probabilities) store_lanes(r.probabilities + v, p, n);
    if constexpr (gradient) store_lanes(r.logits + v, p * weight, n);
  });
}

template <class T>
inline void zero_columns(T* p, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [=](std::int64_t v, int n) { store_lanes(p + v, zero(), n); });
}

template <class T>
inline float run_row(const Row<T>& r) {
  const bool counted = r.target >= 0, gradient = r.gradient && counted;
  float loss = 0;
  if (counted || r.probabilities) {
    const Normalizer s = normalizer(r.logits, r.V);
    const float below = counted ? value(r.logits + r.target) - s.largest : 0;  // ≤ 0
    if (counted) loss = __builtin_logf(s.sum) - below;
    if (gradient && r.probabilities) write_row<true, true>(r, s);
    if (gradient && !r.probabilities) write_row<true, false>(r, s);
    if (!gradient && r.probabilities) write_row<false, true>(r, s);
    if (gradient) {
      const vec p = exp(set1(below)) / set1(s.sum);
      store(r.logits + r.target, (p - set1(1.0f)) * set1(r.weight), 1);
    }
  }
  if (r.gradient) zero_columns(r.logits, counted ? r.V : 0, r.Vp);
  return loss;
}

template <class T>
void run_rows(const Classifier& a, int threads) {
  const std::int64_t N = a.logits.shape[0], Vp = a.logits.shape[1], V = a.V;
  auto* logits = static_cast<T*>(a.logits.data);
  auto* probabilities = static_cast<T*>(a.probabilities.data);
  const auto* targets = static_cast<const std::int32_t*>(a.targets.data);
  const auto* weights = static_cast<const float*>(a.weights.data);
  auto* losses = static_cast<float*>(a.losses.data);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t n = 0; n < N; ++n) {
    const float weight = weights ? weights[n] : 1.0f / static_cast<float>(N);
    losses[n] = run_row<T>({logits + n * Vp, probabilities ? probabilities + n * V : nullptr, V, Vp,
                            targets[n], weight, a.gradient});
  }
}

void run(const Context& context, const Classifier& args) {
  args.logits.dtype == DType::f32 ? run_rows<float>(args, context.threads())
                                  : run_rows<bf16>(args, context.threads());
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, kCpu) = {
    .needs = kThisCpu, .dtypes = kCpuDTypes, .run = classifier_kernels::run};

}  // namespace warpwright::ops
