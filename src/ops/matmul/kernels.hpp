// Shared by all kernels of the three operations: their common product, its blocking on a CPU, refusals and
// nominal costs.
#pragma once

#include <algorithm>

#include "ops/matmul/matmul.hpp"
#include "roofline/schedule.hpp"

namespace warpwright::ops::matmul {

// All three operations compute a product C (rows, cols) = A (rows, depth) · B (depth, cols):
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

// True if kernels of GPUs can count rows, columns and depth, to the end of the last tile, in 32 bits.
inline bool counts_in_32_bits(const Extent& e) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1, kLargestTile = 256;
  return std::max({e.rows, e.cols, e.depth}) <= kMost - kLargestTile;
}
inline constexpr const char* kNot32Bits = "counts rows and columns in 32 bits";

// The name of a problem's operation.
inline constexpr std::string_view operation_of(const MatmulForwardProblem&) {
  return "matmul.forward";
}
inline constexpr std::string_view operation_of(const MatmulDxProblem&) {
  return "matmul.dx";
}
inline constexpr std::string_view operation_of(const MatmulDwProblem&) {
  return "matmul.dw";
}

// True if there is nothing to multiply. The operation may still write results: zeros, the steps after the
// product, dw's dbias.
inline bool is_empty(const MatmulForwardProblem& p) {
  return p.K == 0;
}
inline bool is_empty(const MatmulDxProblem& p) {
  return p.N == 0;
}
inline bool is_empty(const MatmulDwProblem& p) {
  return p.M == 0 || p.K == 0;
}

// Elements from one row to the next. The stride of a single row has no meaning, so this is then its length.
inline std::int64_t leading_of(const Tensor& matrix) {
  return matrix.shape[0] > 1 ? matrix.strides[0] : matrix.shape[1];
}
// True if every row begins at a multiple of 16 bytes.
inline bool rows_begin_at_packs(const Tensor& matrix) {
  return begin_at_packs(matrix) &&
         leading_of(matrix) * static_cast<std::int64_t>(size_of(matrix.dtype)) % 16 == 0;
}

// A CPU micro-kernel computes rows × cols results at once. It adds `depth` terms to each result per step.
struct Tile {
  std::int64_t rows, cols, depth;
  std::int64_t max_depth;  // largest depth of a chunk
  std::size_t element;     // bytes of a packed element
  const char* layout;      // name of the layout of its packed weights (packed.hpp)
};
inline constexpr Tile kTileAvx2{4, 24, 1, 384, 4, "avx2_fp32.1"};
inline constexpr Tile kTileAvx512{8, 48, 1, 768, 4, "avx512_fp32.1"};
inline constexpr Tile kTileAvx512Bf16{8, 48, 2, 768, 2, "avx512_bf16.1"};
inline constexpr Tile kTileAmx{32, 32, 32, 768, 2, "amx_bf16.1"};

// The blocking of a product on a CPU. The chunks of the depth depend on the depth alone, so every result is
// summed in the same order for any number of threads. Workers form a grid of row_teams × col_teams. A team
// shares its packed rows of A. Each member of a team has columns of its own.
struct Blocking {
  std::int64_t row_teams = 1, col_teams = 1;  // teams, members of a team
  std::int64_t depth = 0, depth_chunks = 1;   // a chunk's depth, a multiple of the tile's
  std::int64_t rows = 0;                      // rows of one team's packed block of A
  std::int64_t cols = 0;                 // columns of all members together, between two sweeps over the depth
  std::size_t a_bytes = 0, b_bytes = 0;  // one packed block of A, one packed panel of B
  std::size_t sums_bytes = 0;            // one team's fp32 partial sums; 0 if C holds them
  std::size_t sums_offset = 0, b_offset = 0, workspace = 0;  // bytes in the workspace, and its size
};
// sums: C is not fp32, so partial sums over the depth need a place in the workspace.
Blocking block(const Extent& extent, const Tile& tile, bool sums, const DeviceInfo& device);
std::size_t workspace(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device);
std::size_t workspace(const MatmulDxProblem& p, const Tile& tile, const DeviceInfo& device);
std::size_t workspace(const MatmulDwProblem& p, const Tile& tile, const DeviceInfo& device);
// The chunks of the depth, "2 chunks of 384". The bits of a result depend on them. The bits do not depend on
// the teams, which change with the number of threads.
std::string chunks(const Extent& extent, const Tile& tile, const DeviceInfo& device);

inline constexpr const char* kNotInvariant = "the order of its sums depends on the number of rows";
inline constexpr const char* kNotPacked = "takes no weights in another kernel's layout";
inline constexpr const char* kEmpty = "an empty product";
// For kernels that take packed weights: refuses those in another layout or of another size.
Refusal refuse_packed(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device);

// Nominal costs in seconds. They rank the GPU kernels without a predicted time after all kernels that have
// one. If rows are counted on the device, cuBLASLt computes all M rows, and our kernels only the counted
// rows.
inline constexpr double kCostOfCountedLibrary = 1e7, kCostOfMma = 1e8, kCostOfTile128 = 1e9;

// pack: packs a weight (N, K) for the kernel. The weight is fp32, and bf16 for avx512_bf16
// and amx_bf16.
// finish: completes an operation after its product was computed elsewhere. Forward and dx take the product
// from `sums`, contiguous fp32 of the result's shape, and apply all steps after it. dw computes dbias.
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

namespace avx512_bf16 {
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
}  // namespace avx512_bf16

namespace amx_bf16 {
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
}  // namespace amx_bf16

using roofline::ceil_div;
constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return ceil_div(n, multiple) * multiple;
}

using roofline::Schedule;  // distributes a product's tiles over a GPU's blocks (cuda/schedule.cuh)

}  // namespace warpwright::ops::matmul
