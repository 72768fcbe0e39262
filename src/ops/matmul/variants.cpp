#include "ops/variants.hpp"

#include <algorithm>

#include "ops/matmul/matmul.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cpu.avx512_skinny",
    "cpu.amx_bf16",
    "cpu.avx512_bf16",
    "cpu.avx512",
    "cpu.avx2_skinny",
    "cpu.avx2",
    "cpu.onednn",
    "cuda.few_rows",
    "cuda.persistent",
    "cuda.stream_k",
    "cuda.block",
    "cuda.cublaslt",
    "cuda.cublaslt_unfused",
    "cuda.mma_block",
    "cuda.mma_persistent",
    "cuda.mma_stream_k",
    "cuda.tile128",
    "cuda.tile128_persistent",
    "cuda.tile128_stream_k",
    "cuda.ladder_float4",
    "reference",
};

constexpr std::string_view kDx[] = {
    "cpu.amx_bf16",
    "cpu.avx512_bf16",
    "cpu.avx512",
    "cpu.avx2",
    "cpu.onednn",
    "cuda.persistent",
    "cuda.stream_k",
    "cuda.block",
    "cuda.cublaslt",
    "cuda.cublaslt_unfused",
    "cuda.mma_block",
    "cuda.mma_persistent",
    "cuda.mma_stream_k",
    "cuda.tile128",
    "cuda.tile128_persistent",
    "cuda.tile128_stream_k",
    "cuda.ladder_library",
    "reference",
};

constexpr std::string_view kDw[] = {
    "cpu.amx_bf16",
    "cpu.avx512_bf16",
    "cpu.avx512",
    "cpu.avx2",
    "cpu.onednn",
    "cuda.persistent",
    "cuda.stream_k",
    "cuda.block",
    "cuda.cublaslt",
    "cuda.mma_block",
    "cuda.mma_persistent",
    "cuda.mma_stream_k",
    "cuda.tile128",
    "cuda.tile128_persistent",
    "cuda.tile128_stream_k",
    "cuda.ladder_library",
    "reference",
};

// Variants of the forward that read the number of rows on the device.
constexpr std::string_view kCountRows[] = {"cuda.persistent", "cuda.stream_k", "cuda.block"};

}  // namespace

const Op<MatmulForward>& matmul_forward_op() {
  return operation<MatmulForward, kForward>("matmul.forward");
}

const Op<MatmulDx>& matmul_dx_op() {
  return operation<MatmulDx, kDx>("matmul.dx");
}

const Op<MatmulDw>& matmul_dw_op() {
  return operation<MatmulDw, kDw>("matmul.dw");
}

bool matmul_counts_rows(Context& context, const MatmulForwardProblem& problem) {
  const std::string_view name = planned(context, matmul_forward_op(), problem).variant->name;
  return problem.rows_counted && std::ranges::find(kCountRows, name) != std::end(kCountRows);
}

std::vector<OpInfo> matmul_ops(const DeviceInfo& device) {
  return {info_of(matmul_forward_op(), device), info_of(matmul_dx_op(), device),
          info_of(matmul_dw_op(), device)};
}

}  // namespace warpwright::ops
