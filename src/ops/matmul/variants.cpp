#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/matmul/kernels.hpp"
#include "ops/matmul/packed.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "matmul.forward";
constexpr std::string_view kDx = "matmul.dx";
constexpr std::string_view kDw = "matmul.dw";

// A matrix whose rows may be strided.
void require_rows(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape) {
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require(shape[1] <= 1 || tensor.strides[1] == 1, operation,
          fmt::format("{} must have contiguous elements within a row", argument));
  require(shape[0] <= 1 || tensor.strides[0] >= shape[1], operation,
          fmt::format("rows of {} overlap", argument));
}

void require_packed(const MatmulForward& a) {
  require_dtype(kForward, "packed", a.packed, DType::u8);
  require(a.packed.shape.rank() == 1 && reinterpret_cast<std::uintptr_t>(a.packed.data) % 64 == 0, kForward,
          "packed must be (packed_bytes) and start at a multiple of 64 bytes");
}

// A result: of the factors' dtype, or in fp32 where that has 16 bits.
void require_result(std::string_view operation, std::string_view argument, const Tensor& result,
                    DType factors, const Shape& shape) {
  const bool widened = size_of(factors) == 2 && result.dtype == DType::f32;
  require_rows(operation, argument, result, widened ? DType::f32 : factors, shape);
}

MatmulForwardProblem forward_problem(const MatmulForward& a) {
  require(a.x.shape.rank() == 2, kForward, "x must be (M, K)");
  require(a.weight.shape.rank() == 2, kForward, "weight must be (N, K)");
  const std::int64_t M = a.x.shape[0], K = a.x.shape[1], N = a.weight.shape[0];
  require_rows(kForward, "x", a.x, a.x.dtype, {M, K});
  a.packed ? require_packed(a) : require_tensor(kForward, "weight", a.weight, a.x.dtype, {N, K});
  if (a.bias) require_tensor(kForward, "bias", a.bias, a.x.dtype, {N});
  require_result(kForward, "out", a.out, a.x.dtype, {M, N});
  if (a.preact) require_rows(kForward, "preact", a.preact, a.x.dtype, {M, N});
  if (a.residual) require_rows(kForward, "residual", a.residual, a.out.dtype, {M, N});
  require(std::isfinite(a.scale), kForward, "scale must be finite");
  if (a.rows) require_tensor(kForward, "rows", a.rows, DType::i32, {1});
  return {M,
          N,
          K,
          a.x.dtype,
          static_cast<bool>(a.bias),
          static_cast<bool>(a.preact),
          a.activation,
          a.batch_invariant,
          static_cast<bool>(a.packed),
          a.packed ? a.packed.shape[0] : 0,
          static_cast<bool>(a.rows),
          static_cast<bool>(a.residual),
          a.scale != 1,
          a.out.dtype != a.x.dtype};
}

MatmulDxProblem dx_problem(const MatmulDx& a) {
  require(a.dout.shape.rank() == 2, kDx, "dout must be (M, N)");
  require(a.weight.shape.rank() == 2, kDx, "weight must be (N, K)");
  const std::int64_t M = a.dout.shape[0], N = a.dout.shape[1], K = a.weight.shape[1];
  require_rows(kDx, "dout", a.dout, a.dout.dtype, {M, N});
  require_tensor(kDx, "weight", a.weight, a.dout.dtype, {N, K});
  require_result(kDx, "dx", a.dx, a.dout.dtype, {M, K});
  require(static_cast<bool>(a.preact) == (a.activation != Activation::none), kDx,
          "preact is given exactly where there is an activation");
  if (a.preact) require_rows(kDx, "preact", a.preact, a.dout.dtype, {M, K});
  return {M, N, K, a.dout.dtype, a.activation, a.dx.dtype != a.dout.dtype};
}

MatmulDwProblem dw_problem(const MatmulDw& a) {
  require(a.dout.shape.rank() == 2, kDw, "dout must be (M, N)");
  require(a.x.shape.rank() == 2, kDw, "x must be (M, K)");
  const std::int64_t M = a.x.shape[0], K = a.x.shape[1], N = a.dout.shape[1];
  const DType accumulation = accumulation_dtype(a.x.dtype);
  require_rows(kDw, "x", a.x, a.x.dtype, {M, K});
  require_rows(kDw, "dout", a.dout, a.x.dtype, {M, N});
  require_tensor(kDw, "dweight", a.dweight, accumulation, {N, K});
  if (a.dbias) require_tensor(kDw, "dbias", a.dbias, accumulation, {N});
  return {M, N, K, a.x.dtype, static_cast<bool>(a.dbias), a.store};
}

constexpr const char* kNotInvariant = "the order of its sums depends on the number of rows";

