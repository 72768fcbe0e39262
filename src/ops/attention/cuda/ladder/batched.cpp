#include "ops/attention/cuda/ladder/batched.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt_library.hpp"
#include "ops/op.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

using namespace matmul::cublaslt;

// A product's descriptors and kernel.
struct Plan {
  Description description;
  Layout a, b, out;
  cublasLtMatmulAlgo_t algorithm{};
};

// The library's matrices are stored by columns: a matrix (rows, cols) of ours is its matrix (cols, rows).
Layout layout_of(const BatchedFactor& factor, std::int64_t rows, std::int64_t cols,
                 const BatchedProduct& product) {
  if (factor.transposed) std::swap(rows, cols);
  Layout layout =
      make_layout(product.dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16F, cols, rows, factor.leading);
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(product.count));
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, factor.stride);
  return layout;
}

// Bytes to which every matrix and each of its rows is aligned.
std::uint32_t alignment_of(const BatchedFactor& factor, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return factor.leading * size % 16 == 0 && factor.stride * size % 16 == 0 ? 16
                                                                           : static_cast<std::uint32_t>(size);
}

Preference preference_of(const BatchedProduct& p) {
  Preference preference = make_preference();
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kBatchedWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b, p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a, p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.out, p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out, p.dtype));
  return preference;
}

// The library computes outᵀ = bᵀ · aᵀ, stored by columns.
Plan make_plan(const BatchedProduct& p, cublasLtHandle_t handle, bool tf32) {
  Plan plan;
  plan.description =
      make_description(tf32 && p.dtype == DType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.a = layout_of(p.a, p.rows, p.depth, p);
  plan.b = layout_of(p.b, p.depth, p.cols, p);
  plan.out = layout_of(p.out, p.rows, p.cols, p);
  const Preference preference = preference_of(p);
  cublasLtMatmulHeuristicResult_t proposal{};
  int found = 0;
  const cublasStatus_t status =
      library().heuristic(handle, plan.description.get(), plan.b.get(), plan.a.get(), plan.out.get(),
                          plan.out.get(), preference.get(), 1, &proposal, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing a kernel");
  if (found == 0 || proposal.state != CUBLAS_STATUS_SUCCESS) {
    throw Error(fmt::format("cuBLASLt has no algorithm for {} products ({}, {}) · ({}, {}) of {}", p.count,
                            p.rows, p.depth, p.depth, p.cols, name_of(p.dtype)),
                "attention", "force another variant, as WARPWRIGHT_FORCE=attention=cuda.staged");
  }
  plan.algorithm = proposal.algo;
  return plan;
}

}  // namespace

std::string refuse_batched() {
  return reason_for_absence();
}

void multiply(const Context& context, const BatchedProduct& product, const void* a, const void* b,
              void* out) {
  static constexpr char kOwner = 0;
  const cublasLtHandle_t handle = handle_of(context.device().device);
  const Plan& plan =
      derived(context, &kOwner, product, [&] { return make_plan(product, handle, context.device().tf32); });
  const float zero = 0;
  check(library().matmul(handle, plan.description.get(), &product.factor, b, plan.b.get(), a, plan.a.get(),
                         &zero, out, plan.out.get(), out, plan.out.get(), &plan.algorithm, context.scratch(),
                         kBatchedWorkspace, context.stream().get()),
        "attention's products");
}

}  // namespace warpwright::ops::attention::cuda
