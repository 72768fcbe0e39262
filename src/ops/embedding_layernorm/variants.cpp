#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/embedding_layernorm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "embedding_layernorm.forward";

EmbeddingLayerNormProblem forward_problem(const EmbeddingLayerNormForward& a) {
  require(a.out.shape.rank() == 2 && a.out.shape[1] > 0, kForward, "out must be (N, C) with C ≥ 1");
  require(a.word.shape.rank() == 2, kForward, "word must be (V, C)");
  require(a.position.shape.rank() == 2, kForward, "position must be (P, C)");
  require(static_cast<bool>(a.types) == static_cast<bool>(a.type), kForward,
          "types and type are given together or not at all");
  const std::int64_t N = a.out.shape[0], C = a.out.shape[1], V = a.word.shape[0], P = a.position.shape[0];
  const DType dtype = a.out.dtype;
  require_tensor(kForward, "tokens", a.tokens, DType::i32, {N});
  require_tensor(kForward, "positions", a.positions, DType::i32, {N});
  require_tensor(kForward, "word", a.word, dtype, {V, C});
  require_tensor(kForward, "position", a.position, dtype, {P, C});
  if (a.types) {
    require(a.type.shape.rank() == 2, kForward, "type must be (K, C)");
    require_tensor(kForward, "types", a.types, DType::i32, {N});
    require_tensor(kForward, "type", a.type, dtype, {a.type.shape[0], C});
  }
  require_tensor(kForward, "weight", a.weight, dtype, {C});
  require_tensor(kForward, "bias", a.bias, dtype, {C});
  require_tensor(kForward, "out", a.out, dtype, {N, C});
  if (a.rows) require_tensor(kForward, "rows", a.rows, DType::i32, {1});
  return {N, C, V, P, dtype, static_cast<bool>(a.types), static_cast<bool>(a.rows)};
}

// A row of fp32 for each thread.
std::size_t row_workspace(const EmbeddingLayerNormProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(device.threads) * static_cast<std::size_t>(p.C) * sizeof(float);
}

#if WARPWRIGHT_CUDA
std::string refuse_warp_row(const EmbeddingLayerNormProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  return embedding_layernorm::cuda::warp_row_packs(p.C, p.dtype) > 0
             ? ""
             : "the row is too long or not made of 16-byte packs";
}
#endif

using Forward = Variant<EmbeddingLayerNormProblem, EmbeddingLayerNormForward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", refuse_warp_row, embedding_layernorm::cuda::warp_row_forward},
      Forward{"cuda.warp_loop", refuse_cuda, embedding_layernorm::cuda::warp_loop_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, embedding_layernorm::avx512::forward, row_workspace},
      Forward{"cpu.avx2", refuse_avx2, embedding_layernorm::avx2::forward, row_workspace},
      Forward{kReference, refuse_other_devices, embedding_layernorm::forward_reference},
};

}  // namespace

int embedding_layernorm::cuda::warp_row_packs(std::int64_t C, DType dtype) {
  constexpr std::int64_t kWarp = 32, kMostPacks = 8;
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C > kWarp * kMostPacks * lanes) return 0;
  return static_cast<int>((C / lanes + kWarp - 1) / kWarp);
}

std::string EmbeddingLayerNormProblem::describe() const {
  return fmt::format("N={} C={} V={} P={} {}{}{}", N, C, V, P, name_of(dtype), types ? " +types" : "",
                     rows ? " +rows" : "");
}
double EmbeddingLayerNormProblem::flops() const {
  return (types ? 10.0 : 9.0) * static_cast<double>(N) * static_cast<double>(C);
}
// Rows of a table that several n name are read once.
double EmbeddingLayerNormProblem::bytes() const {
  const double rows_moved = static_cast<double>(N + std::min(N, V) + std::min(N, P) + 2);
  return rows_moved * static_cast<double>(C) * static_cast<double>(size_of(dtype)) +
         (types ? 12.0 : 8.0) * static_cast<double>(N);
}

const Op<EmbeddingLayerNormProblem, EmbeddingLayerNormForward>& embedding_layernorm_forward_op() {
  static const Op<EmbeddingLayerNormProblem, EmbeddingLayerNormForward> op{kForward, kForwardVariants,
                                                                           forward_problem};
  return op;
}

}  // namespace warpwright::ops