std::string refuse_skinny_avx2(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (p.batch_invariant) return kNotInvariant;
  if (p.M > matmul::kSkinnyRows) return fmt::format("more than {} rows", matmul::kSkinnyRows);
  return refuse_avx2(p, device);
}

std::string refuse_skinny_avx512(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (p.batch_invariant) return kNotInvariant;
  if (p.M > matmul::kSkinnyRows) return fmt::format("more than {} rows", matmul::kSkinnyRows);
  return refuse_avx512(p, device);
}

// The kernels that packed.hpp lays weights out for take them; the others read them as they lie.
constexpr const char* kNotPacked = "takes no weights in another kernel's layout";
std::string refuse_packed_bytes(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (!p.packed) return "";
  const std::int64_t bytes = packed_bytes(p.N, p.K, p.dtype, device);
  return p.packed_bytes == bytes ? ""
                                 : fmt::format("packed has {} bytes, its layout {}", p.packed_bytes, bytes);
}
std::string refuse_forward_avx512(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (p.packed && p.dtype != DType::f32) return kNotPacked;
  const std::string reason = refuse_avx512(p, device);
  return reason.empty() ? refuse_packed_bytes(p, device) : reason;
}
std::string refuse_forward_avx2(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (p.packed && (p.dtype != DType::f32 || device.cpu.avx512)) return kNotPacked;
  const std::string reason = refuse_avx2(p, device);
  return reason.empty() ? refuse_packed_bytes(p, device) : reason;
}
template <auto refuse>
std::string refuse_packed(const MatmulForwardProblem& p, const DeviceInfo& device) {
  return p.packed ? kNotPacked : refuse(p, device);
}

template <class Problem>
std::string refuse_amx(const Problem& p, const DeviceInfo& device) {
  if (p.dtype != DType::bf16) return fmt::format("multiplies bf16, not {}", name_of(p.dtype));
  return device.cpu.amx_bf16 ? refuse_avx512(p, device) : "the processor or the system offers no AMX";
}
std::string refuse_forward_amx(const MatmulForwardProblem& p, const DeviceInfo& device) {
  const std::string reason = refuse_amx(p, device);
  return reason.empty() ? refuse_packed_bytes(p, device) : reason;
}

#if WARPWRIGHT_ONEDNN
template <class Problem>
std::string refuse_onednn(const Problem& p, const DeviceInfo& device) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.batch_invariant) return kNotInvariant;
  }
  if (p.M == 0 || p.N == 0 || p.K == 0) return "an empty product";
  return refuse_avx2(p, device);
}

std::string refuse_onednn_dw(const MatmulDwProblem& p, const DeviceInfo& device) {
  if (p.dtype == DType::bf16 && (p.N == 1 || p.K == 1)) {
    return "oneDNN's sums of a single row or column depend on the number of threads";
  }
  return refuse_onednn(p, device);
}
#endif

template <class Problem>
DType result_dtype(const Problem& p) {
  if constexpr (std::is_same_v<Problem, MatmulDwProblem>) {
    return accumulation_dtype(p.dtype);
  } else {
    return p.widened ? DType::f32 : p.dtype;
  }
}

template <const matmul::Tile& tile, class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo& device) {
  return matmul::block(matmul::extent_of(p), tile, result_dtype(p) != DType::f32, device).workspace;
}

std::size_t skinny_workspace(const MatmulForwardProblem& p, const DeviceInfo&) {
  return p.dtype == DType::f32 ? 0 : static_cast<std::size_t>(p.M * p.K) * sizeof(float);
}

#if WARPWRIGHT_CUDA
template <class Problem>
std::string refuse_cublaslt(const Problem& p, const DeviceInfo& device) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.batch_invariant) return kNotInvariant;
  }
  return matmul::cuda::refuse_cublaslt(p.dtype, device);
}

template <class Problem>
std::size_t cublaslt_workspace(const Problem&, const DeviceInfo&) {
  return matmul::cuda::cublaslt_workspace();
}
std::size_t cublaslt_dw_workspace(const MatmulDwProblem& p, const DeviceInfo&) {
  return matmul::cuda::cublaslt_dw_workspace(p.M, p.N);
}
// Where rows are counted on the device the library computes as many as there may be, ours those that there
// are: it stands behind ours then, and before the last resorts.
template <class Problem>
double cublaslt_cost(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.rows_counted) return 1e7;
  }
  return matmul::library_seconds(matmul::request_of(p));
}
template <class Problem>
std::string refuse_mma(const Problem& p, const DeviceInfo& device) {
  return matmul::cuda::refuse_mma(p.dtype, matmul::extent_of(p), device);
}
// Behind the others that multiply 16-bit factors.
template <class Problem>
double next_to_last(const Problem&, const DeviceInfo&) {
  return 1e8;
}
// Behind all others.
template <class Problem>
double last_resort(const Problem&, const DeviceInfo&) {
  return 1e9;
}
std::size_t mma_dw_workspace(const MatmulDwProblem& p, const DeviceInfo&) {
  return matmul::cuda::mma_dw_workspace(p.M, p.N);
}
#endif

