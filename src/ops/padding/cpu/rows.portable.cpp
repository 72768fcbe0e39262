// Padding on a CPU. The threads share the rows, which are copied as bytes. Memory-bound.
#include <cstring>
#include <type_traits>

#include "ops/element.hpp"
#include "ops/padding/padding.hpp"

namespace warpwright::ops::padding {
namespace {

template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;  // bf16 and fp16 convert only to fp32

// Writes the indices of a row's ones and returns their number.
template <class T>
std::int64_t write_indices(const T* mask, std::int64_t b, std::int64_t S, std::int32_t* indices) {
  std::int64_t n = 0;
  for (std::int64_t s = 0; s < S; ++s) {
    if (static_cast<double>(static_cast<Wide<T>>(mask[s])) >= 0.5)
      indices[n++] = static_cast<std::int32_t>(b * S + s);
  }
  return n;
}

template <class T>
void lengths_of(const PaddingLengths& args) {
  const std::int64_t B = args.mask.shape[0], S = args.mask.shape[1];
  auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
  std::int64_t n = 0;
  cu_seqlens[0] = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    n += write_indices(args.mask.as<T>() + b * args.mask.strides[0], b, S, indices + n);
    cu_seqlens[b + 1] = static_cast<std::int32_t>(n);
  }
  for (; n < B * S; ++n) indices[n] = -1;
}

void lengths(const Context&, const PaddingLengths& args) {
  switch (args.mask.dtype) {
    case DType::u8:
      return lengths_of<std::uint8_t>(args);
    case DType::i32:
      return lengths_of<std::int32_t>(args);
    case DType::i64:
      return lengths_of<std::int64_t>(args);
    default:
      return visit_dtype(args.mask.dtype, [&](auto tag) { lengths_of<typename decltype(tag)::type>(args); });
  }
}

void pack(const Context& context, const PaddingPack& args) {
  const std::int64_t R = args.out.shape[0];
  const std::size_t row = static_cast<std::size_t>(args.out.shape[1]) * size_of(args.out.dtype);
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* out = static_cast<std::byte*>(args.out.data);
  const auto* indices = args.indices.as<std::int32_t>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t r = 0; r < R; ++r) {
    if (indices[r] >= 0) {
      std::memcpy(out + static_cast<std::size_t>(r) * row, x + static_cast<std::size_t>(indices[r]) * row,
                  row);
    }
  }
}

void unpack(const Context& context, const PaddingUnpack& args) {
  const std::int64_t B = args.out.shape[0], S = args.out.shape[1];
  const std::size_t row = static_cast<std::size_t>(args.out.shape[2]) * size_of(args.out.dtype);
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* out = static_cast<std::byte*>(args.out.data);
  const auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t b = 0; b < B; ++b) {
    std::int64_t r = cu_seqlens[b];
    for (std::int64_t i = b * S; i < (b + 1) * S; ++i) {
      std::byte* to = out + static_cast<std::size_t>(i) * row;
      if (r < cu_seqlens[b + 1] && indices[r] == i) {
        std::memcpy(to, x + static_cast<std::size_t>(r++) * row, row);
      } else {
        std::memset(to, 0, row);
      }
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::padding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PaddingLengths, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = padding::kMaskDTypes, .run = padding::lengths};
WARPWRIGHT_KERNEL(PaddingPack, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::pack};
WARPWRIGHT_KERNEL(PaddingUnpack, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::unpack};

}  // namespace warpwright::ops
