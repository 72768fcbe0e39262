// The backward of a normalization with a row in the hands of a warp, or of a block's warps together. Rows
// arrive in shared memory, one ahead, since dweight and dbias take the registers. Memory-bound: 3 passes of
// the tensor (dout, x or out, dx; 4 where something is added), and for each block a row of 2·C floats, its
// part of dweight and dbias, which column_sums.cuh adds up.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "ops/cuda/launch.cuh"
#include "ops/layernorm/cuda/column_sums.cuh"
#include "ops/layernorm/cuda/lost_columns.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops::layernorm::cuda {

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct BackwardRows {
  const O *dout, *out;  // out: in place of x
  const X *x, *addend;  // what dx is added to, or null; may be dx
  const P *weight, *bias;
  const float *mean, *rstd;
  X* dx;
  float* parts;  // (blocks, 2, C)
  KeptColumns<X> kept;
  LostRule<float> lost;
  std::int64_t N;
  int C;
  bool centered, streaming;
};

// The sums of both over a row's threads. `shared` may be used again behind the next barrier.
template <bool one_warp>
__device__ void sum_both(float& a, float& b, float2* shared) {
  a = gpu::warp_sum(a);
  b = gpu::warp_sum(b);
  if constexpr (!one_warp) {
    const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
              warps = static_cast<int>(blockDim.x) / gpu::kWarp;
    if (lane == 0) shared[threadIdx.x / gpu::kWarp] = {a, b};
    __syncthreads();
    const float2 part = lane < warps ? shared[lane] : float2{0, 0};
    a = gpu::warp_sum(part.x);
    b = gpu::warp_sum(part.y);
  }
}

template <int N>
__device__ void add_floats(float (&to)[N], const float* p) {
  float values[N];
  gpu::load_floats(p, values);
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] += values[j];
}

// Where a thread's packs arrive: while one row is computed, the next is copied. Each thread copies and reads
// places of its own, so that waiting for its own copies is all that is needed. The statistics come the same
// way, to each thread: in registers they would be waited for where a register is short.
// A pack is kDout + kX (+ 1 with an addend) units of 16 bytes.
template <class X, class Y, class O, int packs, bool one_warp, int count = kBackwardStages>
struct Stages {
  static constexpr int kLanes = gpu::kPackedLanes<X>;
  static constexpr int kDout = Lanes<O, kLanes>::kUnits, kX = Lanes<Y, kLanes>::kUnits;

  uint4* mine;        // of (count, packs, units, threads)
  float* statistics;  // of (count, 2, threads)
  int units;

  static __device__ int threads() { return one_warp ? kOneWarpThreads : static_cast<int>(blockDim.x); }
  __device__ Stages(uint4* shared, bool addend)
      : mine(shared + threadIdx.x),
        statistics(reinterpret_cast<float*>(shared + count * packs * (kDout + kX + addend) * threads()) +
                   threadIdx.x),
        units(kDout + kX + addend) {}
  __device__ uint4* place(int stage, int k, int unit) const {
    return mine + ((stage * packs + k) * units + unit) * threads();
  }
  template <class T>
  __device__ void copy(int stage, int k, int unit, const T* from) const {
#pragma unroll
    for (int i = 0; i < Lanes<T, kLanes>::kUnits; ++i) {
      __pipeline_memcpy_async(place(stage, k, unit + i), from + i * Lanes<T, kLanes>::kEach, 16);
    }
  }
  template <class T>
  __device__ Lanes<T, kLanes> at(int stage, int k, int unit) const {
    Lanes<T, kLanes> lanes;
#pragma unroll
    for (int i = 0; i < Lanes<T, kLanes>::kUnits; ++i) {
      lanes.units[i] = *reinterpret_cast<const typename Lanes<T, kLanes>::Unit*>(place(stage, k, unit + i));
    }
    return lanes;
  }
  __device__ float& statistic(int stage, int which) const {
    return statistics[(stage * 2 + which) * threads()];
  }
};

// A float for each of a thread's columns, in shared memory, in units of 16 bytes that lie `threads` apart.
struct ColumnFloats {
  float4* mine;
  int threads;

