// Normalization with a row in the registers of a warp, or of a block's warps together, for ops/layernorm,
// ops/rmsnorm and the operations fused with them.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/layernorm/cuda/lanes.cuh"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm::cuda {

inline constexpr int kMostBlocksOfMultiprocessor = 32;
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

// Over a block each warp puts its parts, and behind a barrier each thread adds up those of all kMostWarps: 0
// for warps that are not there.
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
  bool centered, streaming;
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

// A forward kernel's use of its registers: few packs a lane are floats, and a warp that has a short row to
// itself reads the parameters beside it, so that they do not wait for the statistics.
template <class X, class P, int packs, bool one_warp, bool with_sum>
struct ForwardForm {
  static constexpr bool few = with_sum || sizeof(X) != sizeof(P);  // as for forward_shape
  static constexpr bool floats = one_warp ? !with_sum && packs <= 3 : !few && packs <= 4;
  static constexpr bool early = one_warp && !few && packs <= 4;
  // A warp's row is a block of its own where it is long enough for the GPU to start as many blocks: warps of
  // one block wait for the last of them before another takes their place.
  static constexpr bool alone = packs >= (with_sum ? 4 : 3);
  static constexpr int warp_threads = alone ? gpu::kWarp : kOneWarpThreads;
  static constexpr int threads =
      one_warp ? warp_threads : gpu::kWarp * (packs <= kFloatPacks ? most_float_warps(packs) : kMostWarps);
  // Blocks on a multiprocessor for which there are registers without a spill.
  static constexpr int blocks() {
    if (!one_warp && with_sum) return 1;
    if (!one_warp) return packs <= kFloatPacks ? (few ? 4 : 3) : (few ? 1 : 2);
    const int registers = early ? 16 + (floats ? 16 : 14) * packs
                                : 36 + (with_sum ? 12
                                        : floats ? 8
                                                 : 5) *
                                           packs;
    const int of_four_warps = registers > 128 ? 3 : 512 / registers;
    return std::min(of_four_warps * (kOneWarpThreads / warp_threads), kMostBlocksOfMultiprocessor);
  }
};

// Which parameters there are: code that knows it is shorter.
enum class Affine { any, both, weight };
template <Affine affine>
using AffineTag = std::integral_constant<Affine, affine>;

// A warp's part of a row that a block shares: n numbers, Σ(x − shift) and Σ(x − shift)².
struct alignas(16) Moments {
  float shift, sum, squares, n;
};

// Sums of the whole row about `shift`: each lane adds the same parts in the same order. There are kMostWarps
// places: n = 0 in those of warps that are not there.
__device__ inline float2 sums_of_parts(const Moments* parts, float shift) {
  const Moments p = parts[threadIdx.x % kMostWarps];
  const float from_shift = p.shift - shift, moved = __fmul_rn(p.n, from_shift);
  const bool upper = threadIdx.x % gpu::kWarp >= gpu::kWarp / 2;
  const float mine = upper ? fmaf(from_shift, fmaf(2.0f, p.sum, moved), p.squares) : __fadd_rn(p.sum, moved);
  return to_every_lane(gpu::warp_sum<kMostWarps>(mine));
}

