#include <fmt/format.h>

#include <algorithm>

#include "ops/embedding/embedding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "embedding.forward";
constexpr std::string_view kBackwardName = "embedding.backward";

double product(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

double id_bytes(std::int64_t N, std::int64_t P) {
  return (P > 0 ? 8.0 : 4.0) * static_cast<double>(N);
}

// The rows P of the table of positions: 0 without positions.
std::int64_t require_positions(std::string_view operation, const Tensor& positions, std::int64_t N,
                               std::string_view name, const Tensor& table, DType dtype, std::int64_t C) {
  if (!positions && !table) return 0;
  require(table.shape.rank() == 2 && table.shape[0] > 0, operation,
          fmt::format("{} must be (P, C) with P ≥ 1", name));
  require_tensor(operation, "positions", positions, DType::i32, {N});
  require_tensor(operation, name, table, dtype, {table.shape[0], C});
  return table.shape[0];
}

}  // namespace

EmbeddingForwardProblem EmbeddingForward::problem() const {
  require(out.shape.rank() == 2 && out.shape[1] > 0, kForwardName, "out must be (N, C) with C ≥ 1");
  require(wte.shape.rank() == 2, kForwardName, "wte must be (V, C)");
  const std::int64_t N = out.shape[0], C = out.shape[1], V = wte.shape[0];
  const std::int64_t P = require_positions(kForwardName, positions, N, "wpe", wpe, out.dtype, C);
  require_tensor(kForwardName, "tokens", tokens, DType::i32, {N});
  require_tensor(kForwardName, "wte", wte, out.dtype, {V, C});
  require_tensor(kForwardName, "out", out, out.dtype, {N, C});
  return {.N = N, .C = C, .V = V, .P = P, .dtype = out.dtype, .aligned = begin_at_packs(wte, wpe, out)};
}

EmbeddingBackwardProblem EmbeddingBackward::problem() const {
  require(dout.shape.rank() == 2 && dout.shape[1] > 0, kBackwardName, "dout must be (N, C) with C ≥ 1");
  require(dwte.shape.rank() == 2, kBackwardName, "dwte must be (V, C)");
  const std::int64_t N = dout.shape[0], C = dout.shape[1], V = dwte.shape[0];
  const DType accumulation = accumulation_dtype(dout.dtype);
  const std::int64_t P = require_positions(kBackwardName, positions, N, "dwpe", dwpe, accumulation, C);
  require_tensor(kBackwardName, "tokens", tokens, DType::i32, {N});
  require_tensor(kBackwardName, "dout", dout, dout.dtype, {N, C});
  require_tensor(kBackwardName, "dwte", dwte, accumulation, {V, C});
  return {.N = N,
          .C = C,
          .V = V,
          .P = P,
          .dtype = dout.dtype,
          .dwte_store = dwte_store,
          .dwpe_store = dwpe_store,
          .aligned = begin_at_packs(dout, dwte, dwpe)};
}

std::string EmbeddingForwardProblem::describe() const {
  return fmt::format("N={} C={} V={} P={} {}{}", N, C, V, P, name_of(dtype), unaligned_note(aligned));
}
double EmbeddingForwardProblem::flops() const {
  return P > 0 ? product(N, C) : 0;
}
// A row of a table counts once, even if several n select it.
double EmbeddingForwardProblem::bytes() const {
  const double rows = product(N + std::min(N, V) + std::min(N, P), C);
  return rows * static_cast<double>(size_of(dtype)) + id_bytes(N, P);
}

std::string EmbeddingBackwardProblem::describe() const {
  const std::string positions = P > 0 ? fmt::format(" dwpe{}", sign_of(dwpe_store)) : "";
  return fmt::format("N={} C={} V={} P={} {} dwte{}{}{}", N, C, V, P, name_of(dtype), sign_of(dwte_store),
                     positions, unaligned_note(aligned));
}
double EmbeddingBackwardProblem::flops() const {
  return (P > 0 ? 2 : 1) * product(N, C);
}
// With +=, the selected rows are read and written. With =, the whole gradient is written.
double EmbeddingBackwardProblem::bytes() const {
  const auto gradient = [&](std::int64_t rows, Store store) {
    return store == Store::add ? 2.0 * product(std::min(N, rows), C) : product(rows, C);
  };
  const double accumulation = static_cast<double>(size_of(accumulation_dtype(dtype)));
  return product(N, C) * static_cast<double>(size_of(dtype)) + id_bytes(N, P) +
         (gradient(V, dwte_store) + gradient(P, dwpe_store)) * accumulation;
}

}  // namespace warpwright::ops
