// Layer normalization with a row in the registers of a warp, or of a block's warps together, for
// ops/layernorm and ops/residual_layernorm.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
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

// A thread's packs of a row, `threads` packs apart from the address on, as far as the row's `left` packs from
// there on reach; those behind its end are 0.
template <bool streaming, class T, int packs>
__device__ void load_packs(gpu::Packed<T> (&to)[packs], const T* from, int left, int threads) {
  using Pack = gpu::Packed<T>;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const T* p = from + k * threads * Pack::kLanes;
    to[k] = Pack::zero();
    if (k * threads < left) to[k] = streaming ? Pack::load_streaming(p) : Pack::load(p);
  }
}

template <class T>
struct ForwardRows {
  const T *x, *y;  // y is added to x where there is a residual
  const T *weight, *bias;
  T *residual, *out;
  float *mean, *rstd;  // or null
  std::int64_t N;
  int C;
  float eps;
};

// Persistent: a group takes every count-th row, keeps weight and bias in registers, and loads the next row
// before it computes the present one.
template <class T, int packs, bool one_warp, bool with_residual>
__global__ void __launch_bounds__(one_warp ? kOneWarpThreads : kMostThreads, one_warp ? 8 - packs : 1)
    forward_rows(ForwardRows<T> a) {
  using G = Group<one_warp>;
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes;
  __shared__ float sums[2][kMostThreads / gpu::kWarp];
  const int thread = G::thread(), threads = G::threads(), left = a.C / kLanes - thread;
  const float inverse_C = 1.0f / static_cast<float>(a.C);

  Pack weight[packs], bias[packs], x[packs], y[packs];
  load_packs<false>(weight, a.weight + thread * kLanes, left, threads);
  load_packs<false>(bias, a.bias + thread * kLanes, left, threads);
  const auto load_row = [&](std::int64_t row) {
    if (row >= a.N) return;
    const std::int64_t first = row * a.C + thread * kLanes;
    load_packs<true>(x, a.x + first, left, threads);
    if constexpr (with_residual) load_packs<true>(y, a.y + first, left, threads);
  };
  load_row(G::index());

  for (std::int64_t row = G::index(); row < a.N; row += G::count()) {
    const std::int64_t first = row * a.C + thread * kLanes;
    float values[packs][kLanes];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      x[k].to_floats(values[k]);
      if constexpr (with_residual) {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) values[k][j] += y[k][j];
        // The statistics are those of the rounded residual, as if the two steps ran one after the other.
        const auto rounded = Pack::from_floats(values[k]);
        if (k * threads < left) rounded.store(a.residual + first + k * threads * kLanes);
        rounded.to_floats(values[k]);
      }
      float part = 0;  // so that the packs' additions do not wait for each other
#pragma unroll
      for (int j = 0; j < kLanes; ++j) part += values[k][j];
      sum += part;
    }
    load_row(row + G::count());

    // Not to be contracted with a subtraction: every kernel made from this one is to give the same bits.
    const float mean = __fmul_rn(G::sum(sum, sums[0]), inverse_C);
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
      weight[k].forget();
      bias[k].forget();
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        values[k][j] = fmaf((values[k][j] - mean) * rstd, weight[k][j], bias[k][j]);
      }
      Pack::from_floats(values[k]).store(a.out + first + k * threads * kLanes);
    }
    if (thread == 0 && a.mean) a.mean[row] = mean;
    if (thread == 0 && a.rstd) a.rstd[row] = rstd;
  }
}

template <bool with_residual, int packs, bool one_warp, class T>
void launch_forward_as(const ForwardRows<T>& a, int warps, const Context& context, const char* name) {
  const auto kernel = forward_rows<T, packs, one_warp, with_residual>;
  const int threads = one_warp ? kOneWarpThreads : warps * gpu::kWarp;
  const int rows = one_warp ? kOneWarpThreads / gpu::kWarp : 1;
  const unsigned blocks =
      gpu::persistent_blocks(kernel, threads, 0, (a.N + rows - 1) / rows, context.device());
  kernel<<<blocks, threads, 0, context.stream().get()>>>(a);
  warpwright::cuda::check_launch(name);
}

// For a shape that forward_shape gives.
template <bool with_residual, class T>
void launch_forward(const ForwardRows<T>& a, RowShape shape, const Context& context, const char* name) {
  if (a.N == 0) return;
  const bool one_warp = shape.warps == 1;
  switch (shape.packs) {
    case 1:
      return launch_forward_as<with_residual, 1, true>(a, 1, context, name);
    case 2:
      return launch_forward_as<with_residual, 2, true>(a, 1, context, name);
    case 3:
      return one_warp ? launch_forward_as<with_residual, 3, true>(a, 1, context, name)
                      : launch_forward_as<with_residual, 3, false>(a, shape.warps, context, name);
    default:
      return one_warp ? launch_forward_as<with_residual, 4, true>(a, 1, context, name)
                      : launch_forward_as<with_residual, 4, false>(a, shape.warps, context, name);
  }
}

}  // namespace warpwright::ops::layernorm::cuda