  template <int kLanes>
  __device__ void get(int k, float (&to)[kLanes]) const {
#pragma unroll
    for (int i = 0; i < kLanes / 4; ++i) {
      const float4 four = mine[(k * (kLanes / 4) + i) * threads];
      to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
  }
  template <int kLanes>
  __device__ void put(int k, const float (&from)[kLanes]) const {
#pragma unroll
    for (int i = 0; i < kLanes / 4; ++i) {
      mine[(k * (kLanes / 4) + i) * threads] = {from[4 * i], from[4 * i + 1], from[4 * i + 2],
                                                from[4 * i + 3]};
    }
  }
};

// Persistent, with a grid that is a function of problem and device alone: a thread adds up dweight and dbias
// of its columns over its group's rows in registers, then the groups of a block add theirs in order.
// From the output, t = out − bias stands in for x̂ = t/weight: Σ g·x̂ = Σ dout·t, dweight = Σ dout·t / weight.
// Where a column is lost and kept, x̂ (rounded to out's dtype, as all of out is) takes the place of out, its
// bias is 0 and its inverse weight 1 (put_kept_sums computes its dweight anew); where it is lost and not
// kept, its inverse weight is NaN.
template <class X, class P, class O, int packs, bool one_warp, bool from_out>
__global__ void __launch_bounds__(one_warp ? kOneWarpThreads : kMostThreads,
                                  one_warp ? kBackwardWarps* gpu::kWarp / kOneWarpThreads : 1)
    backward_rows(const __grid_constant__ BackwardRows<X, P, O> a) {
  using G = Group<one_warp>;
  using Y = std::conditional_t<from_out, O, X>;
  using Stage = Stages<X, Y, O, packs, one_warp>;
  constexpr int kLanes = gpu::kPackedLanes<X>;
  __shared__ float2 sums[2][kMostThreads / gpu::kWarp];
  extern __shared__ uint4 shared[];  // the stages, then the inverse; at the end (2, C) floats
  const Stage stages(shared, a.addend != nullptr);
  const int thread = G::thread(), threads = G::threads(), left = a.C / kLanes - thread,
            column = thread * kLanes;
  const float inverse_C = 1.0f / static_cast<float>(a.C);

  Parameters<X, P, packs> weight(a.weight ? a.weight + column : nullptr, 1, left, threads);
  using Bias = Parameters<X, P, from_out ? packs : 1>;
  Bias bias(from_out && a.bias ? a.bias + column : nullptr, 0, left, threads);
  float dweight[packs][kLanes] = {}, dbias[packs][kLanes] = {};
  ColumnFloats inverse{}, wide_bias{};
  unsigned kept = 0;  // a bit for each lane of each pack
  if constexpr (from_out) {
    auto* behind = reinterpret_cast<float4*>(stages.statistics - threadIdx.x + 4 * Stage::threads());
    inverse = {behind + thread, threads};
    wide_bias = {behind + packs * (kLanes / 4) * threads + thread, threads};
    const int places = a.kept.places();
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto w = weight.at(k, threads);
      const auto b = bias.at(k, threads);
      float inverses[kLanes], shifts[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        inverses[j] = 1.0f / w[j];
        shifts[j] = b[j];
        if (!a.lost(w[j], b[j])) continue;
        const bool has_place = a.kept.place(column + k * threads * kLanes + j, places) >= 0;
        inverses[j] = has_place ? 1.0f : __int_as_float(0x7fffffff);
        if (!has_place) continue;
        shifts[j] = 0;
        kept |= 1u << (k * kLanes + j);
      }
      bias.hold(k, shifts);
      if (!one_warp || threadIdx.x < gpu::kWarp) {
        inverse.put(k, inverses);
        if constexpr (!Bias::kHeld) wide_bias.put(k, shifts);
      }
    }
    if constexpr (one_warp) __syncthreads();
  }
  const auto bias_of = [&](int k, float(&to)[kLanes]) {
    if constexpr (Bias::kHeld) {
      const auto b = bias.at(k, threads);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) to[j] = b[j];
    } else {
      wide_bias.get(k, to);
    }
  };
  // Puts x̂ of the kept columns in the place of out. Returns what Σ dout·t then lacks of Σ g·x̂.
  const auto patch = [&](std::int64_t row, int stage, float mean, float rstd) {
    constexpr int kEach = Lanes<O, kLanes>::kEach;
    const int places = a.kept.places();
    float lacking = 0;
    for (unsigned bits = kept; bits != 0; bits &= bits - 1) {
      const int bit = __ffs(static_cast<int>(bits)) - 1, k = bit / kLanes, j = bit % kLanes;
      const int c = column + k * threads * kLanes + j;
      const float x = gpu::to_float(a.kept.values[row * a.kept.capacity + a.kept.place(c, places)]);
      auto* y = reinterpret_cast<O*>(stages.place(stage, k, Stage::kDout + j / kEach)) + j % kEach;
      *y = gpu::from_float<O>((x - mean) * rstd);
      const O dout = reinterpret_cast<const O*>(stages.place(stage, k, j / kEach))[j % kEach];
      const float w = a.weight ? gpu::to_float(a.weight[c]) : 1.0f;
      lacking += gpu::to_float(dout) * gpu::to_float(*y) * (w - 1);
    }
    asm volatile("" ::: "memory");  // the row is read in other units than it was patched in
    return lacking;
  };

  for (int i = 0; i < 2 * packs * stages.units; ++i) *stages.place(0, 0, i) = uint4{0, 0, 0, 0};
  const auto copy_row = [&](std::int64_t row, int stage) {
    if (row < a.N) {
      const std::int64_t first = row * a.C + column;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (k * threads >= left) continue;
        const std::int64_t from = first + k * threads * kLanes;
        stages.copy(stage, k, 0, a.dout + from);
        if constexpr (from_out) {
          stages.copy(stage, k, Stage::kDout, a.out + from);
        } else {
          stages.copy(stage, k, Stage::kDout, a.x + from);
        }
        if (a.addend) stages.copy(stage, k, Stage::kDout + Stage::kX, a.addend + from);
      }
      if (a.mean) __pipeline_memcpy_async(&stages.statistic(stage, 0), a.mean + row, sizeof(float));
      __pipeline_memcpy_async(&stages.statistic(stage, 1), a.rstd + row, sizeof(float));
    }
    __pipeline_commit();
  };
  stages.statistic(0, 0) = stages.statistic(1, 0) = 0;
  copy_row(G::index(), 0);

  int stage = 0;
  for (std::int64_t row = G::index(); row < a.N; row += G::count(), stage ^= 1) {
    copy_row(row + G::count(), stage ^ 1);
    __pipeline_wait_prior(1);
    const float mean = stages.statistic(stage, 0), rstd = stages.statistic(stage, 1);

    float mean_g = 0, mean_gx = 0;
    if constexpr (from_out) {
      if (kept != 0) mean_gx = patch(row, stage, mean, rstd);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      // Behind the row's end there is neither a weight that is read each time nor a float of the columns.
      if ((from_out || !Bias::kHeld) && k * threads >= left) continue;
      const auto dout = stages.template at<O>(stage, k, 0);
      const auto y = stages.template at<Y>(stage, k, Stage::kDout);
      const auto w = weight.at(k, threads);
      float sum_g = 0, sum_gx = 0;  // so that the packs' additions do not wait for each other
      if constexpr (from_out) {
        float b[kLanes];
        bias_of(k, b);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], t = y[j] - b[j];
          sum_g = fmaf(d, w[j], sum_g);
          sum_gx = fmaf(d, t, sum_gx);
          dweight[k][j] = fmaf(d, t, dweight[k][j]);
          dbias[k][j] += d;
        }
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], normalized = (y[j] - mean) * rstd, g = d * w[j];
          sum_g += g;
          sum_gx = fmaf(g, normalized, sum_gx);
          dweight[k][j] = fmaf(d, normalized, dweight[k][j]);
          dbias[k][j] += d;
        }
      }
      mean_g += sum_g;
      mean_gx += sum_gx;
    }
    sum_both<one_warp>(mean_g, mean_gx, sums[stage]);
    mean_g = a.centered ? mean_g * inverse_C : 0.0f;
    mean_gx *= inverse_C;
    // No thread reads another's places: this makes the compiler read the row again, not keep it in registers.
    if constexpr (one_warp) __syncwarp();
    const std::int64_t first = row * a.C + column;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto dout = stages.template at<O>(stage, k, 0);
      const auto y = stages.template at<Y>(stage, k, Stage::kDout);
      const auto w = weight.at(k, threads);
      float gradient[kLanes];
      if constexpr (from_out) {
        float b[kLanes], inverses[kLanes];
        bias_of(k, b);
        inverse.get(k, inverses);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float normalized = (y[j] - b[j]) * inverses[j];
          gradient[j] = rstd * (fmaf(dout[j], w[j], -mean_g) - normalized * mean_gx);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float normalized = (y[j] - mean) * rstd;
          gradient[j] = rstd * (fmaf(dout[j], w[j], -mean_g) - normalized * mean_gx);
        }
      }
      if (a.addend) {
        const auto addend = stages.template at<X>(stage, k, Stage::kDout + Stage::kX);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) gradient[j] += addend[j];
      }
      Lanes<X, kLanes>::from_floats(gradient).store(a.dx + first + k * threads * kLanes, a.streaming);
    }
  }

  __pipeline_wait_prior(0);
  if constexpr (from_out) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      float inverses[kLanes];
      inverse.get(k, inverses);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) dweight[k][j] *= inverses[j];
    }
  }
  float* part = a.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * a.C;
  auto* block_part = reinterpret_cast<float*>(shared);
  for (int group = 0; group < (one_warp ? kOneWarpThreads / gpu::kWarp : 1); ++group) {
    if constexpr (one_warp) __syncthreads();
    if (one_warp && static_cast<int>(threadIdx.x) / gpu::kWarp != group) continue;
    float* to = one_warp ? block_part : part;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      float *w = to + (thread + k * threads) * kLanes, *b = w + a.C;
      if (one_warp && group > 0) {
        add_floats(dweight[k], w);
        add_floats(dbias[k], b);
      }
      gpu::store_floats(w, dweight[k]);
      gpu::store_floats(b, dbias[k]);
    }
  }
  if constexpr (one_warp) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < 2 * a.C; c += kOneWarpThreads * 4) {
      gpu::Packed<float>::load(block_part + c).store(part + c);
    }
  }
}

