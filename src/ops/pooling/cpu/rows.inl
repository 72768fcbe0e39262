// Pooling on a CPU, one sequence at a time. Memory-bound: x is read once, a few vectors of columns at a time
// from the first row to the last. The norm of the result is computed from L1.
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/pooling/kernels.hpp"

namespace warpwright::ops::pooling {
namespace {

using namespace simd;

inline vec either_bits(vec a, vec b) {
#if defined(__AVX512F__)
  return _mm512_or_ps(a, b);
#else
  return _mm256_or_ps(a, b);
#endif
}

// The larger of a and b, or NaN if either is NaN: then max returns b and select_less returns a, and the union
// of their bits is NaN.
inline vec larger(vec a, vec b) {
  return either_bits(max(a, b), select_less(a, b, b, a));
}

template <class T>
struct Rows {
  const T* data;
  std::int64_t count, C;
};

// Reduces columns [c, c + n) of all rows, n ≤ kLanes. Even and odd rows have separate sums, so that
// consecutive additions are independent.
template <Pooling kind, class T>
inline vec reduce(const Rows<T>& x, std::int64_t c, int n) {
  const auto row = [&](std::int64_t i) { return load_lanes(x.data + i * x.C + c, n); };
  vec even = row(0);
  if constexpr (kind == Pooling::cls) return even;
  vec odd = kind == Pooling::max ? even : zero();
  const auto put = [](vec so_far, vec value) {
    return kind == Pooling::max ? larger(so_far, value) : so_far + value;
  };
  std::int64_t i = 1;
  for (; i + 2 <= x.count; i += 2) {
    odd = put(odd, row(i));
    even = put(even, row(i + 1));
  }
  if (i < x.count) odd = put(odd, row(i));
  return put(even, odd);
}

template <Pooling kind, class T, class TOut>
void pool_sequence(const Rows<T>& x, bool normalize, TOut* out) {
  const auto length = static_cast<float>(x.count);
  const float scale = kind == Pooling::mean        ? 1 / length
                      : kind == Pooling::mean_sqrt ? 1 / __builtin_sqrtf(length)
                                                   : 1;
  const auto value = [&](std::int64_t c, int n) {
    if (x.count == 0) return zero();
    const vec v = reduce<kind>(x, c, n);
    return kind == Pooling::mean || kind == Pooling::mean_sqrt ? v * set1(scale) : v;
  };
  vec squares = zero();
  for_each_vector(0, x.C, [&](std::int64_t c, int n) {
    const vec v = value(c, n);
    if (normalize) squares = fma(v, n == kLanes ? v : keep(v, n, zero()), squares);
    if (!normalize || sizeof(TOut) == sizeof(float)) store_lanes(out + c, v, n);
  });
  if (!normalize) return;
  const float norm = __builtin_sqrtf(sum(squares));
  const vec inverse = set1(1 / (norm < kLeastNorm ? kLeastNorm : norm));
  for_each_vector(0, x.C, [&](std::int64_t c, int n) {
    // A bf16 out has already rounded the values, so they are computed again before they are divided.
    const vec v = sizeof(TOut) == sizeof(float) ? load_lanes(out + c, n) : value(c, n);
    store_lanes(out + c, v * inverse, n);
  });
}

template <Pooling kind, class T, class TOut>
void pool(const PoolingForward& a, int threads) {
  const std::int64_t S = a.out.shape[0], C = a.out.shape[1];
  const auto* bounds = static_cast<const std::int32_t*>(a.cu_seqlens.data);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t s = 0; s < S; ++s) {
    const std::int64_t first = bounds ? bounds[s] : s, last = bounds ? bounds[s + 1] : s + 1;
    const Rows<T> rows{static_cast<const T*>(a.x.data) + first * C, last - first, C};
    pool_sequence<kind>(rows, a.normalize, static_cast<TOut*>(a.out.data) + s * C);
  }
}

template <class T, class TOut>
void run(const PoolingForward& a, int threads) {
  switch (a.kind) {
    case Pooling::mean:
      return pool<Pooling::mean, T, TOut>(a, threads);
    case Pooling::cls:
      return pool<Pooling::cls, T, TOut>(a, threads);
    case Pooling::max:
      return pool<Pooling::max, T, TOut>(a, threads);
    case Pooling::mean_sqrt:
      return pool<Pooling::mean_sqrt, T, TOut>(a, threads);
  }
}

void forward(const Context& context, const PoolingForward& args) {
  check_bounds(args);
  const int threads = context.threads();
  if (args.x.dtype == DType::f32) return run<float, float>(args, threads);
  args.out.dtype == DType::f32 ? run<bf16, float>(args, threads) : run<bf16, bf16>(args, threads);
}

}  // namespace
}  // namespace warpwright::ops::pooling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PoolingForward, kCpu) = {.needs = kThisCpu, .dtypes = kCpuDTypes, .run = pooling::forward};

}  // namespace warpwright::ops
