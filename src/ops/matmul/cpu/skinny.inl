// The forward product for few rows of x (generation token by token), M ≤ 16. It computes dot products of rows
// of x with rows of the weight. The weight is streamed from memory once and is never packed. Rows of a bf16 x
// are widened into the scratch first.
//
// Memory-bound: 2·M FLOP per element of the weight.
#include "ops/matmul/cpu/gemm.hpp"

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

constexpr std::int64_t kMostRows = 16;
constexpr int kDotRows = 4;  // rows of x, and of the weight, that are processed together

// out[i·kDotRows + j] = x_i · w_j for X rows of x and W rows of the weight.
template <int X, int W, class T>
inline void dot_products(const float* x, std::int64_t ldx, const T* w, std::int64_t ldw, std::int64_t K,
                         float* out) {
  vec sums[X][W];
  for (int i = 0; i < X; ++i) {
    for (int j = 0; j < W; ++j) sums[i][j] = zero();
  }
  const auto step = [&](std::int64_t k, int n) {
    vec terms[W];
    for (int j = 0; j < W; ++j) terms[j] = load_lanes(w + j * ldw + k, n);
    for (int i = 0; i < X; ++i) {
      const vec v = load_lanes(x + i * ldx + k, n);
      for (int j = 0; j < W; ++j) sums[i][j] = fma(v, terms[j], sums[i][j]);
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= K; k += kLanes) step(k, kLanes);
  if (k < K) step(k, static_cast<int>(K - k));
  for (int i = 0; i < X; ++i) {
    for (int j = 0; j < W; ++j) out[i * kDotRows + j] = sum(sums[i][j]);
  }
}

template <int W, class T>
inline void dot_products(int rows, const float* x, std::int64_t ldx, const T* w, std::int64_t ldw,
                         std::int64_t K, float* out) {
  switch (rows) {
    case 1:
      return dot_products<1, W>(x, ldx, w, ldw, K, out);
    case 2:
      return dot_products<2, W>(x, ldx, w, ldw, K, out);
    case 3:
      return dot_products<3, W>(x, ldx, w, ldw, K, out);
    default:
      return dot_products<kDotRows, W>(x, ldx, w, ldw, K, out);
  }
}

template <class T, class Out>
struct Skinny {
  const float* x;
  std::int64_t ldx, M, K;
  const T* weight;
  Epilogue<T, Out> epilogue;

  // Computes columns [n, n + count) of the output, count ≤ kDotRows.
  void columns(std::int64_t n, int count) const {
    const T* w = weight + n * K;
    for (std::int64_t m = 0; m < M; m += kDotRows) {
      const int rows = static_cast<int>(smaller(kDotRows, M - m));
      float out[kDotRows * kDotRows] = {};
      if (count == kDotRows) {
        dot_products<kDotRows>(rows, x + m * ldx, ldx, w, K, K, out);
      } else {
        for (int j = 0; j < count; ++j) dot_products<1>(rows, x + m * ldx, ldx, w + j * K, K, K, out + j);
      }
      for (int i = 0; i < rows; ++i) {
        const vec v = finish(epilogue, load(out + i * kDotRows, count), m + i, n, count);
        store(epilogue.c + (m + i) * epilogue.ldc + n, v, count);
      }
    }
  }
};

template <class T, class Out>
void run_skinny(const Context& context, const MatmulForward& args) {
  Skinny<T, Out> s;
  s.M = args.x.shape[0];
  s.K = args.x.shape[1];
  s.weight = static_cast<const T*>(args.weight.data);
  if constexpr (sizeof(T) == sizeof(float)) {
    s.x = static_cast<const T*>(args.x.data);
    s.ldx = args.x.strides[0];
  } else {
    auto* wide = static_cast<float*>(context.scratch());
    for (std::int64_t m = 0; m < s.M; ++m) {
      const T* row = static_cast<const T*>(args.x.data) + m * args.x.strides[0];
      for (std::int64_t k = 0; k < s.K; k += kLanes) {
        const int n = static_cast<int>(smaller(kLanes, s.K - k));
        store_lanes(wide + m * s.K + k, load_lanes(row + k, n), n);
      }
    }
    s.x = wide;
    s.ldx = s.K;
  }
  s.epilogue = forward_epilogue<T, Out>(args);
  const std::int64_t N = args.weight.shape[0];
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t block = 0; block < (N + kDotRows - 1) / kDotRows; ++block) {
    s.columns(block * kDotRows, static_cast<int>(smaller(kDotRows, N - block * kDotRows)));
  }
}

void forward(const Context& context, const MatmulForward& args) {
  if (args.x.dtype == DType::f32) return run_skinny<float, float>(context, args);
  with_type_of<bf16>(args.out, [&]<class Out>() { run_skinny<bf16, Out>(context, args); });
}

Refusal refuse(const MatmulForwardProblem& p, const DeviceInfo&) {
  if (p.packed) return kNotPacked;
  if (p.batch_invariant) return kNotInvariant;
  if (p.M > kMostRows) return "more than 16 rows";
  return {};
}

std::size_t scratch(const MatmulForwardProblem& p, const DeviceInfo&) {
  return p.dtype == DType::f32 ? 0 : static_cast<std::size_t>(p.M * p.K) * sizeof(float);
}

}  // namespace
}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA

namespace warpwright::ops {
namespace this_isa = matmul::WARPWRIGHT_ISA;

WARPWRIGHT_KERNEL(MatmulForward, kCpu + "_skinny") = {.needs = kThisCpu,
                                                      .dtypes = kCpuDTypes,
                                                      .run = this_isa::forward,
                                                      .refuse = this_isa::refuse,
                                                      .workspace = this_isa::scratch};

}  // namespace warpwright::ops
