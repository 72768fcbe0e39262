// Arguments and launch of the kernels that assign one warp to each row.
#pragma once

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding_layernorm/embedding_layernorm.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding_layernorm {

inline constexpr int kThreads = 128, kRows = kThreads / gpu::kWarp;

template <class T>
struct Arguments {
  const std::int32_t *tokens, *positions, *types, *rows;  // types and rows may be null
  const T *word, *position, *type, *weight, *bias;
  T* out;
  int N, C;
  float eps;

  explicit Arguments(const EmbeddingLayerNormForward& a)
      : tokens(a.tokens.as<std::int32_t>()),
        positions(a.positions.as<std::int32_t>()),
        types(a.types.as<std::int32_t>()),
        rows(a.rows.as<std::int32_t>()),
        word(static_cast<const T*>(a.word.data)),
        position(static_cast<const T*>(a.position.data)),
        type(static_cast<const T*>(a.type.data)),
        weight(static_cast<const T*>(a.weight.data)),
        bias(static_cast<const T*>(a.bias.data)),
        out(static_cast<T*>(a.out.data)),
        N(static_cast<int>(a.out.shape[0])),
        C(static_cast<int>(a.out.shape[1])),
        eps(a.eps) {}
};

// The table rows that a warp adds. type is null if there is none.
template <class T>
struct Row {
  const T *word, *position, *type;
  T* out;

  __device__ Row(const Arguments<T>& a, int n)
      : word(a.word + static_cast<std::int64_t>(a.tokens[n]) * a.C),
        position(a.position + static_cast<std::int64_t>(a.positions[n]) * a.C),
        type(a.types ? a.type + static_cast<std::int64_t>(a.types[n]) * a.C : nullptr),
        out(a.out + static_cast<std::int64_t>(n) * a.C) {}
};

// Returns the warp's row, or −1 if it has none.
template <class T>
__device__ int row_of_warp(const Arguments<T>& a) {
  gpu::let_next_kernel_begin();
  const int n = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / gpu::kWarp;
  return n < (a.rows ? min(a.N, __ldg(a.rows)) : a.N) ? n : -1;
}

template <class Kernel, class T>
void launch(Kernel* kernel, const Context& context, const Arguments<T>& a, const char* name) {
  if (a.N == 0) return;
  kernel<<<static_cast<unsigned>((a.N + kRows - 1) / kRows), kThreads, 0, context.stream().get()>>>(a);
  warpwright::cuda::check_launch(name);
}

}  // namespace warpwright::ops::embedding_layernorm
