// The kernels that variants.cpp chooses from, and the blocking that they share.
#pragma once

#include "ops/matmul/matmul.hpp"

namespace warpwright::ops::matmul {

void forward_reference(const Context& context, const MatmulForward& args);
void dx_reference(const Context& context, const MatmulDx& args);
void dw_reference(const Context& context, const MatmulDw& args);

// All three are a product C (rows, cols) = A (rows, depth) · B (depth, cols):
//              rows  cols  depth   A       B
//   forward    M     N     K       x       weightᵀ
//   dx         M     K     N       dout    weight
//   dw         N     K     M       doutᵀ   x
struct Extent {
  std::int64_t rows = 0, cols = 0, depth = 0;
};
inline Extent extent_of(const MatmulForwardProblem& p) {
  return {p.M, p.N, p.K};
}
inline Extent extent_of(const MatmulDxProblem& p) {
  return {p.M, p.K, p.N};
}
inline Extent extent_of(const MatmulDwProblem& p) {
  return {p.N, p.K, p.M};
}

// What a micro-kernel multiplies at once: row_tile × col_tile results, depth_tile terms at a time.
struct Tile {
  std::int64_t rows, cols, depth;
  std::int64_t max_depth;  // of a chunk
  std::size_t element;     // bytes of a packed element
};
inline constexpr Tile kTileAvx2{4, 24, 1, 384, 4};
inline constexpr Tile kTileAvx512{8, 48, 1, 768, 4};
inline constexpr Tile kTileAmx{32, 32, 32, 768, 2};

// How a product is cut. The cut of the depth depends on the depth alone, so that every result is summed in
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
// sums: whether partial sums over the depth need a place of their own (C is not fp32).
Blocking block(const Extent& extent, const Tile& tile, bool sums, const DeviceInfo& device);

// forward_skinny: M ≤ kSkinnyRows, as when tokens are generated one by one.
inline constexpr std::int64_t kSkinnyRows = 16;

namespace avx2 {
void forward(const Context& context, const MatmulForward& args);
void pack(const Context& context, const Tensor& weight, const Tensor& packed);  // fp32
void forward_skinny(const Context& context, const MatmulForward& args);
void dx(const Context& context, const MatmulDx& args);
void dw(const Context& context, const MatmulDw& args);
// What is left of an operation after its product, which lies in `sums`, contiguous: all that follows the sums
// of forward and dx, and dw's dbias.
void finish(const Context& context, const MatmulForward& args, const float* sums);
void finish(const Context& context, const MatmulDx& args, const float* sums);
void finish(const Context& context, const MatmulDw& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const MatmulForward& args);
void pack(const Context& context, const Tensor& weight, const Tensor& packed);  // fp32
void forward_skinny(const Context& context, const MatmulForward& args);
void dx(const Context& context, const MatmulDx& args);
void dw(const Context& context, const MatmulDw& args);
// What is left of an operation after its product, which lies in `sums`, contiguous: all that follows the sums
// of forward and dx, and dw's dbias.
void finish(const Context& context, const MatmulForward& args, const float* sums);
void finish(const Context& context, const MatmulDx& args, const float* sums);
void finish(const Context& context, const MatmulDw& args);
}  // namespace avx512

namespace amx_bf16 {
void forward(const Context& context, const MatmulForward& args);
void pack(const Context& context, const Tensor& weight, const Tensor& packed);
void dx(const Context& context, const MatmulDx& args);
void dw(const Context& context, const MatmulDw& args);
}  // namespace amx_bf16

// How a GPU's blocks share out a product (cuda/schedule.cuh).
enum class Schedule : std::uint8_t { block, persistent, stream_k };

namespace cuda {
// bf16 and fp16 on Hopper's tensor cores (cuda/wgmma.cuh), the tile chosen by selector.hpp.
template <Schedule schedule>
struct Wgmma {
  static std::string refuse_forward(const MatmulForwardProblem& p, const DeviceInfo& device);
  static std::string refuse_dx(const MatmulDxProblem& p, const DeviceInfo& device);
  static std::string refuse_dw(const MatmulDwProblem& p, const DeviceInfo& device);
  static void forward(const Context& context, const MatmulForward& args);
  static void dx(const Context& context, const MatmulDx& args);
  static void dw(const Context& context, const MatmulDw& args);
  static std::size_t forward_workspace(const MatmulForwardProblem& p, const DeviceInfo& device);
  static std::size_t dx_workspace(const MatmulDxProblem& p, const DeviceInfo& device);
  static std::size_t dw_workspace(const MatmulDwProblem& p, const DeviceInfo& device);
  static double forward_cost(const MatmulForwardProblem& p, const DeviceInfo& device);
  static double dx_cost(const MatmulDxProblem& p, const DeviceInfo& device);
  static double dw_cost(const MatmulDwProblem& p, const DeviceInfo& device);
};

// By cuBLASLt; unfused: it multiplies only, and everything around a product is a kernel of ours.
std::string refuse_cublaslt(DType dtype, const DeviceInfo& device);
std::size_t cublaslt_workspace();
std::size_t cublaslt_dw_workspace(std::int64_t M, std::int64_t N);
void cublaslt_forward(const Context& context, const MatmulForward& args);
void cublaslt_dx(const Context& context, const MatmulDx& args);
void cublaslt_dw(const Context& context, const MatmulDw& args);
// With that one of the algorithms that the library's heuristic proposes (the last where there are fewer), for
// the bench. Returns how many it proposes.
int cublaslt_proposal(const Context& context, const MatmulForward& args, int proposal);
int cublaslt_proposal(const Context& context, const MatmulDx& args, int proposal);
int cublaslt_proposal(const Context& context, const MatmulDw& args, int proposal);
void cublaslt_unfused_forward(const Context& context, const MatmulForward& args);
void cublaslt_unfused_dx(const Context& context, const MatmulDx& args);

// bf16 and fp16 on sm_80's tensor cores; any shape and alignment.
std::string refuse_mma(DType dtype, const Extent& extent, const DeviceInfo& device);
void mma_forward(const Context& context, const MatmulForward& args);
void mma_dx(const Context& context, const MatmulDx& args);
void mma_dw(const Context& context, const MatmulDw& args);
std::size_t mma_dw_workspace(std::int64_t M, std::int64_t N);

// In fp32 on the ordinary arithmetic units.
void tile128_forward(const Context& context, const MatmulForward& args);
void tile128_dx(const Context& context, const MatmulDx& args);
void tile128_dw(const Context& context, const MatmulDw& args);
}  // namespace cuda

namespace onednn {
void forward(const Context& context, const MatmulForward& args);
void dx(const Context& context, const MatmulDx& args);
void dw(const Context& context, const MatmulDw& args);
std::size_t workspace(const MatmulForwardProblem& problem, const DeviceInfo& device);
std::size_t workspace(const MatmulDxProblem& problem, const DeviceInfo& device);
}  // namespace onednn

}  // namespace warpwright::ops::matmul
