// Embedding and layer normalization on a GPU, a warp for each row.
//   warp_row   the sum stays in registers: three table rows are read once, 16 bytes at a time, out is written
//   once warp_loop  any row: the sum is taken anew for each of the two passes of the statistics and for out,
//   from the caches
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding_layernorm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding_layernorm::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / gpu::kWarp;

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

  bool aligned() const { return gpu::aligned16(word, position, type, weight, bias, out); }
};

// What a warp adds up: null type where there is none.
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

// The warp's row, or −1.
template <class T>
__device__ int row_of_warp(const Arguments<T>& a) {
  gpu::let_next_kernel_begin();
  const int n = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / gpu::kWarp;
  return n < (a.rows ? min(a.N, __ldg(a.rows)) : a.N) ? n : -1;
}

template <class T, int packs>
__global__ void __launch_bounds__(kThreads) warp_rows(const Arguments<T> a) {
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes, kStep = gpu::kWarp * kLanes;
  const int n = row_of_warp(a);
  if (n < 0) return;
  const Row<T> row(a, n);
  const int first = static_cast<int>(threadIdx.x) % gpu::kWarp * kLanes;
  float values[packs][kLanes];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int c = first + k * kStep;
    const bool exists = c < a.C;
    const Pack word = exists ? Pack::load(row.word + c) : Pack::zero();
    const Pack position = exists ? Pack::load(row.position + c) : Pack::zero();
    const Pack type = exists && row.type ? Pack::load(row.type + c) : Pack::zero();
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      values[k][j] = word[j] + position[j] + type[j];
      sum += values[k][j];
    }
  }
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const float mean = gpu::warp_sum(sum) * inverse_C;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float centered = first + k * kStep < a.C ? values[k][j] - mean : 0.0f;
      squares = fmaf(centered, centered, squares);
    }
  }
  const float rstd = rsqrtf(fmaf(gpu::warp_sum(squares), inverse_C, a.eps));
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int c = first + k * kStep;
    if (c >= a.C) continue;
    const Pack weight = Pack::load(a.weight + c), bias = Pack::load(a.bias + c);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[k][j] = fmaf((values[k][j] - mean) * rstd, weight[j], bias[j]);
    Pack::from_floats(values[k]).store(row.out + c);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) warp_loops(const Arguments<T> a) {
  const int n = row_of_warp(a);
  if (n < 0) return;
  const Row<T> row(a, n);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const auto value = [&](int c) {
    const float sum = gpu::to_float(row.word[c]) + gpu::to_float(row.position[c]);
    return row.type ? sum + gpu::to_float(row.type[c]) : sum;
  };
  float sum = 0, squares = 0;
  for (int c = lane; c < a.C; c += gpu::kWarp) sum += value(c);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const float mean = gpu::warp_sum(sum) * inverse_C;
  for (int c = lane; c < a.C; c += gpu::kWarp) {
    const float centered = value(c) - mean;
    squares = fmaf(centered, centered, squares);
  }
  const float rstd = rsqrtf(fmaf(gpu::warp_sum(squares), inverse_C, a.eps));
  for (int c = lane; c < a.C; c += gpu::kWarp) {
    row.out[c] = gpu::from_float<T>(
        fmaf((value(c) - mean) * rstd, gpu::to_float(a.weight[c]), gpu::to_float(a.bias[c])));
  }
}

template <class Kernel, class T>
void launch(Kernel* kernel, const Context& context, const Arguments<T>& a, const char* name) {
  if (a.N == 0) return;
  kernel<<<static_cast<unsigned>((a.N + kRows - 1) / kRows), kThreads, 0, context.stream().get()>>>(a);
  warpwright::cuda::check_launch(name);
}

template <class T>
auto warp_rows_of(int packs) {
  switch (packs) {
    case 1:
      return warp_rows<T, 1>;
    case 2:
      return warp_rows<T, 2>;
    case 3:
      return warp_rows<T, 3>;
    case 4:
      return warp_rows<T, 4>;
    default:
      return packs <= 6 ? warp_rows<T, 6> : warp_rows<T, 8>;
  }
}

}  // namespace

void warp_row_forward(const Context& context, const EmbeddingLayerNormForward& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Arguments<T> a(args);
    if (!a.aligned()) return warp_loop_forward(context, args);
    launch(warp_rows_of<T>(warp_row_packs(a.C, args.out.dtype)), context, a,
           "embedding_layernorm.forward cuda.warp_row");
  });
}

void warp_loop_forward(const Context& context, const EmbeddingLayerNormForward& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(warp_loops<T>, context, Arguments<T>(args), "embedding_layernorm.forward cuda.warp_loop");
  });
}

}  // namespace warpwright::ops::embedding_layernorm::cuda
