// The steps of an epilogue.
//
// A step gets the sums of a chunk: v(j, r, e) is in row r·8 + lane.row and column 8·j + lane.column + e.
#pragma once

#include <type_traits>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/hopper/parameters.cuh"

namespace warpwright::ops::matmul::cuda {

// v += bias[column], if there is a bias. The bias is 0 outside the matrix, so the code has no branches: all
// loads of a chunk are under way before the first addition.
struct AddBias {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    using In = typename Chunk::In;
    if (!chunk.parameters.bias) return;
#pragma unroll
    for (int j = 0; j < Chunk::kSums / 4; ++j) {
      const gpu::Packed<In, 2> pair = chunk.bias(j);
      chunk.v[4 * j] += pair[0], chunk.v[4 * j + 1] += pair[1];
      chunk.v[4 * j + 2] += pair[0], chunk.v[4 * j + 3] += pair[1];
    }
  }
};

// extra = v, if the caller asks for it
struct Keep {
  static constexpr bool kReadsMatrix = false, kSends = true;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    if (chunk.parameters.keeps) chunk.write(1);
  }
};

// v = act(v)
template <Activation activation>
struct Activate {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
#pragma unroll
    for (float& v : chunk.v) v = gpu::activate_in_epilogue<activation>(v);
  }
};

// v = v · act'(extra)
template <Activation activation>
struct Differentiate {
  static constexpr bool kReadsMatrix = true, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.with_matrix(
        [](float v, float extra) { return v * gpu::activation_derivative_in_epilogue<activation>(extra); });
  }
};

// v += extra, if there is one
struct AddMatrix {
  static constexpr bool kReadsMatrix = true, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.with_matrix([](float v, float extra) { return v + extra; });
  }
};

// v *= scale
struct Scale {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
#pragma unroll
    for (float& v : chunk.v) v *= chunk.parameters.scale;
  }
};

// Sums A's rows over each slab of the depth, next to the product, if the caller asks for it (A transposed).
// These are partial sums of the bias gradient. Warps that would be idle read them from the tiles in shared
// memory. Blocks with the same rows take turns, slab by slab.
struct SumRows {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk&) {}
};

// Runs the steps in this order, then out = v.
template <class... Steps>
struct Epilogue {
  static constexpr bool kReadsMatrix = (Steps::kReadsMatrix || ...);
  static constexpr bool kSumsRows = (std::is_same_v<Steps, SumRows> || ...);
  static constexpr bool kAddsBias = (std::is_same_v<Steps, AddBias> || ...);
  static constexpr bool kMatrixIsOptional = (std::is_same_v<Steps, AddMatrix> || ...);
  static constexpr int kBoxes = (Steps::kSends || ...) ? 2 : 1;  // sent per chunk: out, extra
  static_assert(!kReadsMatrix || kBoxes == 1, "extra is read or written");
  static __device__ bool reads_matrix(const Parameters& p) {
    return kReadsMatrix && (!kMatrixIsOptional || p.adds_matrix);
  }
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.begin();
    (Steps::apply(chunk), ...);
    chunk.write(0);
    chunk.send();
  }
};

}  // namespace warpwright::ops::matmul::cuda
