#include <fmt/format.h>

#include <algorithm>

#include "ops/embedding_layernorm/embedding_layernorm.hpp"

namespace warpwright::ops {

EmbeddingLayerNormProblem EmbeddingLayerNormForward::problem() const {
  constexpr std::string_view kName = "embedding_layernorm.forward";
  require(out.shape.rank() == 2 && out.shape[1] > 0, kName, "out must be (N, C) with C ≥ 1");
  require(word.shape.rank() == 2, kName, "word must be (V, C)");
  require(position.shape.rank() == 2, kName, "position must be (P, C)");
  require(static_cast<bool>(types) == static_cast<bool>(type), kName,
          "types and type are given together or not at all");
  const std::int64_t N = out.shape[0], C = out.shape[1], V = word.shape[0], P = position.shape[0];
  const DType dtype = out.dtype;
  require_tensor(kName, "tokens", tokens, DType::i32, {N});
  require_tensor(kName, "positions", positions, DType::i32, {N});
  require_tensor(kName, "word", word, dtype, {V, C});
  require_tensor(kName, "position", position, dtype, {P, C});
  if (types) {
    require(type.shape.rank() == 2, kName, "type must be (K, C)");
    require_tensor(kName, "types", types, DType::i32, {N});
    require_tensor(kName, "type", type, dtype, {type.shape[0], C});
  }
  require_tensor(kName, "weight", weight, dtype, {C});
  require_tensor(kName, "bias", bias, dtype, {C});
  require_tensor(kName, "out", out, dtype, {N, C});
  if (rows) require_tensor(kName, "rows", rows, DType::i32, {1});
  return {.N = N,
          .C = C,
          .V = V,
          .P = P,
          .dtype = dtype,
          .types = static_cast<bool>(types),
          .rows = static_cast<bool>(rows),
          .aligned = begin_at_packs(word, position, type, weight, bias, out)};
}

std::string EmbeddingLayerNormProblem::describe() const {
  return fmt::format("N={} C={} V={} P={} {}{}{}{}", N, C, V, P, name_of(dtype), types ? " +types" : "",
                     rows ? " +rows" : "", unaligned_note(aligned));
}
double EmbeddingLayerNormProblem::flops() const {
  return (types ? 10.0 : 9.0) * static_cast<double>(N) * static_cast<double>(C);
}
// A row of a table counts once, even if several n select it.
double EmbeddingLayerNormProblem::bytes() const {
  const double rows_moved = static_cast<double>(N + std::min(N, V) + std::min(N, P) + 2);
  return rows_moved * static_cast<double>(C) * static_cast<double>(size_of(dtype)) +
         (types ? 12.0 : 8.0) * static_cast<double>(N);
}

}  // namespace warpwright::ops
