#include <algorithm>
#include <array>
#include <limits>

#include "ops/cpu/refuse.hpp"
#include "ops/padding/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kLengths = "padding.lengths";
constexpr std::string_view kPack = "padding.pack";
constexpr std::string_view kUnpack = "padding.unpack";
constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

PaddingLengthsProblem lengths_problem(const PaddingLengths& a) {
  require(static_cast<bool>(a.mask) && a.mask.shape.rank() == 2, kLengths, "mask must be (B, S)");
  const std::int64_t B = a.mask.shape[0], S = a.mask.shape[1];
  require(S <= 1 || a.mask.strides[1] == 1, kLengths, "rows of mask must be contiguous");
  require(a.mask.shape.elements() <= kMostRows, kLengths, "more rows than indices can count");
  require_tensor(kLengths, "cu_seqlens", a.cu_seqlens, DType::i32, {B + 1});
  require_tensor(kLengths, "indices", a.indices, DType::i32, {B * S});
  return {B, S, a.mask.dtype};
}

PaddingRowsProblem pack_problem(const PaddingPack& a) {
  require(a.x.shape.rank() == 2 && is_floating(a.x.dtype), kPack, "x must be (B·S, C) of a floating dtype");
  require(a.out.shape.rank() == 2, kPack, "out must be (R, C)");
  const std::int64_t R = a.out.shape[0], C = a.x.shape[1];
  require_tensor(kPack, "x", a.x, a.x.dtype, a.x.shape);
  require_tensor(kPack, "out", a.out, a.x.dtype, {R, C});
  require_tensor(kPack, "indices", a.indices, DType::i32, {R});
  return {R, a.x.shape[0], C, a.x.dtype};
}

PaddingRowsProblem unpack_problem(const PaddingUnpack& a) {
  require(a.x.shape.rank() == 2 && is_floating(a.x.dtype), kUnpack, "x must be (R, C) of a floating dtype");
  require(a.out.shape.rank() == 3, kUnpack, "out must be (B, S, C)");
  const std::int64_t R = a.x.shape[0], C = a.x.shape[1], B = a.out.shape[0], S = a.out.shape[1];
  require_tensor(kUnpack, "x", a.x, a.x.dtype, {R, C});
  require_tensor(kUnpack, "out", a.out, a.x.dtype, {B, S, C});
  require_tensor(kUnpack, "cu_seqlens", a.cu_seqlens, DType::i32, {B + 1});
  require(a.indices.shape.rank() == 1 && a.indices.shape[0] >= R, kUnpack,
          "indices are fewer than the rows of x");
  require_tensor(kUnpack, "indices", a.indices, DType::i32, a.indices.shape);
  return {R, B * S, C, a.x.dtype};
}

#if WARPWRIGHT_CUDA
template <class Problem>
std::string refuse_cpu_and_fp64(const Problem& p, const DeviceInfo& device) {
  if (device.device.kind != DeviceKind::cuda) return "runs on an NVIDIA GPU";
  return p.dtype != DType::f64 ? "" : "no fp64";
}
#endif

using Lengths = Variant<PaddingLengthsProblem, PaddingLengths>;
using Pack = Variant<PaddingRowsProblem, PaddingPack>;
using Unpack = Variant<PaddingRowsProblem, PaddingUnpack>;

constexpr std::array kLengthsVariants {
#if WARPWRIGHT_CUDA
  Lengths{"cuda.rows", refuse_cpu_and_fp64, padding::cuda::lengths},
#endif
      Lengths{"cpu.rows", refuse_other_devices, padding::cpu::lengths},
      Lengths{kReference, refuse_other_devices, padding::lengths_reference},
};
constexpr std::array kPackVariants {
#if WARPWRIGHT_CUDA
  Pack{"cuda.rows", refuse_cpu_and_fp64, padding::cuda::pack},
#endif
      Pack{"cpu.rows", refuse_other_devices, padding::cpu::pack},
      Pack{kReference, refuse_other_devices, padding::pack_reference},
};
constexpr std::array kUnpackVariants {
#if WARPWRIGHT_CUDA
  Unpack{"cuda.rows", refuse_cpu_and_fp64, padding::cuda::unpack},
#endif
      Unpack{"cpu.rows", refuse_other_devices, padding::cpu::unpack},
      Unpack{kReference, refuse_other_devices, padding::unpack_reference},
};

}  // namespace

std::string PaddingLengthsProblem::describe() const {
  return fmt::format("B={} S={} {}", B, S, name_of(dtype));
}
double PaddingLengthsProblem::flops() const {
  return static_cast<double>(B * S);
}
double PaddingLengthsProblem::bytes() const {
  return static_cast<double>(B * S) * static_cast<double>(size_of(dtype) + 4) + 4.0 * static_cast<double>(B);
}

std::string PaddingRowsProblem::describe() const {
  return fmt::format("rows={} padded={} C={} {}", rows, padded, C, name_of(dtype));
}
double PaddingRowsProblem::flops() const {
  return 0;
}
double PaddingRowsProblem::bytes() const {
  return static_cast<double>(rows + std::min(rows, padded)) * static_cast<double>(C) *
             static_cast<double>(size_of(dtype)) +
         4.0 * static_cast<double>(rows);
}

const Op<PaddingLengthsProblem, PaddingLengths>& padding_lengths_op() {
  static const Op<PaddingLengthsProblem, PaddingLengths> op{kLengths, kLengthsVariants, lengths_problem};
  return op;
}
const Op<PaddingRowsProblem, PaddingPack>& padding_pack_op() {
  static const Op<PaddingRowsProblem, PaddingPack> op{kPack, kPackVariants, pack_problem};
  return op;
}
const Op<PaddingRowsProblem, PaddingUnpack>& padding_unpack_op() {
  static const Op<PaddingRowsProblem, PaddingUnpack> op{kUnpack, kUnpackVariants, unpack_problem};
  return op;
}

}  // namespace warpwright::ops
