// The oracle: the formulas, one element at a time.
#include "ops/element.hpp"
#include "ops/padding/padding.hpp"

namespace warpwright::ops::padding {
namespace {

double mask_at(const Tensor& mask, std::int64_t at) {
  switch (mask.dtype) {
    case DType::u8:
      return mask.as<std::uint8_t>()[at];
    case DType::i32:
      return mask.as<std::int32_t>()[at];
    case DType::i64:
      return static_cast<double>(mask.as<std::int64_t>()[at]);
    default:
      return load_element(mask, at);
  }
}

void lengths_reference(const Context&, const PaddingLengths& args) {
  const std::int64_t B = args.mask.shape[0], S = args.mask.shape[1];
  auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
  auto& odd = *args.odd.as<std::int64_t>();
  std::int32_t n = 0;
  cu_seqlens[0] = 0;
  odd = -1;
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t s = 0; s < S; ++s) {
      const double value = mask_at(args.mask, b * args.mask.strides[0] + s);
      if (is_one(value)) indices[n++] = static_cast<std::int32_t>(b * S + s);
      if (is_odd(value) && odd < 0) odd = b * S + s;
    }
    cu_seqlens[b + 1] = n;
  }
  for (std::int64_t r = n; r < B * S; ++r) indices[r] = -1;
}

void pairs_reference(const Context&, const PaddingPairs& args) {
  const std::int64_t B = args.mask.shape[0], Lq = args.mask.shape[1], Lk = args.mask.shape[2];
  const Shape &from = args.mask.strides, &to = args.out.strides;
  auto& odd = *args.odd.as<std::int64_t>();
  odd = -1;
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t i = 0; i < Lq; ++i) {
      for (std::int64_t j = 0; j < Lk; ++j) {
        const double value = mask_at(args.mask, b * from[0] + i * from[1] + j);
        args.out.as<std::uint8_t>()[b * to[0] + i * to[1] + j] = is_one(value);
        if (is_odd(value) && odd < 0) odd = (b * Lq + i) * Lk + j;
      }
    }
  }
}

void pack_reference(const Context&, const PaddingPack& args) {
  const std::int64_t R = args.out.shape[0], C = args.out.shape[1];
  const Elements x(args.x), out(args.out);
  const auto* indices = args.indices.as<std::int32_t>();
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t c = 0; c < C && indices[r] >= 0; ++c) out.set(r * C + c, x[indices[r] * C + c]);
  }
}

void unpack_reference(const Context&, const PaddingUnpack& args) {
  const std::int64_t B = args.out.shape[0], S = args.out.shape[1], C = args.out.shape[2];
  const Elements x(args.x), out(args.out);
  const auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
  for (std::int64_t i = 0; i < B * S * C; ++i) out.set(i, 0);
  for (std::int64_t r = 0; r < cu_seqlens[B]; ++r) {
    for (std::int64_t c = 0; c < C; ++c) out.set(indices[r] * C + c, x[r * C + c]);
  }
}

}  // namespace
}  // namespace warpwright::ops::padding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PaddingLengths, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = padding::kMaskDTypes, .run = padding::lengths_reference};
WARPWRIGHT_KERNEL(PaddingPairs, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = padding::kMaskDTypes, .run = padding::pairs_reference};
WARPWRIGHT_KERNEL(PaddingPack, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::pack_reference};
WARPWRIGHT_KERNEL(PaddingUnpack, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::unpack_reference};

}  // namespace warpwright::ops
