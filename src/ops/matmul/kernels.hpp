// The kernels share this: the product that all three operations are, its blocking on a CPU, refusals and
// costs.
#pragma once

#include "ops/matmul/matmul.hpp"
#include "roofline/schedule.hpp"

namespace warpwright::ops::matmul {

// All three are a product C (rows, cols) = A (rows, depth) · B (depth, cols):
//              rows  cols  depth   A       B
//   forward    M     N     K       x       weightᵀ
//   dx         M     K     N       dout    weight
//   dw         N     K     M       doutᵀ   x
struct Extent {
  std::int64_t rows = 0, cols = 0, depth = 0;
};
inline Extent extent_of(const MatmulForwardProblem& p) {
  return {.rows = p.M, .cols = p.N, .depth = p.K};
}
inline Extent extent_of(const MatmulDxProblem& p) {
  return {.rows = p.M, .cols = p.K, .depth = p.N};
}
inline Extent extent_of(const MatmulDwProblem& p) {
  return {.rows = p.N, .cols = p.K, .depth = p.M};
}

// The operation of a problem.
inline constexpr std::string_view operation_of(const MatmulForwardProblem&) {
  return "matmul.forward";
}
inline constexpr std::string_view operation_of(const MatmulDxProblem&) {
  return "matmul.dx";
}
inline constexpr std::string_view operation_of(const MatmulDwProblem&) {
  return "matmul.dw";
}

// True if nothing is multiplied. Results may remain: zeros, what follows a product, dw's dbias.
inline bool is_empty(const MatmulForwardProblem& p) {
  return p.K == 0;
}
inline bool is_empty(const MatmulDxProblem& p) {
  return p.N == 0;
}
inline bool is_empty(const MatmulDwProblem& p) {
  return p.M == 0 || p.K == 0;
}

// Elements from one row to the next. A matrix of one row has no stride that means anything.
inline std::int64_t leading_of(const Tensor& matrix) {
  return matrix.shape[0] > 1 ? matrix.strides[0] : matrix.shape[1];
}
// True if all of its rows begin at multiples of 16 bytes.
inline bool rows_begin_at_packs(const Tensor& matrix) {
  return begin_at_packs(matrix) &&
         leading_of(matrix) * static_cast<std::int64_t>(size_of(matrix.dtype)) % 16 == 0;
}

// A micro-kernel multiplies at once row_tile × col_tile results, depth_tile terms at a time.
struct Tile {
  std::int64_t rows, cols, depth;
  std::int64_t max_depth;  // of a chunk
  std::size_t element;     // bytes of a packed element
  const char* layout;      // the name of the layout in which it takes packed weights (packed.hpp)
};
inline constexpr Tile kTileAvx2{4, 24, 1, 384, 4, "avx2_fp32.1"};
inline constexpr Tile kTileAvx512{8, 48, 1, 768, 4, "avx512_fp32.1"};
inline constexpr Tile kTileAmx{32, 32, 32, 768, 2, "amx_bf16.1"};

// The cut of a product. That of the depth depends on the depth alone, so that every result is summed in
// the same order whatever the threads. Workers form row_teams × col_teams: a team shares its packed rows of
// A, and each of its members has columns of its own.
struct Blocking {
  std::int64_t row_teams = 1, col_teams = 1;
  std::int64_t depth = 0, depth_chunks = 1;  // a chunk's depth, a multiple of the tile's
  std::int64_t rows = 0;                     // of one team's packed block of A
  std::int64_t cols = 0;                     // of all members together, between two sweeps over the depth
  std::size_t a_bytes = 0, b_bytes = 0;      // one packed block of A, one packed panel of B
  std::size_t sums_bytes = 0;                // one team's fp32 partial sums, where C cannot hold them
  std::size_t sums_offset = 0, b_offset = 0, workspace = 0;
};
// sums: partial sums over the depth need a place of their own (C is not fp32).
Blocking block(const Extent& extent, const Tile& tile, bool sums, const DeviceInfo& device);
std::size_t workspace(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device);
std::size_t workspace(const MatmulDxProblem& p, const Tile& tile, const DeviceInfo& device);
std::size_t workspace(const MatmulDwProblem& p, const Tile& tile, const DeviceInfo& device);
// "2 chunks of 384": the cut of the depth, on which the bits depend; teams change with the threads, and no
// bit with them.
std::string chunks(const Extent& extent, const Tile& tile, const DeviceInfo& device);

inline constexpr const char* kNotInvariant = "the order of its sums depends on the number of rows";
inline constexpr const char* kNotPacked = "takes no weights in another kernel's layout";
inline constexpr const char* kEmpty = "an empty product";
// For kernels that take packed weights, of their own layout.
Refusal refuse_packed(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device);

// Seconds, for the order in which a GPU's kernels are taken where no predicted one applies. Where rows are
// counted on the device, the library computes as many as there may be, and our kernels those that there are.
inline constexpr double kCostOfCountedLibrary = 1e7, kCostOfMma = 1e8, kCostOfTile128 = 1e9;

// pack: lays a weight out for the kernel; fp32 but for amx_bf16, which takes bf16.
// finish: what is left of an operation after its product, which is in `sums`, contiguous: all that follows
// the sums of forward and dx, and dw's dbias.
namespace avx2 {
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
void finish(const Context& context, const MatmulForward& args, const float* sums);
void finish(const Context& context, const MatmulDx& args, const float* sums);
void finish(const Context& context, const MatmulDw& args);
}  // namespace avx2

namespace avx512 {
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
void finish(const Context& context, const MatmulForward& args, const float* sums);
void finish(const Context& context, const MatmulDx& args, const float* sums);
void finish(const Context& context, const MatmulDw& args);
}  // namespace avx512

namespace amx_bf16 {
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
}  // namespace amx_bf16

using roofline::Schedule;  // the ways in which a GPU's blocks share out a product (cuda/hopper/schedule.cuh)

}  // namespace warpwright::ops::matmul