#if WARPWRIGHT_CUDA
using Block = matmul::cuda::Wgmma<matmul::Schedule::block>;
using Persistent = matmul::cuda::Wgmma<matmul::Schedule::persistent>;
using StreamK = matmul::cuda::Wgmma<matmul::Schedule::stream_k>;
#endif

using Forward = Variant<MatmulForwardProblem, MatmulForward>;
using Dx = Variant<MatmulDxProblem, MatmulDx>;
using Dw = Variant<MatmulDwProblem, MatmulDw>;

constexpr std::array kForwardVariants {
  Forward{"cpu.avx512_skinny", refuse_packed<refuse_skinny_avx512>, matmul::avx512::forward_skinny,
          skinny_workspace},
      Forward{"cpu.amx_bf16", refuse_forward_amx, matmul::amx_bf16::forward, workspace<matmul::kTileAmx>},
      Forward{"cpu.avx512", refuse_forward_avx512, matmul::avx512::forward, workspace<matmul::kTileAvx512>},
      Forward{"cpu.avx2_skinny", refuse_packed<refuse_skinny_avx2>, matmul::avx2::forward_skinny,
              skinny_workspace},
      Forward{"cpu.avx2", refuse_forward_avx2, matmul::avx2::forward, workspace<matmul::kTileAvx2>},
#if WARPWRIGHT_ONEDNN
      Forward{"cpu.onednn", refuse_packed<refuse_onednn<MatmulForwardProblem>>, matmul::onednn::forward,
              matmul::onednn::workspace},
#endif
#if WARPWRIGHT_CUDA
      Forward{"cuda.persistent", refuse_packed<Persistent::refuse_forward>, Persistent::forward,
              Persistent::forward_workspace, Persistent::forward_cost},
      Forward{"cuda.stream_k", refuse_packed<StreamK::refuse_forward>, StreamK::forward,
              StreamK::forward_workspace, StreamK::forward_cost},
      Forward{"cuda.block", refuse_packed<Block::refuse_forward>, Block::forward, Block::forward_workspace,
              Block::forward_cost},
      Forward{"cuda.cublaslt", refuse_packed<refuse_cublaslt<MatmulForwardProblem>>,
              matmul::cuda::cublaslt_forward, cublaslt_workspace, cublaslt_cost},
      Forward{"cuda.cublaslt_unfused", refuse_packed<refuse_cublaslt<MatmulForwardProblem>>,
              matmul::cuda::cublaslt_unfused_forward, cublaslt_workspace, cublaslt_cost},
      Forward{"cuda.mma", refuse_packed<refuse_mma<MatmulForwardProblem>>, matmul::cuda::mma_forward, nullptr,
              next_to_last},
      Forward{"cuda.tile128", refuse_packed<refuse_cuda<MatmulForwardProblem>>, matmul::cuda::tile128_forward,
              nullptr, last_resort},
#endif
      Forward{kReference, refuse_packed<refuse_other_devices<MatmulForwardProblem>>,
              matmul::forward_reference},
};

constexpr std::array kDxVariants {
  Dx{"cpu.amx_bf16", refuse_amx, matmul::amx_bf16::dx, workspace<matmul::kTileAmx>},
      Dx{"cpu.avx512", refuse_avx512, matmul::avx512::dx, workspace<matmul::kTileAvx512>},
      Dx{"cpu.avx2", refuse_avx2, matmul::avx2::dx, workspace<matmul::kTileAvx2>},
#if WARPWRIGHT_ONEDNN
      Dx{"cpu.onednn", refuse_onednn, matmul::onednn::dx, matmul::onednn::workspace},
#endif
#if WARPWRIGHT_CUDA
      Dx{"cuda.persistent", Persistent::refuse_dx, Persistent::dx, Persistent::dx_workspace,
         Persistent::dx_cost},
      Dx{"cuda.stream_k", StreamK::refuse_dx, StreamK::dx, StreamK::dx_workspace, StreamK::dx_cost},
      Dx{"cuda.block", Block::refuse_dx, Block::dx, Block::dx_workspace, Block::dx_cost},
      Dx{"cuda.cublaslt", refuse_cublaslt, matmul::cuda::cublaslt_dx, cublaslt_workspace, cublaslt_cost},
      Dx{"cuda.cublaslt_unfused", refuse_cublaslt, matmul::cuda::cublaslt_unfused_dx, cublaslt_workspace,
         cublaslt_cost},
      Dx{"cuda.mma", refuse_mma, matmul::cuda::mma_dx, nullptr, next_to_last},
      Dx{"cuda.tile128", refuse_cuda, matmul::cuda::tile128_dx, nullptr, last_resort},
#endif
      Dx{kReference, refuse_other_devices, matmul::dx_reference},
};