// A group has one row and ends with it: the hardware hands out rows as groups become free. A lane's packs
// stand at constant distances from one address, in memory and among the parameters: what bounds these kernels
// beside memory is the number of their instructions.
template <class X, class P, class O, int packs, bool one_warp, bool with_sum, bool rounded>
__global__ void __launch_bounds__(ForwardForm<X, P, packs, one_warp, with_sum>::threads,
                                  ForwardForm<X, P, packs, one_warp, with_sum>::blocks())
    forward_rows(const __grid_constant__ ForwardRows<X, P, O> a, float inverse_C, bool overlapped) {
  using Form = ForwardForm<X, P, packs, one_warp, with_sum>;
  constexpr int kLanes = gpu::kPackedLanes<X>, kStep = gpu::kWarp * kLanes;
  using Pack = Lanes<X, kLanes>;
  using Parameters = Lanes<P, kLanes>;
  __shared__ Moments parts[kMostWarps];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t row = one_warp ? std::int64_t{blockIdx.x} * (Form::warp_threads / gpu::kWarp) + warp
                                    : std::int64_t{blockIdx.x};
  if (row >= a.template rows<with_sum>()) return;
  const int warp_first = one_warp ? 0 : warp * packs * gpu::kWarp, in_row = a.C / kLanes;
  const int column = (warp_first + lane) * kLanes, left = in_row - warp_first - lane;
  const std::int64_t first = row * a.C + column;
  const unsigned zero = threadIdx.z;
  // If a block shares a row, all warps but the last have whole packs, and code without conditions: the
  // loads then leave together. Where a warp has it, only the last pack can lie behind its end.
  const bool whole = !one_warp && !with_sum && in_row - warp_first >= packs * gpu::kWarp;
  const auto inside = [&](auto everywhere, int k) {
    if constexpr (one_warp) return (!with_sum && k < packs - 1) || k * gpu::kWarp < left;
    return decltype(everywhere)::value || k * gpu::kWarp < left;
  };
  const auto on_packs = [&](const auto& f) {
    if constexpr (!one_warp && !with_sum) {
      if (whole) return f(std::true_type());
    }
    f(std::false_type());
  };
  if (overlapped) {  // by itself the first of these halves the number of blocks that the GPU starts in a
                     // second
    gpu::let_next_kernel_begin();
    gpu::wait_for_kernels_before();
  }
  // Not where the registers for it are missing, nor for two rows read and one written.
  constexpr bool kPrioritized = !with_sum || (rounded && packs < 8);
  [[maybe_unused]] const std::uint64_t priority = l2_priority(a.streaming);
  const auto load = [&](const X* from) {
    if constexpr (kPrioritized) {
      return Pack::load(from, priority);
    } else {
      return Pack::load(from);
    }
  };
  RowPart<X, packs, rounded && !Form::floats> x;
  [[maybe_unused]] Parameters weights[packs], biases[packs];
  if constexpr (with_sum) {
    Pack y[packs], z[packs];
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      y[k] = z[k] = Pack::zero();
      if (k * gpu::kWarp >= left) continue;
      y[k] = load(a.x + first + k * kStep);
      z[k] = load(a.y + first + k * kStep);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      float values[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[j] = y[k][j];
      if (a.x_bias && k * gpu::kWarp < left) {
        const auto added = Pack::load(a.x_bias + column + k * kStep);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) values[j] += added[j];
      }
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[j] += z[k][j];
      x.put(k, values);
      // The statistics are those of the rounded sum, as if the steps ran one after the other.
      if constexpr (rounded) {
        if (k * gpu::kWarp < left) x.bits[k].store(a.sum + first + k * kStep);
      }
    }
  } else {
    Pack bits[packs];
    on_packs([&](auto everywhere) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        bits[k] = Pack::zero();
        if (inside(everywhere, k)) bits[k] = load(a.x + first + k * kStep);
      }
    });
    if constexpr (Form::early) {
      const auto read = [&](const P* from, float otherwise, Parameters* to) {
#pragma unroll
        for (int k = 0; k < packs; ++k) {
          if (from && inside(std::false_type(), k)) to[k] = Parameters::load(from + column + k * kStep);
          if (!from) to[k] = Parameters::filled(otherwise);
        }
      };
      read(a.weight, 1, weights);
      read(a.bias, 0, biases);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if constexpr (Form::floats) {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) x.values[k][j] = bits[k][j];
      } else {
        x.bits[k] = bits[k];
      }
    }
  }

  // Both sums in one pass, about 0 or, where that is more than its deviation, about the mean of the warp's
  // first pack; a block's warps meet once: from the sums about such a number follow those of the row. At
  // worst all of the deviation lies between it and the other packs, and the variance loses as many bits as
  // the logarithm of their number. Nothing is to be contracted: every kernel made from this one is to give
  // the same bits.
  float shift = 0;
  float2 sums{0, 0};
  if (a.centered) {
    float2 of_pack{0, 0};
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      of_pack.x += x.at(0, j);
      of_pack.y = fmaf(x.at(0, j), x.at(0, j), of_pack.y);
    }
    of_pack = to_every_lane(warp_sum_of_both(of_pack.x, of_pack.y));
    const auto n = static_cast<float>(kLanes * min(in_row - warp_first, gpu::kWarp));
    if (__fmul_rn(of_pack.x, of_pack.x) > __fmul_rn(0.5f * n, of_pack.y)) shift = __fdividef(of_pack.x, n);
    x.forget(zero);
    on_packs([&](auto everywhere) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        float2 part{0, 0};  // so that the packs' additions do not wait for each other
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float from_shift = x.at(k, j) - shift;
          part.x += from_shift;
          part.y = fmaf(from_shift, from_shift, part.y);
        }
        sums.x += inside(everywhere, k) ? part.x : 0.0f;
        sums.y += inside(everywhere, k) ? part.y : 0.0f;
      }
    });
  } else {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      float part = 0;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) part = fmaf(x.at(k, j), x.at(k, j), part);
      sums.y += part;
    }
  }
  const float of_half = warp_sum_of_both(sums.x, sums.y);
  if constexpr (one_warp) {
    sums = to_every_lane(of_half);
  } else {
    if (lane == 0) {
      parts[warp].shift = shift;
      parts[warp].sum = of_half;
      parts[warp].n = static_cast<float>(kLanes * min(in_row - warp_first, packs * gpu::kWarp));
    }
    if (lane == gpu::kWarp / 2) parts[warp].squares = of_half;
    if (threadIdx.x < kMostWarps && threadIdx.x >= blockDim.x / gpu::kWarp) parts[threadIdx.x] = Moments{};
    __syncthreads();
    shift = parts[0].shift;
    sums = sums_of_parts(parts, shift);
  }
  x.forget(zero);
  const float squares = __fmul_rn(sums.y, inverse_C), rest = __fmul_rn(sums.x, inverse_C);
  // Squares that overflow make rstd 0, an infinity among them makes the row NaN.
  const bool overflow = squares == INFINITY && fabsf(rest) < INFINITY;
  const float variance = overflow ? squares : fmaf(-rest, rest, squares);
  const float rstd = rsqrtf(__fadd_rn(variance < 0 ? 0.0f : variance, a.eps));
  const float mean = __fadd_rn(shift, rest);
  if (lane == 0 && warp_first == 0 && a.mean) a.mean[row] = mean;
  if (lane == 0 && warp_first == 0 && a.rstd) a.rstd[row] = rstd;

  const auto put = [&](auto everywhere, auto affine, auto normalized) {
    const auto read = [&](int k, Parameters& w, Parameters& b) {
      if constexpr (Form::early) {
        w = weights[k];
        b = biases[k];
      } else if constexpr (affine == Affine::any) {
        w = a.weight ? Parameters::load(a.weight + column + k * kStep) : Parameters::filled(1);
        b = a.bias ? Parameters::load(a.bias + column + k * kStep) : Parameters::filled(0);
      } else {
        w = Parameters::load(a.weight + column + k * kStep);
        if constexpr (affine == Affine::both) b = Parameters::load(a.bias + column + k * kStep);
      }
    };
    // The next ones come while these are in use, where there are registers for that.
    constexpr bool kAhead = sizeof(P) == sizeof(X) || (with_sum && one_warp && packs <= 4);
    Parameters w, b, next_w, next_b;
    if (kAhead && inside(everywhere, 0)) read(0, w, b);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(everywhere, k)) continue;
      if (!kAhead) read(k, w, b);
      if (kAhead && k + 1 < packs && inside(everywhere, k + 1)) read(k + 1, next_w, next_b);
      float values[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float value = normalized(x.at(k, j));
        if constexpr (affine == Affine::weight) {
          values[j] = __fmul_rn(value, w[j]);
        } else {
          values[j] = fmaf(value, w[j], b[j]);
        }
      }
      Lanes<O, kLanes>::from_floats(values).store(a.out + first + k * kStep);
      if (kAhead) {
        w = next_w;
        b = next_b;
      }
    }
  };
  // In one step x·rstd − mean·rstd is off by half an ulp of its second term, which counts beside a deviation
  // that is small beside the mean.
  constexpr float kMost = sizeof(O) == 2 ? 8 : 0.5f;
  const float offset = __fmul_rn(-mean, rstd);
  if (!a.centered && a.weight && !a.bias) {
    on_packs([&](auto everywhere) {
      put(everywhere, AffineTag<Affine::weight>(), [&](float value) { return __fmul_rn(value, rstd); });
    });
  } else if (a.weight && a.bias && fabsf(offset) <= kMost) {
    on_packs([&](auto everywhere) {
      put(everywhere, AffineTag<Affine::both>(), [&](float value) { return fmaf(value, rstd, offset); });
    });
  } else {
    put(std::false_type(), AffineTag<Affine::any>(),
        [&](float value) { return __fmul_rn(value - mean, rstd); });
  }
}

template <bool with_sum, bool rounded, int packs, bool one_warp, class X, class P, class O>
void launch_forward_as(const ForwardRows<X, P, O>& a, int warps, const Context& context, const char* name) {
  constexpr int kWarpThreads = ForwardForm<X, P, packs, one_warp, with_sum>::warp_threads;
  const int threads = one_warp ? kWarpThreads : warps * gpu::kWarp;
  const std::int64_t rows = one_warp ? kWarpThreads / gpu::kWarp : 1;
  gpu::launch_overlapped(context, forward_rows<X, P, O, packs, one_warp, with_sum, rounded>,
                         static_cast<unsigned>((a.N + rows - 1) / rows), threads, 0, name, a,
                         1.0f / static_cast<float>(a.C), gpu::overlaps(context));
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
