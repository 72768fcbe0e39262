// Normalization with a row in the registers of a warp, or of a block's warps together, for ops/layernorm,
// ops/rmsnorm and the operations fused with them.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/layernorm/cuda/lanes.cuh"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm::cuda {

inline constexpr int kMostThreads = 512, kMostWarps = kMostThreads / gpu::kWarp;  // of a block with one row

// The sum over the warp of a in its lower half, of b in its upper half: half as many exchanges as two sums.
__device__ inline float warp_sum_of_both(float a, float b) {
  const bool upper = threadIdx.x % gpu::kWarp >= gpu::kWarp / 2;
  const float mine = (upper ? b : a) + __shfl_xor_sync(gpu::kAllLanes, upper ? a : b, gpu::kWarp / 2);
  return gpu::warp_sum<gpu::kWarp / 2>(mine);
}
__device__ inline float2 to_every_lane(float of_half) {
  const float other = __shfl_xor_sync(gpu::kAllLanes, of_half, gpu::kWarp / 2);
  return threadIdx.x % gpu::kWarp < gpu::kWarp / 2 ? float2{of_half, other} : float2{other, of_half};
}

// Over a block each warp puts its part, and behind a barrier each thread adds up the parts of all kMostWarps:
// 0 for warps that are not there.
__device__ inline float sum_parts(const float* parts, int warps) {
  const auto four = [&](int first) {
    const float4 p = *reinterpret_cast<const float4*>(parts + first);
    return (p.x + p.y) + (p.z + p.w);
  };
  float sum = four(0);
  if (warps > 4) sum += four(4);
  if (warps > 8) sum += four(8) + four(12);
  return sum;
}
__device__ inline void put_part_of_both(float a, float b, float2* parts) {
  const float mine = warp_sum_of_both(a, b);
  if (threadIdx.x % (gpu::kWarp / 2) == 0) {
    reinterpret_cast<float*>(parts)[threadIdx.x / (gpu::kWarp / 2)] = mine;
  }
}
__device__ inline float2 sum_parts_of_both(const float2* parts, int warps) {
  float2 sum{0, 0};
  const auto add_four = [&](int first) {
    const auto* fours = reinterpret_cast<const float4*>(parts + first);
    const float4 p = fours[0], q = fours[1];
    sum.x += (p.x + p.z) + (q.x + q.z);
    sum.y += (p.y + p.w) + (q.y + q.w);
  };
  add_four(0);
  if (warps > 4) add_four(4);
  if (warps > 8) add_four(8), add_four(12);
  return sum;
}

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
  // Each thread's; `parts` has kMostWarps places, and is not touched by a single warp.
  static __device__ float sum(float value, float* parts) {
    value = gpu::warp_sum(value);
    if constexpr (!one_warp) {
      if (threadIdx.x % gpu::kWarp == 0) parts[threadIdx.x / gpu::kWarp] = value;
      __syncthreads();
      value = sum_parts(parts, static_cast<int>(blockDim.x) / gpu::kWarp);
    }
    return value;
  }
  static __device__ float2 sum_of_both(float a, float b, float2* parts) {
    if constexpr (one_warp) return to_every_lane(warp_sum_of_both(a, b));
    put_part_of_both(a, b, parts);
    __syncthreads();
    return sum_parts_of_both(parts, static_cast<int>(blockDim.x) / gpu::kWarp);
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
  const std::int32_t* rows_on_device = nullptr;  // so many of the N, where the kernel is `with_sum`

  template <bool with_sum>
  __device__ std::int64_t rows() const {
    if constexpr (with_sum) {
      if (rows_on_device) return min(N, std::int64_t{*rows_on_device});
    }
    return N;
  }
};

// A thread's part of a row: as the bits of x's dtype, unpacked anew for each pass, so that long rows have the
// registers; or as floats.
template <class X, int packs, bool packed>
struct RowPart {
  static constexpr int kLanes = gpu::kPackedLanes<X>;
  Lanes<X, kLanes> bits[packs];

  __device__ float at(int k, int j) const { return bits[k][j]; }
  __device__ void put(int k, const float (&values)[kLanes]) {
    bits[k] = Lanes<X, kLanes>::from_floats(values);
  }
  __device__ void forget(unsigned zero) {
#pragma unroll
    for (int k = 0; k < packs; ++k) bits[k].forget(zero);
  }
};
template <class X, int packs>
struct RowPart<X, packs, false> {
  static constexpr int kLanes = gpu::kPackedLanes<X>;
  float values[packs][kLanes];