template <int packs, bool one_warp, bool from_out, class X, class P, class O>
void launch_backward_as(const BackwardRows<X, P, O>& a, RowShape shape, int blocks, std::size_t shared,
                        cudaStream_t stream) {
  const int threads = one_warp ? kOneWarpThreads : shape.warps * gpu::kWarp;
  const auto kernel = backward_rows<X, P, O, packs, one_warp, from_out>;
  gpu::allow_shared(kernel, shared);
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(a);
  warpwright::cuda::check_launch("norm backward cuda.warp_row");
}

template <bool from_out, class X, class P, class O>
void launch_backward(const BackwardRows<X, P, O>& a, RowShape shape, int blocks, std::size_t shared,
                     cudaStream_t stream) {
  const bool one_warp = shape.warps == 1;
  if constexpr (sizeof(X) != sizeof(P)) {
    return one_warp ? launch_backward_as<3, true, from_out>(a, shape, blocks, shared, stream)
                    : launch_backward_as<3, false, from_out>(a, shape, blocks, shared, stream);
  } else {
    switch (shape.packs) {
      case 1:
        return launch_backward_as<1, true, from_out>(a, shape, blocks, shared, stream);
      case 2:
        return one_warp ? launch_backward_as<2, true, from_out>(a, shape, blocks, shared, stream)
                        : launch_backward_as<2, false, from_out>(a, shape, blocks, shared, stream);
      case 3:
        return one_warp ? launch_backward_as<3, true, from_out>(a, shape, blocks, shared, stream)
                        : launch_backward_as<3, false, from_out>(a, shape, blocks, shared, stream);
      default:
        return launch_backward_as<4, false, from_out>(a, shape, blocks, shared, stream);
    }
  }
}

}  // namespace warpwright::ops::layernorm::cuda
