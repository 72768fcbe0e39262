// Normalization with a row in the registers of a warp, or of a block's warps together, for ops/layernorm,
// ops/rmsnorm and the operations fused with them.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/layernorm/cuda/lanes.cuh"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm::cuda {

inline constexpr int kMostThreads = 512;  // of a block that shares a row

// The threads that share a row: a warp of the block, or the whole block.
template <bool one_warp>
struct Group {
  static __device__ int thread() {
    return one_warp ? static_cast<int>(threadIdx.x) % gpu::kWarp : static_cast<int>(threadIdx.x);
  }
  static __device__ int threads() { return one_warp ? gpu::kWarp : static_cast<int>(blockDim.x); }
  static __device__ std::int64_t index() {
    const std::int64_t block = blockIdx.x;
    return one_warp ? block * (blockDim.x / gpu::kWarp) + threadIdx.x / gpu::kWarp : block;
  }
  static __device__ std::int64_t count() {
    const std::int64_t blocks = gridDim.x;
    return one_warp ? blocks * (blockDim.x / gpu::kWarp) : blocks;
  }
  // A single warp does not touch `shared`.
  static __device__ float sum(float value, float* shared) {
    if constexpr (one_warp) {
      return gpu::warp_sum(value);
    } else {
      return gpu::block_sum(value, shared);
    }
  }
};

// dtypes of x (and what is added to it), of the parameters and of out.
template <class X, class P, class O>
struct ForwardRows {
  const X* x;
  const X *x_bias, *y;     // added to x, where the kernel is `with_sum`; x_bias (C) or null
  const P *weight, *bias;  // or null
  X* sum;                  // or null: then the sum is not rounded
  O* out;
  float *mean, *rstd;  // or null
  std::int64_t N;
  int C;
  float eps;
  bool centered;
  bool streaming;                                // what is written will not be found in the caches anyway
  const std::int32_t* rows_on_device = nullptr;  // so many of the N, where the kernel is `with_sum`

  template <bool with_sum>
  __device__ std::int64_t rows() const {
    if constexpr (with_sum) {
      if (rows_on_device) return min(N, std::int64_t{*rows_on_device});
    }
    return N;
  }
};

// Blocks of one-warp rows on a multiprocessor: as many as there are registers for without a spill. A second
// row under way takes those of one block.
constexpr int warp_blocks(int packs, bool with_sum) {
  return 8 - packs - (with_sum && packs >= 3 ? 1 : 0);
}