  __device__ float at(int k, int j) const { return values[k][j]; }
  __device__ void put(int k, const float (&from)[kLanes]) {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[k][j] = from[j];
  }
  __device__ void forget(unsigned) {}
};

// How a forward kernel uses its registers: few packs a lane are floats, and a warp that has a row to itself
// reads the parameters beside it, so that they do not wait for the statistics.
template <class X, class P, int packs, bool one_warp, bool with_sum>
struct ForwardForm {
  static constexpr bool few = with_sum || sizeof(X) != sizeof(P);  // as for forward_shape
  // Whether only a thread's last pack can lie behind the row's end, as forward_shape sees to. Where every
  // load is conditional, they do not leave together, and take registers.
  static constexpr bool full = !few;
  static constexpr bool floats = one_warp ? !with_sum && packs <= 4 : full && packs <= kFloatPacks;
  static constexpr bool early = floats && one_warp && full;
  static constexpr int threads =
      one_warp ? kOneWarpThreads : gpu::kWarp * (packs <= kFloatPacks ? most_float_warps(packs) : kMostWarps);
  // Blocks on a multiprocessor for which there are registers without a spill.
  static constexpr int blocks() {
    if (!one_warp && with_sum) return 1;
    if (!one_warp) return packs <= kFloatPacks ? (few ? 4 : 3) : (few ? 1 : 2);
    const int registers = early ? 16 + 16 * packs : 36 + (with_sum ? 12 : floats ? 8 : 5) * packs;
    return registers > 128 ? 3 : 512 / registers;
  }
};

// A group has one row and ends with it: the hardware hands out rows as groups become free.
template <class X, class P, class O, int packs, bool one_warp, bool with_sum, bool rounded>
__global__ void __launch_bounds__(ForwardForm<X, P, packs, one_warp, with_sum>::threads,
                                  ForwardForm<X, P, packs, one_warp, with_sum>::blocks())
    forward_rows(const __grid_constant__ ForwardRows<X, P, O> a) {
  using G = Group<one_warp>;
  using Form = ForwardForm<X, P, packs, one_warp, with_sum>;
  constexpr int kLanes = gpu::kPackedLanes<X>;
  using Pack = Lanes<X, kLanes>;
  using Parameters = Lanes<P, kLanes>;
  __shared__ alignas(16) float parts[kMostWarps];
  __shared__ alignas(16) float2 parts_of_both[kMostWarps];
  const std::int64_t row = G::index();
  if (row >= a.template rows<with_sum>()) return;
  const int thread = G::thread(), threads = G::threads(), left = a.C / kLanes - thread;
  const std::int64_t first = row * a.C + thread * kLanes;
  const int step = threads * kLanes;  // from one of a thread's packs to the next
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const unsigned zero = threadIdx.z;
  const auto inside = [&](int k) { return (Form::full && k < packs - 1) || k * threads < left; };
  const auto weight_at = [&](int column) {
    return a.weight ? Parameters::load(a.weight + column) : Parameters::filled(1);
  };
  const auto bias_at = [&](int column) {
    return a.bias ? Parameters::load(a.bias + column) : Parameters::filled(0);
  };

  if (!one_warp && threadIdx.x < kMostWarps && threadIdx.x >= blockDim.x / gpu::kWarp) {
    parts[threadIdx.x] = 0;
    parts_of_both[threadIdx.x] = {0, 0};
  }

  gpu::let_next_kernel_begin();
  gpu::wait_for_kernels_before();
  RowPart<X, packs, rounded && !Form::floats> x;
  [[maybe_unused]] Parameters weights[packs], biases[packs];
  if constexpr (with_sum) {
    Pack y[packs], z[packs];
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      y[k] = z[k] = Pack::zero();
      if (k * threads >= left) continue;
      y[k] = Pack::load(a.x + first + k * step);
      z[k] = Pack::load(a.y + first + k * step);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      float values[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[j] = y[k][j];
      if (a.x_bias && k * threads < left) {
        const auto added = Pack::load(a.x_bias + thread * kLanes + k * step);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) values[j] += added[j];
      }
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[j] += z[k][j];
      x.put(k, values);
      // The statistics are those of the rounded sum, as if the steps ran one after the other.
      if constexpr (rounded) {
        if (k * threads < left) x.bits[k].store(a.sum + first + k * step);
      }
    }
  } else {
    Pack bits[packs];
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      bits[k] = Pack::zero();
      if (inside(k)) bits[k] = Pack::load(a.x + first + k * step);
      if constexpr (!Form::floats) x.bits[k] = bits[k];
    }
    if constexpr (Form::early) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (!inside(k)) continue;
        weights[k] = weight_at(thread * kLanes + k * step);
        biases[k] = bias_at(thread * kLanes + k * step);
      }
    }
    if constexpr (Form::floats) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) x.values[k][j] = bits[k][j];
      }
    }
  }

  // In two passes, of which the second also finds what rounding left of Σ(x − mean): where that is more than
  // half an ulp of the deviation, as in a constant row, it is put right. Nothing is to be contracted: every
  // kernel made from this one is to give the same bits.
  float mean = 0;
  if (a.centered) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      float part = 0;  // so that the packs' additions do not wait for each other
