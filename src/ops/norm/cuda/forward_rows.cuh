// Normalization forward in which the registers of a warp, or of a block's warps together, hold a row. A row
// is read from memory once, in accesses of 16 bytes, and its statistics take one pass over the registers.
// Memory-bound: 2 passes over the tensor (x, out), 3 with a residual, 4 if the sum is stored. Besides memory,
// the number of instructions limits these kernels.
#pragma once

#include "ops/cuda/overlap.cuh"
#include "ops/norm/cuda/lanes.cuh"
#include "ops/norm/cuda/row_sums.cuh"
#include "ops/norm/shape.hpp"

namespace warpwright::ops::norm::cuda {

inline constexpr int kMostBlocksOfMultiprocessor = 32;

// X: dtype of x, x_bias, residual and sum; P: of the parameters; O: of out.
template <class X, class P, class O>
struct ForwardRows {
  const X* x;
  const X *x_bias, *residual;  // added to x if the kernel is `with_sum`; x_bias (C) or null
  const P *weight, *bias;      // may be null
  X* sum;                      // may be null: then the sum is not rounded
  O* out;
  float *mean, *rstd;  // may be null
  std::int64_t N;
  int C;
  float eps;
  bool centered, streaming;
  const std::int32_t* rows_on_device = nullptr;  // rows to compute if the kernel is `with_sum`, or null