// Persistent: a group takes every count-th row, keeps weight and bias in registers, and loads the next row
// before it computes the present one.
template <class X, class P, class O, int packs, bool one_warp, bool with_sum>
__global__ void __launch_bounds__(one_warp ? kOneWarpThreads : kMostThreads,
                                  one_warp ? warp_blocks(packs, with_sum) : 1)
    forward_rows(const __grid_constant__ ForwardRows<X, P, O> a) {
  using G = Group<one_warp>;
  constexpr int kLanes = gpu::kPackedLanes<X>;
  using Pack = Lanes<X, kLanes>;
  __shared__ float sums[2][kMostThreads / gpu::kWarp];
  const int thread = G::thread(), threads = G::threads(), left = a.C / kLanes - thread;
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const std::int64_t rows = a.template rows<with_sum>();

  const int column = thread * kLanes;
  Parameters<X, P, packs> weight(a.weight ? a.weight + column : nullptr, 1, left, threads);
  Parameters<X, P, packs> bias(a.bias ? a.bias + column : nullptr, 0, left, threads);
  Pack x[packs], y[with_sum ? packs : 1];
  const auto load_row = [&](std::int64_t row) {
    if (row >= rows) return;
    const std::int64_t first = row * a.C + column;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const std::int64_t from = first + k * threads * kLanes;
      x[k] = Pack::zero();
      if constexpr (with_sum) y[k] = Pack::zero();
      if (k * threads >= left) continue;
      x[k] = Pack::load_streaming(a.x + from);
      if constexpr (with_sum) y[k] = Pack::load_streaming(a.y + from);
    }
  };
  load_row(G::index());

  for (std::int64_t row = G::index(); row < rows; row += G::count()) {
    const std::int64_t first = row * a.C + column;
    float values[packs][kLanes];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[k][j] = x[k][j];
      if constexpr (with_sum) {
        if (a.x_bias && k * threads < left) {  // from the first-level cache: there are no registers for it
          const auto added = Pack::load(a.x_bias + column + k * threads * kLanes);
#pragma unroll
          for (int j = 0; j < kLanes; ++j) values[k][j] += added[j];
        }
#pragma unroll
        for (int j = 0; j < kLanes; ++j) values[k][j] += y[k][j];
        // The statistics are those of the rounded sum, as if the steps ran one after the other.
        if (a.sum) {
          const auto rounded = Pack::from_floats(values[k]);
          if (k * threads < left) rounded.store(a.sum + first + k * threads * kLanes, a.streaming);
#pragma unroll
          for (int j = 0; j < kLanes; ++j) values[k][j] = rounded[j];
        }
      }
      float part = 0;  // so that the packs' additions do not wait for each other
#pragma unroll
      for (int j = 0; j < kLanes; ++j) part += values[k][j];
      sum += part;
    }
    load_row(row + G::count());

    // Not to be contracted with a subtraction: every kernel made from this one is to give the same bits.
    const float mean = a.centered ? __fmul_rn(G::sum(sum, sums[0]), inverse_C) : 0.0f;
    if constexpr (!one_warp) {
      if (!a.centered) __syncthreads();  // before sums[1] is written again
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      float part = 0;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float centered = values[k][j] - mean;
        part = fmaf(centered, centered, part);
      }
      squares += k * threads < left ? part : 0.0f;
    }
    const float rstd = rsqrtf(fmaf(G::sum(squares, sums[1]), inverse_C, a.eps));
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto w = weight.at(k, threads);
      const auto b = bias.at(k, threads);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[k][j] = fmaf((values[k][j] - mean) * rstd, w[j], b[j]);
      Lanes<O, kLanes>::from_floats(values[k]).store(a.out + first + k * threads * kLanes, a.streaming);
    }
    if (thread == 0 && a.mean) a.mean[row] = mean;
    if (thread == 0 && a.rstd) a.rstd[row] = rstd;
  }
}

template <bool with_sum, int packs, bool one_warp, class X, class P, class O>
void launch_forward_as(const ForwardRows<X, P, O>& a, int warps, const Context& context, const char* name) {
  const auto kernel = forward_rows<X, P, O, packs, one_warp, with_sum>;
  const int threads = one_warp ? kOneWarpThreads : warps * gpu::kWarp;
  const int rows = one_warp ? kOneWarpThreads / gpu::kWarp : 1;
  const unsigned blocks =
      gpu::persistent_blocks(kernel, threads, 0, (a.N + rows - 1) / rows, context.device());
  kernel<<<blocks, threads, 0, context.stream().get()>>>(a);
  warpwright::cuda::check_launch(name);
}

// For a shape that forward_shape gives. fp32 parameters beside 16 bits have two shapes: they are few kernels,
// and what lanes are idle costs less than what they read.
template <bool with_sum, class X, class P, class O>
void launch_forward(const ForwardRows<X, P, O>& a, RowShape shape, const Context& context, const char* name) {
  if (a.N == 0) return;
  const bool one_warp = shape.warps == 1;
  if constexpr (sizeof(X) != sizeof(P)) {
    return one_warp ? launch_forward_as<with_sum, 3, true>(a, 1, context, name)
                    : launch_forward_as<with_sum, 4, false>(a, shape.warps, context, name);
  } else {
    switch (shape.packs) {
      case 1:
        return launch_forward_as<with_sum, 1, true>(a, 1, context, name);
      case 2:
        return one_warp ? launch_forward_as<with_sum, 2, true>(a, 1, context, name)
                        : launch_forward_as<with_sum, 2, false>(a, shape.warps, context, name);
      case 3:
        return one_warp ? launch_forward_as<with_sum, 3, true>(a, 1, context, name)
                        : launch_forward_as<with_sum, 3, false>(a, shape.warps, context, name);
      default:
        return one_warp ? launch_forward_as<with_sum, 4, true>(a, 1, context, name)
                        : launch_forward_as<with_sum, 4, false>(a, shape.warps, context, name);
    }
  }
}

}  // namespace warpwright::ops::layernorm::cuda