constexpr std::array kDwVariants {
  Dw{"cpu.amx_bf16", refuse_amx, matmul::amx_bf16::dw, workspace<matmul::kTileAmx>},
      Dw{"cpu.avx512", refuse_avx512, matmul::avx512::dw, workspace<matmul::kTileAvx512>},
      Dw{"cpu.avx2", refuse_avx2, matmul::avx2::dw, workspace<matmul::kTileAvx2>},
#if WARPWRIGHT_ONEDNN
      Dw{"cpu.onednn", refuse_onednn_dw, matmul::onednn::dw},
#endif
#if WARPWRIGHT_CUDA
      Dw{"cuda.persistent", Persistent::refuse_dw, Persistent::dw, Persistent::dw_workspace,
         Persistent::dw_cost},
      Dw{"cuda.stream_k", StreamK::refuse_dw, StreamK::dw, StreamK::dw_workspace, StreamK::dw_cost},
      Dw{"cuda.block", Block::refuse_dw, Block::dw, Block::dw_workspace, Block::dw_cost},
      Dw{"cuda.cublaslt", refuse_cublaslt, matmul::cuda::cublaslt_dw, cublaslt_dw_workspace, cublaslt_cost},
      Dw{"cuda.mma", refuse_mma, matmul::cuda::mma_dw, mma_dw_workspace, next_to_last},
      Dw{"cuda.tile128", refuse_cuda, matmul::cuda::tile128_dw, nullptr, last_resort},
#endif
      Dw{kReference, refuse_other_devices, matmul::dw_reference},
};

double product(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}
double element_bytes(DType dtype) {
  return static_cast<double>(size_of(dtype));
}

}  // namespace

std::string MatmulForwardProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{}{}{}{}{}{}{}{}{}", M, N, K, name_of(dtype), bias ? " +bias" : "",
                     activation == Activation::none ? "" : fmt::format(" {}", name_of(activation)),
                     preact ? " +preact" : "", scaled ? " scaled" : "", residual ? " +residual" : "",
                     widened ? " in fp32" : "", batch_invariant ? " invariant" : "", packed ? " packed" : "",
                     rows_counted ? " counted" : "");
}
double MatmulForwardProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulForwardProblem::bytes() const {
  const double factors = product(M, K) + product(N, K), beside = bias ? static_cast<double>(N) : 0;
  return (factors + beside + (preact ? product(M, N) : 0)) * element_bytes(dtype) +
         (residual ? 2 : 1) * product(M, N) * element_bytes(result_dtype(*this));
}

std::string MatmulDxProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{}{}", M, N, K, name_of(dtype),
                     activation == Activation::none ? "" : fmt::format(" {}", name_of(activation)),
                     widened ? " in fp32" : "");
}
double MatmulDxProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulDxProblem::bytes() const {
  const double preact = activation == Activation::none ? 0 : product(M, K);
  return (product(M, N) + product(N, K) + preact) * element_bytes(dtype) +
         product(M, K) * element_bytes(result_dtype(*this));
}

std::string MatmulDwProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{} {}", M, N, K, name_of(dtype), bias ? " +bias" : "", sign_of(store));
}
double MatmulDwProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulDwProblem::bytes() const {
  const double passes = store == Store::add ? 2 : 1;
  const double gradients = product(N, K) + (bias ? static_cast<double>(N) : 0);
  return (product(M, N) + product(M, K)) * element_bytes(dtype) +
         passes * gradients * element_bytes(accumulation_dtype(dtype));
}

const Op<MatmulForwardProblem, MatmulForward>& matmul_forward_op() {
  static const Op<MatmulForwardProblem, MatmulForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

bool matmul_counts_rows(Context& context, const MatmulForwardProblem& problem) {
#if WARPWRIGHT_CUDA
  const auto& variant = planned(context, matmul_forward_op(), problem);
  return problem.rows_counted && (variant.run == Persistent::forward || variant.run == StreamK::forward ||
                                  variant.run == Block::forward);
#else
  static_cast<void>(context), static_cast<void>(problem);
  return false;
#endif
}

const Op<MatmulDxProblem, MatmulDx>& matmul_dx_op() {
  static const Op<MatmulDxProblem, MatmulDx> op{kDx, kDxVariants, dx_problem};
  return op;
}

const Op<MatmulDwProblem, MatmulDw>& matmul_dw_op() {
  static const Op<MatmulDwProblem, MatmulDw> op{kDw, kDwVariants, dw_problem};
  return op;
}

}  // namespace warpwright::ops