  template <bool with_sum>
  __device__ std::int64_t rows() const {
    if constexpr (with_sum) {
      if (rows_on_device) return min(N, std::int64_t{*rows_on_device});
    }
    return N;
  }
};

// A thread's part of a row. Long rows keep the bits of x's dtype and unpack them in each pass, to save
// registers. Short rows keep floats.
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

// A forward kernel's use of its registers. With few packs per lane, the row is kept as floats. A warp that
// owns a short row reads the parameters together with the row, so that they do not wait for the statistics.
template <class X, class P, int packs, bool one_warp, bool with_sum>
struct ForwardForm {
  static constexpr bool few = with_sum || sizeof(X) != sizeof(P);  // as in forward_shape()
  static constexpr bool floats = one_warp ? !with_sum && packs <= 3 : !few && packs <= 4;
  static constexpr bool early = one_warp && !few && packs <= 4;
  // If a warp's row is long enough for the GPU to start as many blocks, each row is its own block. Otherwise
  // the warps of a block would wait for the last of them before another block takes their place.
  static constexpr bool alone = packs >= (with_sum ? 4 : 3);
  static constexpr int warp_threads = alone ? gpu::kWarp : kOneWarpThreads;
  static constexpr int threads =
      one_warp ? warp_threads : gpu::kWarp * (packs <= kFloatPacks ? most_float_warps(packs) : kMostWarps);
  // The number of packs of a row with residual whose loads are issued together. For long rows of fp32, the
  // registers suffice for few.
  static constexpr int at_once = !one_warp && sizeof(X) == 4 && packs > 4 ? 2 : packs;
  // The number of blocks on a multiprocessor for which the registers suffice without a spill.
  static constexpr int blocks() {
    if (!one_warp && with_sum) return sizeof(X) == 4 ? 2 : 1;
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

// The parameters that are present. Code that knows them is shorter.
enum class Affine { any, both, weight };
template <Affine affine>
using AffineTag = std::integral_constant<Affine, affine>;

// A warp's part of a row that a block shares: n elements, Σ(x − shift) and Σ(x − shift)².
struct alignas(16) Moments {
  float shift, sum, squares, n;
};

// Returns the sums of the whole row about `shift`. Every lane adds the same parts in the same order. There
// are kMostWarps parts; those of absent warps have n = 0.
__device__ inline float2 sums_of_parts(const Moments* parts, float shift) {
  const Moments p = parts[threadIdx.x % kMostWarps];
  const float from_shift = p.shift - shift, moved = __fmul_rn(p.n, from_shift);
  const bool upper = threadIdx.x % gpu::kWarp >= gpu::kWarp / 2;
  const float mine = upper ? fmaf(from_shift, fmaf(2.0f, p.sum, moved), p.squares) : __fadd_rn(p.sum, moved);
  return to_every_lane(gpu::warp_sum<kMostWarps>(mine));
}

// One thread's view of the row that its warp or block owns. A lane's packs are at constant distances from one
// address, in memory and in the parameters.
template <class X, class P, class O, int packs, bool one_warp, bool with_sum, bool rounded>
struct ForwardRow {
  using Form = ForwardForm<X, P, packs, one_warp, with_sum>;
  static constexpr int kLanes = gpu::kPackedLanes<X>, kStep = gpu::kWarp * kLanes;
  using Pack = Lanes<X, kLanes>;
  using Parameters = Lanes<P, kLanes>;
  struct Sums {
    float shift;
    float2 of_row;  // Σ(x − shift), Σ(x − shift)²
  };
  struct Statistics {
    float mean, rstd;
  };

  // A copy: through a reference, the compiler would not compute addresses before a condition.
  const ForwardRows<X, P, O> a;
  int lane, warp;
  std::int64_t row;
  int warp_first, in_row;  // in packs: where the warp's part of the row begins, and the row's length
  int column, left;        // first column of the lane's first pack; packs from there to the row's end
  std::int64_t first;
  unsigned zero;
  bool whole;  // true if no pack of the warp lies after the row's end
  RowPart<X, packs, rounded && !Form::floats> x;
  Parameters weights[packs], biases[packs];  // if they are read early

  __device__ explicit ForwardRow(const ForwardRows<X, P, O>& rows)
      : a(rows),
        lane(static_cast<int>(threadIdx.x) % gpu::kWarp),
        warp(static_cast<int>(threadIdx.x) / gpu::kWarp),
        row(one_warp ? std::int64_t{blockIdx.x} * (Form::warp_threads / gpu::kWarp) + warp
                     : std::int64_t{blockIdx.x}),
        warp_first(one_warp ? 0 : warp * packs * gpu::kWarp),
        in_row(a.C / kLanes),
        column((warp_first + lane) * kLanes),
        left(in_row - warp_first - lane),
        first(row * a.C + column),
        zero(threadIdx.z),
        whole(!one_warp && !with_sum && in_row - warp_first >= packs * gpu::kWarp) {}

  // If a block shares a row, all warps except the last have whole packs. Their code has no conditions, so
  // that their loads are issued together. If a warp owns the row, only its last pack can lie after the row's
  // end.
  template <class Everywhere>
  __device__ bool inside(Everywhere, int k) const {
    if constexpr (one_warp) return (!with_sum && k < packs - 1) || k * gpu::kWarp < left;
    return Everywhere::value || k * gpu::kWarp < left;
  }
  template <class F>
  __device__ void on_packs(const F& f) const {
    if constexpr (!one_warp && !with_sum) {
      if (whole) return f(std::true_type());
    }
    f(std::false_type());
  }

  __device__ Pack load(const X* from, std::uint64_t priority) const {
    // No priority if the registers for it are missing, or if two rows are read and one is written.
    constexpr bool kPrioritized = !with_sum || (rounded && packs < 8);
    if constexpr (kPrioritized) {
      return Pack::load(from, priority);
    } else {
      return Pack::load(from);
    }
  }

  __device__ void read_sum() {
    const std::uint64_t priority = l2_priority(a.streaming);
    constexpr int kAtOnce = Form::at_once;
#pragma unroll
    for (int from = 0; from < packs; from += kAtOnce) {
      Pack y[kAtOnce], z[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = from + i;
        y[i] = z[i] = Pack::zero();
        if (k >= packs || k * gpu::kWarp >= left) continue;
        y[i] = load(a.x + first + k * kStep, priority);
        z[i] = load(a.residual + first + k * kStep, priority);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = from + i;
        if (k < packs) add(k, y[i], z[i]);
      }
      if (from + kAtOnce < packs) asm volatile("" ::: "memory");  // the next loads wait for these
    }
  }
  __device__ void add(int k, const Pack& y, const Pack& z) {
    float values[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[j] = y[j];
    if (a.x_bias && k * gpu::kWarp < left) {
      const auto added = Pack::load(a.x_bias + column + k * kStep);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) values[j] += added[j];
    }
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[j] += z[j];
    x.put(k, values);
    // The statistics are those of the rounded sum, as if two operations ran one after the other.
    if constexpr (rounded) {
      if (k * gpu::kWarp < left) x.bits[k].store(a.sum + first + k * kStep);
    }
  }

  __device__ void read_early(const P* from, float otherwise, Parameters (&to)[packs]) const {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (from && inside(std::false_type(), k)) to[k] = Parameters::load(from + column + k * kStep);
      if (!from) to[k] = Parameters::filled(otherwise);
    }
  }

  // Brings the parameters to the second-level cache. No kernel of an overlapped chain writes them, so this
  // may come before the wait.
  __device__ void prefetch_parameters() const {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(std::false_type(), k)) continue;
      for (const P* from : {a.weight, a.bias}) {
        if (from) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + column + k * kStep));
      }
    }
  }

  __device__ void read() {
    const std::uint64_t priority = l2_priority(a.streaming);
    Pack bits[packs];
    on_packs([&](auto everywhere) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        bits[k] = Pack::zero();
        if (inside(everywhere, k)) bits[k] = load(a.x + first + k * kStep, priority);
      }
    });
    if constexpr (Form::early) {
      read_early(a.weight, 1, weights);
      read_early(a.bias, 0, biases);
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

  // Returns the mean of the warp's first pack if it exceeds the pack's deviation, otherwise 0.
  __device__ float shift_of_warp() const {
    float2 of_pack{0, 0};
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      of_pack.x += x.at(0, j);
      of_pack.y = fmaf(x.at(0, j), x.at(0, j), of_pack.y);
    }
    of_pack = to_every_lane(warp_sum_of_both(of_pack.x, of_pack.y));
    const auto n = static_cast<float>(kLanes * min(in_row - warp_first, gpu::kWarp));
    const bool far = __fmul_rn(of_pack.x, of_pack.x) > __fmul_rn(0.5f * n, of_pack.y);
    return far ? __fdividef(of_pack.x, n) : 0.0f;
  }

  // Computes both sums of a lane in one pass about shift_of_warp(). At worst, the whole deviation lies
  // between the shift and the other packs; the variance then loses as many bits as the logarithm of the
  // number of packs.
  __device__ Sums sums_of_lane() {
    Sums sums{0, {0, 0}};
    if (a.centered) {
      sums.shift = shift_of_warp();
      x.forget(zero);
      on_packs([&](auto everywhere) {
#pragma unroll
        for (int k = 0; k < packs; ++k) {
          float2 part{0, 0};  // makes the packs' additions independent
#pragma unroll
          for (int j = 0; j < kLanes; ++j) {
            const float from_shift = x.at(k, j) - sums.shift;
            part.x += from_shift;
            part.y = fmaf(from_shift, from_shift, part.y);
          }
          sums.of_row.x += inside(everywhere, k) ? part.x : 0.0f;
          sums.of_row.y += inside(everywhere, k) ? part.y : 0.0f;
        }
      });
    } else {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        float part = 0;
#pragma unroll
        for (int j = 0; j < kLanes; ++j) part = fmaf(x.at(k, j), x.at(k, j), part);
        sums.of_row.y += part;
      }
    }
    return sums;
  }

  // Computes both sums of the row. A block's warps meet once: the sums about their own shifts are converted
  // to sums about the first warp's shift.
  __device__ Sums sums_of_row(Moments* parts) {
    Sums sums = sums_of_lane();
    const float of_half = warp_sum_of_both(sums.of_row.x, sums.of_row.y);
    if constexpr (one_warp) {
      sums.of_row = to_every_lane(of_half);
    } else {
      if (lane == 0) {
        parts[warp].shift = sums.shift;
        parts[warp].sum = of_half;
        parts[warp].n = static_cast<float>(kLanes * min(in_row - warp_first, packs * gpu::kWarp));
      }
      if (lane == gpu::kWarp / 2) parts[warp].squares = of_half;
      if (threadIdx.x < kMostWarps && threadIdx.x >= blockDim.x / gpu::kWarp) parts[threadIdx.x] = Moments{};
      __syncthreads();
      sums.shift = parts[0].shift;
      sums.of_row = sums_of_parts(parts, sums.shift);
    }
    return sums;
  }

  // Uses no contracted operations, because every kernel that is made from this one must give the same bits.
  __device__ Statistics statistics(const Sums& sums, float inverse_C) {
    x.forget(zero);
    const float squares = __fmul_rn(sums.of_row.y, inverse_C), rest = __fmul_rn(sums.of_row.x, inverse_C);
    // If the squares overflow, rstd is 0. If the row contains an infinity, the row becomes NaN.
    const bool overflow = squares == INFINITY && fabsf(rest) < INFINITY;
    const float variance = overflow ? squares : fmaf(-rest, rest, squares);
    const float rstd = rsqrtf(__fadd_rn(variance < 0 ? 0.0f : variance, a.eps));
    const float mean = __fadd_rn(sums.shift, rest);
    if (lane == 0 && warp_first == 0 && a.mean) a.mean[row] = mean;
    if (lane == 0 && warp_first == 0 && a.rstd) a.rstd[row] = rstd;
    return {mean, rstd};
  }

  template <Affine affine>
  __device__ void read_parameters(int k, Parameters& w, Parameters& b) const {
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
  }

  template <Affine affine, class Everywhere, class F>
  __device__ void put(Everywhere everywhere, const F& normalized) const {
    // The next parameters are read while the current ones are in use, if the registers suffice.
    constexpr bool kAhead = sizeof(P) == sizeof(X) || (with_sum && one_warp && packs <= 4);
    Parameters w, b, next_w, next_b;
    if (kAhead && inside(everywhere, 0)) read_parameters<affine>(0, w, b);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(everywhere, k)) continue;
      if (!kAhead) read_parameters<affine>(k, w, b);
      if (kAhead && k + 1 < packs && inside(everywhere, k + 1))
        read_parameters<affine>(k + 1, next_w, next_b);
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
  }

  __device__ void normalize(Statistics s) const {
    // Computing x·rstd − mean·rstd in one step errs by half an ulp of its second term. This matters if the
    // deviation is small compared with the mean.
    constexpr float kMost = sizeof(O) == 2 ? 8 : 0.5f;
    const float offset = __fmul_rn(-s.mean, s.rstd);
    if (!a.centered && a.weight && !a.bias) {
      on_packs([&](auto everywhere) {
        put<Affine::weight>(everywhere, [&](float value) { return __fmul_rn(value, s.rstd); });
      });
    } else if (a.weight && a.bias && fabsf(offset) <= kMost) {
      on_packs([&](auto everywhere) {
        put<Affine::both>(everywhere, [&](float value) { return fmaf(value, s.rstd, offset); });
      });
    } else {
      put<Affine::any>(std::false_type(), [&](float value) { return __fmul_rn(value - s.mean, s.rstd); });
    }
  }
};

// A group processes one row and ends. The hardware assigns rows as groups become free.
template <class X, class P, class O, int packs, bool one_warp, bool with_sum, bool rounded>
__global__ void __launch_bounds__(ForwardForm<X, P, packs, one_warp, with_sum>::threads,
                                  ForwardForm<X, P, packs, one_warp, with_sum>::blocks())
    forward_rows(const __grid_constant__ ForwardRows<X, P, O> a, float inverse_C, bool overlapped) {
  __shared__ Moments parts[kMostWarps];
  ForwardRow<X, P, O, packs, one_warp, with_sum, rounded> row(a);
  if (row.row >= a.template rows<with_sum>()) return;
  // let_next_kernel_begin() alone would halve the rate at which the GPU starts blocks.
  if (overlapped) {
    gpu::let_next_kernel_begin();
    row.prefetch_parameters();
    gpu::wait_for_kernels_before();
  }
  if constexpr (with_sum) {
    row.read_sum();
  } else {
    row.read();
  }
  row.normalize(row.statistics(row.sums_of_row(parts), inverse_C));
}

}  // namespace warpwright::ops::norm::cuda
