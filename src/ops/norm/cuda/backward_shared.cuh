// The backward's rows in shared memory.
#pragma once

#include <type_traits>

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/shared.cuh"
#include "ops/norm/cuda/lanes.cuh"

namespace warpwright::ops::norm::cuda {

// Packs in shared memory. A pack of T consists of N / kEach units of 16 bytes. The units of a warp's lanes
// are contiguous, and a lane's next unit follows after those of all lanes. `p` is the lane's first unit.
template <class T, int N>
__device__ Lanes<T, N> lanes_from_shared(const uint4* p) {
  Lanes<T, N> lanes;
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    lanes.units[i] = *reinterpret_cast<const typename Lanes<T, N>::Unit*>(p + i * gpu::kWarp);
  }
  return lanes;
}
template <class T, int N>
__device__ void lanes_to_shared(uint4* p, const float (&values)[N]) {
  const auto lanes = Lanes<T, N>::from_floats(values);
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    *reinterpret_cast<typename Lanes<T, N>::Unit*>(p + i * gpu::kWarp) = lanes.units[i];
  }
}
// If this instruction were in a function of cp_async.cuh, nvcc would make other code of whole kernels.
template <class T, int N>
__device__ void copy_to_shared(uint4* p, const T* from, std::uint64_t priority) {
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     gpu::shared_address(p + i * gpu::kWarp)),
                 "l"(from + i * Lanes<T, N>::kEach), "l"(priority)
                 : "memory");
  }
}

// A lane's part of shared memory: its packs of the rows that arrive and, from the output, floats or
// parameters of its columns. Each thread copies and reads only its own packs, so it need only wait for its
// own copies. Each thread also copies the statistics: if they were loaded into registers, the thread would
// have to wait for them earlier.
template <class X, class P, class O, class Form, bool from_out>
struct BackwardShared {
  using Y = std::conditional_t<from_out, O, X>;
  static constexpr int kLanes = gpu::kPackedLanes<X>, packs = Form::packs, kWarp = gpu::kWarp;
  static constexpr int kDout = Lanes<O, kLanes>::kUnits, kUnits = kDout + Lanes<Y, kLanes>::kUnits;
  static constexpr int kStage = packs * kUnits * kWarp;  // per warp
  static constexpr int kFloats = kLanes / 4 * kWarp, kBias = Lanes<P, kLanes>::kUnits * kWarp;
  static constexpr bool kBiasInShared = !Form::roomy || sizeof(P) != sizeof(X);

  uint4* rows;               // (warps, stages, packs, units, lanes)
  float2* statistics;        // (warps, stages, lanes): mean, rstd
  uint4* inverse = nullptr;  // (warps per row, packs, lanes) floats: 1/weight
  uint4* bias = nullptr;
  uint4* addends;  // (warps, stages, packs, lanes)

  __device__ BackwardShared(uint4* shared, int warps, int warp, int lane) {
    const int tables = Form::one_warp ? 1 : warps, table = Form::one_warp ? 0 : warp;
    const auto take = [&](int of, int which, int units) {
      uint4* place = shared + which * units + lane;
      shared += of * units;
      return place;
    };
    rows = take(warps, warp, Form::stages * kStage);
    statistics = reinterpret_cast<float2*>(shared) + warp * Form::stages * kWarp + lane;
    shared += warps * Form::stages * kWarp / 2;
    if constexpr (from_out) {
      inverse = take(tables, table, packs * kFloats);
      if constexpr (kBiasInShared) bias = take(tables, table, packs * kBias);
    }
    addends = take(warps, warp, Form::stages * packs * kWarp);
  }
  __device__ uint4* at(int stage, int k, int unit) const {
    return rows + stage * kStage + (k * kUnits + unit) * kWarp;
  }
};

}  // namespace warpwright::ops::norm::cuda
