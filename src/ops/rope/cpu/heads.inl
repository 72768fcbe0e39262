// Rotary position embedding on a CPU: 2 passes over (N, NH, HS), in place over the R rotary elements of each
// head. The threads share the rows.
#include <type_traits>

#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/rope/kernels.hpp"

namespace warpwright::ops::rope {
namespace {

using namespace simd;

// cos and sin of the pairs of one row. The rotation is by the angle or, if sign is −1, by its negative.
struct Angles {
  const float *cos, *sin;
  std::int64_t pairs;
  float sign;
};

struct Pairs {
  vec a, b;
};
Pairs rotated(Pairs x, const Angles& angles, std::int64_t i, int n) {
  const vec c = load_lanes(angles.cos + i, n), s = set1(angles.sign) * load_lanes(angles.sin + i, n);
  return {fnma(x.b, s, x.a * c), fma(x.a, s, x.b * c)};
}

template <class T>
void rotate_halves(const T* from, T* to, const Angles& angles) {
  const std::int64_t pairs = angles.pairs;
  for_each_vector(0, pairs, [&](std::int64_t i, int n) {
    const Pairs x = rotated({load_lanes(from + i, n), load_lanes(from + pairs + i, n)}, angles, i, n);
    store_lanes(to + i, x.a, n);
    store_lanes(to + pairs + i, x.b, n);
  });
}

// The elements of n interleaved pairs.
template <class T>
Pairs load_pairs(const T* from, int n) {
  Pairs x;
  if constexpr (std::is_same_v<T, bf16>) {
    if (n == kLanes) {
      load_apart(from, x.a, x.b);
      return x;
    }
  }
  const int low = 2 * n < kLanes ? 2 * n : kLanes, high = 2 * n - low;
  x = {load_lanes(from, low), high > 0 ? load_lanes(from + kLanes, high) : zero()};
  take_apart(x.a, x.b);
  return x;
}
template <class T>
void store_pairs(T* to, Pairs x, int n) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (n == kLanes) return store_apart(to, x.a, x.b);
  }
  const int low = 2 * n < kLanes ? 2 * n : kLanes, high = 2 * n - low;
  put_together(x.a, x.b);
  store_lanes(to, x.a, low);
  if (high > 0) store_lanes(to + kLanes, x.b, high);
}

template <class T>
void rotate_interleaved(const T* from, T* to, const Angles& angles) {
  for_each_vector(0, angles.pairs, [&](std::int64_t i, int n) {
    store_pairs(to + 2 * i, rotated(load_pairs(from + 2 * i, n), angles, i, n), n);
  });
}

template <RopeLayout layout, class T>
void run(const Rotation& r, int threads) {
  const std::int64_t N = r.from.shape[0], NH = r.from.shape[1], HS = r.from.shape[2];
  const std::int64_t pairs = r.cos.shape[1], rest = r.in_place ? 0 : HS - 2 * pairs;
  const auto* positions = static_cast<const std::int32_t*>(r.positions.data);
  const auto *cos = static_cast<const float*>(r.cos.data), *sin = static_cast<const float*>(r.sin.data);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t n = 0; n < N; ++n) {
    const Angles angles{cos + positions[n] * pairs, sin + positions[n] * pairs, pairs, r.sign};
    for (std::int64_t h = 0; h < NH; ++h) {
      const T* from = static_cast<const T*>(r.from.data) + n * r.from.strides[0] + h * r.from.strides[1];
      T* to = static_cast<T*>(r.to.data) + n * r.to.strides[0] + h * r.to.strides[1];
      layout == RopeLayout::half ? rotate_halves(from, to, angles) : rotate_interleaved(from, to, angles);
      for (std::int64_t i = HS - rest; i < HS; ++i) to[i] = from[i];
    }
  }
}

template <RopeLayout layout>
void run_dtype(const Rotation& r, int threads) {
  switch (r.from.dtype) {
    case DType::bf16:
      return run<layout, bf16>(r, threads);
    case DType::f16:
      return run<layout, f16>(r, threads);
    default:
      return run<layout, float>(r, threads);
  }
}

void rotate(const Context& context, const Rotation& r) {
  if (finds_wrong_position(r)) return;
  r.layout == RopeLayout::half ? run_dtype<RopeLayout::half>(r, context.threads())
                               : run_dtype<RopeLayout::interleaved>(r, context.threads());
}

void forward(const Context& context, const RopeForward& args) {
  rotate(context, rotation_of(args));
}
void backward(const Context& context, const RopeBackward& args) {
  rotate(context, rotation_of(args));
}

constexpr DTypes kDTypes{DType::f32, DType::bf16, DType::f16};

}  // namespace
}  // namespace warpwright::ops::rope

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RopeForward, kCpu) = {.needs = kThisCpu, .dtypes = rope::kDTypes, .run = rope::forward};
WARPWRIGHT_KERNEL(RopeBackward, kCpu) = {.needs = kThisCpu, .dtypes = rope::kDTypes, .run = rope::backward};

}  // namespace warpwright::ops
