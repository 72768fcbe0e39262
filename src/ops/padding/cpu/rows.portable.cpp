// Padding on a CPU. The threads share the rows, which are copied as bytes. Memory-bound.
#include <algorithm>
#include <cstring>

#include "ops/element.hpp"
#include "ops/padding/padding.hpp"

namespace warpwright::ops::padding {
namespace {

template <class T>
void lengths_of(const PaddingLengths& args) {
  const std::int64_t B = args.mask.shape[0], S = args.mask.shape[1];
  auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
  std::int64_t n = 0, odd = -1;
  cu_seqlens[0] = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    const T* mask = args.mask.as<T>() + b * args.mask.strides[0];
    for (std::int64_t s = 0; s < S; ++s) {
      const auto value = value_of(mask[s]);
      if (is_one(value)) indices[n++] = static_cast<std::int32_t>(b * S + s);
      if (is_odd(value) && odd < 0) odd = b * S + s;
    }
    cu_seqlens[b + 1] = static_cast<std::int32_t>(n);
  }
  *args.odd.as<std::int64_t>() = odd;
  for (; n < B * S; ++n) indices[n] = -1;
}

void lengths(const Context&, const PaddingLengths& args) {
  visit_mask(args.mask.dtype, [&]<class T>(T) { lengths_of<T>(args); });
}

template <class T>
void pairs_of(const PaddingPairs& args, int threads) {
  const std::int64_t Lq = args.mask.shape[1], Lk = args.mask.shape[2], rows = args.mask.shape[0] * Lq;
  const Shape &from = args.mask.strides, &to = args.out.strides;
  std::int64_t first = rows * Lk;  // odd value
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : first)
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* mask = args.mask.as<T>() + r / Lq * from[0] + r % Lq * from[1];
    auto* out = args.out.as<std::uint8_t>() + r / Lq * to[0] + r % Lq * to[1];
    std::int64_t odd = Lk;
    for (std::int64_t j = 0; j < Lk; ++j) {
      const auto value = value_of(mask[j]);
      out[j] = is_one(value);
      if (is_odd(value) && odd == Lk) odd = j;
    }
    if (odd < Lk && r * Lk + odd < first) first = r * Lk + odd;
  }
  *args.odd.as<std::int64_t>() = first < rows * Lk ? first : -1;
}

void pairs(const Context& context, const PaddingPairs& args) {
  visit_mask(args.mask.dtype, [&]<class T>(T) { pairs_of<T>(args, context.threads()); });
}

void pack(const Context& context, const PaddingPack& args) {
  const std::int64_t R = args.out.shape[0], padded = args.x.shape[0];
  const std::size_t row = static_cast<std::size_t>(args.out.shape[1]) * size_of(args.out.dtype);
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* out = static_cast<std::byte*>(args.out.data);
  const auto* indices = args.indices.as<std::int32_t>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t r = 0; r < R; ++r) {
    if (indices[r] >= 0 && indices[r] < padded) {
      std::memcpy(out + static_cast<std::size_t>(r) * row, x + static_cast<std::size_t>(indices[r]) * row,
                  row);
    }
  }
}

void unpack(const Context& context, const PaddingUnpack& args) {
  const std::int64_t B = args.out.shape[0], S = args.out.shape[1], R = args.x.shape[0];
  const std::size_t row = static_cast<std::size_t>(args.out.shape[2]) * size_of(args.out.dtype);
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* out = static_cast<std::byte*>(args.out.data);
  const auto *cu_seqlens = args.cu_seqlens.as<std::int32_t>(), *indices = args.indices.as<std::int32_t>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t b = 0; b < B; ++b) {
    std::int64_t r = std::clamp<std::int64_t>(cu_seqlens[b], 0, R);
    const std::int64_t end = std::min<std::int64_t>(cu_seqlens[b + 1], R);
    for (std::int64_t i = b * S; i < (b + 1) * S; ++i) {
      std::byte* to = out + static_cast<std::size_t>(i) * row;
      if (r < end && indices[r] == i) {
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
WARPWRIGHT_KERNEL(PaddingPairs, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = padding::kMaskDTypes, .run = padding::pairs};
WARPWRIGHT_KERNEL(PaddingPack, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::pack};
WARPWRIGHT_KERNEL(PaddingUnpack, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = padding::unpack};

}  // namespace warpwright::ops
