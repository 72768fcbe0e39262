#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/embedding/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "embedding.forward";
constexpr std::string_view kBackward = "embedding.backward";

EmbeddingForwardProblem forward_problem(const EmbeddingForward& a) {
  require(a.out.shape.rank() == 2 && a.out.shape[1] > 0, kForward, "out must be (N, C) with C ≥ 1");
  require(a.wte.shape.rank() == 2, kForward, "wte must be (V, C)");
  require(a.wpe.shape.rank() == 2, kForward, "wpe must be (P, C)");
  const std::int64_t N = a.out.shape[0], C = a.out.shape[1], V = a.wte.shape[0], P = a.wpe.shape[0];
  require_tensor(kForward, "tokens", a.tokens, DType::i32, {N});
  require_tensor(kForward, "positions", a.positions, DType::i32, {N});
  require_tensor(kForward, "wte", a.wte, a.out.dtype, {V, C});
  require_tensor(kForward, "wpe", a.wpe, a.out.dtype, {P, C});
  require_tensor(kForward, "out", a.out, a.out.dtype, {N, C});
  return {N, C, V, P, a.out.dtype};
}

EmbeddingBackwardProblem backward_problem(const EmbeddingBackward& a) {
  require(a.dout.shape.rank() == 2 && a.dout.shape[1] > 0, kBackward, "dout must be (N, C) with C ≥ 1");
  require(a.dwte.shape.rank() == 2, kBackward, "dwte must be (V, C)");
  require(a.dwpe.shape.rank() == 2, kBackward, "dwpe must be (P, C)");
  const std::int64_t N = a.dout.shape[0], C = a.dout.shape[1], V = a.dwte.shape[0], P = a.dwpe.shape[0];
  const DType accumulation = accumulation_dtype(a.dout.dtype);
  require_tensor(kBackward, "tokens", a.tokens, DType::i32, {N});
  require_tensor(kBackward, "positions", a.positions, DType::i32, {N});
  require_tensor(kBackward, "dout", a.dout, a.dout.dtype, {N, C});
  require_tensor(kBackward, "dwte", a.dwte, accumulation, {V, C});
  require_tensor(kBackward, "dwpe", a.dwpe, accumulation, {P, C});
  return {N, C, V, P, a.dout.dtype, a.dwte_store, a.dwpe_store};
}

#if WARPWRIGHT_CUDA
std::string refuse_sorted(const EmbeddingBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // what it sorts, it counts with 32 bits
  return p.N < kMost && p.V + p.P < kMost ? "" : "more than 2^30 tokens or rows";
}

std::string refuse_plain(const EmbeddingBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  return p.N < (std::int64_t{1} << 31) ? "" : "more than 2^31 − 1 tokens";  // a block each
}
#endif

using Forward = Variant<EmbeddingForwardProblem, EmbeddingForward>;
using Backward = Variant<EmbeddingBackwardProblem, EmbeddingBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.packed", refuse_cuda, embedding::cuda::packed_forward},
      Forward{"cuda.plain", refuse_cuda, embedding::cuda::plain_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, embedding::avx512::forward},
      Forward{"cpu.avx2", refuse_avx2, embedding::avx2::forward},
      Forward{kReference, refuse_other_devices, embedding::forward_reference},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.sorted", refuse_sorted, embedding::cuda::sorted_backward, embedding::cuda::sorted_workspace},
      Backward{"cuda.plain", refuse_plain, embedding::cuda::plain_backward},
#endif
      Backward{"cpu.avx512", refuse_avx512, embedding::avx512::backward},
      Backward{"cpu.avx2", refuse_avx2, embedding::avx2::backward},
      Backward{kReference, refuse_other_devices, embedding::backward_reference},
};

double product(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

}  // namespace

std::string EmbeddingForwardProblem::describe() const {
  return fmt::format("N={} C={} V={} P={} {}", N, C, V, P, name_of(dtype));
}
double EmbeddingForwardProblem::flops() const {
  return product(N, C);
}
// Rows of a table that several n name are read once.
double EmbeddingForwardProblem::bytes() const {
  const double rows = product(N + std::min(N, V) + std::min(N, P), C);
  return rows * static_cast<double>(size_of(dtype)) + 8.0 * static_cast<double>(N);
}

std::string EmbeddingBackwardProblem::describe() const {
  return fmt::format("N={} C={} V={} P={} {} dwte{} dwpe{}", N, C, V, P, name_of(dtype), sign_of(dwte_store),
                     sign_of(dwpe_store));
}
double EmbeddingBackwardProblem::flops() const {
  return 2 * product(N, C);
}
// += reads and writes the rows that are named, = writes the whole gradient.
double EmbeddingBackwardProblem::bytes() const {
  const auto gradient = [&](std::int64_t rows, Store store) {
    return store == Store::add ? 2.0 * product(std::min(N, rows), C) : product(rows, C);
  };
  const double accumulation = static_cast<double>(size_of(accumulation_dtype(dtype)));
  return product(N, C) * static_cast<double>(size_of(dtype)) + 8.0 * static_cast<double>(N) +
         (gradient(V, dwte_store) + gradient(P, dwpe_store)) * accumulation;
}

const Op<EmbeddingForwardProblem, EmbeddingForward>& embedding_forward_op() {
  static const Op<EmbeddingForwardProblem, EmbeddingForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<EmbeddingBackwardProblem, EmbeddingBackward>& embedding_backward_op() {
  static const Op<EmbeddingBackwardProblem, EmbeddingBackward> op{kBackward, kBackwardVariants,
                                                                  backward_problem};
  return op;
}

}  // namespace warpwright::ops