#pragma unroll
      for (int j = 0; j < kLanes; ++j) part += x.at(k, j);
      sum += part;
    }
    mean = __fmul_rn(G::sum(sum, parts), inverse_C);
    x.forget(zero);
  }
  float2 second{0, 0};  // Σ(x − mean), Σ(x − mean)²
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    float2 part{0, 0};
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float centered = x.at(k, j) - mean;
      part.x += centered;
      part.y = fmaf(centered, centered, part.y);
    }
    second.x += inside(k) ? part.x : 0.0f;
    second.y += inside(k) ? part.y : 0.0f;
  }
  second = G::sum_of_both(second.x, second.y, parts_of_both);
  x.forget(zero);
  const float squares = __fmul_rn(second.y, inverse_C);
  float rest = a.centered ? __fmul_rn(second.x, inverse_C) : 0.0f;
  if (__fmul_rn(rest, rest) <= 0x1p-48f * squares) rest = 0;
  const float variance = fmaf(-rest, rest, squares);
  const float rstd = rsqrtf(__fadd_rn(variance < 0 ? 0.0f : variance, a.eps));
  mean = __fadd_rn(mean, rest);

#pragma unroll
  for (int k = 0; k < packs; ++k) {
    if (!inside(k)) continue;
    const int column = thread * kLanes + k * step;
    Parameters w, b;
    if constexpr (Form::early) {
      w = weights[k];
      b = biases[k];
    } else {
      w = weight_at(column);
      b = bias_at(column);
    }
    float values[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[j] = fmaf((x.at(k, j) - mean) * rstd, w[j], b[j]);
    Lanes<O, kLanes>::from_floats(values).store(a.out + first + k * step);
  }
  if (thread == 0 && a.mean) a.mean[row] = mean;
  if (thread == 0 && a.rstd) a.rstd[row] = rstd;
}

template <bool with_sum, bool rounded, int packs, bool one_warp, class X, class P, class O>
void launch_forward_as(const ForwardRows<X, P, O>& a, int warps, const Context& context, const char* name) {
  const int threads = one_warp ? kOneWarpThreads : warps * gpu::kWarp;
  const std::int64_t rows = one_warp ? kOneWarpThreads / gpu::kWarp : 1;
  gpu::launch_overlapped(context, forward_rows<X, P, O, packs, one_warp, with_sum, rounded>,
                         static_cast<unsigned>((a.N + rows - 1) / rows), threads, 0, name, a);
}

// Calls f(packs, one_warp), both as constants, for a shape that forward_shape gives; `few` as there.
template <bool few, class F>
void visit_forward_shape(RowShape shape, const F& f) {
  const auto visit = [&]<int... packs>(auto one_warp, std::integer_sequence<int, packs...>) {
    ((shape.packs == packs ? f(std::integral_constant<int, packs>(), one_warp) : void()), ...);
  };
  if constexpr (few) {
    shape.warps > 1 ? visit(std::false_type(), std::integer_sequence<int, 4, 8>())
                    : visit(std::true_type(), std::integer_sequence<int, 1, 2, 3, 4, 6>());
  } else {
    shape.warps > 1 ? visit(std::false_type(), std::integer_sequence<int, 4, 5, 6, 8>())
                    : visit(std::true_type(), std::integer_sequence<int, 1, 2, 3, 4, 5, 6, 7>());
  }
}

// For a shape that forward_shape gives.
template <bool with_sum, bool rounded, class X, class P, class O>
void launch_forward(const ForwardRows<X, P, O>& a, RowShape shape, const Context& context, const char* name) {
  if (a.N == 0) return;
  const auto launch = [&](auto packs, auto one_warp) {
    launch_forward_as<with_sum, rounded, packs, one_warp>(a, shape.warps, context, name);
  };
  visit_forward_shape<with_sum || sizeof(X) != sizeof(P)>(shape, launch);
}

}  // namespace warpwright::ops::layernorm::cuda
