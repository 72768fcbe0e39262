// Copies new keys and values into a cache on a CPU, as bytes. The threads share the rows. Memory-bound.
#include <cstring>

#include "ops/cached_attention/kernels.hpp"

namespace warpwright::ops::cached {
namespace {

void copy_row(const Tensor& rows, std::int64_t n, const Tensor& cache, std::int64_t slot) {
  const std::int64_t KH = rows.shape[1], block_size = cache.shape[2];
  const std::size_t size = size_of(rows.dtype), head = static_cast<std::size_t>(rows.shape[2]) * size;
  const auto* from = static_cast<const std::byte*>(rows.data);
  for (std::int64_t h = 0; h < KH; ++h) {
    const std::int64_t first = n * rows.strides[0] + h * rows.strides[1];
    const std::int64_t place = (slot / block_size * KH + h) * block_size + slot % block_size;
    std::memcpy(static_cast<std::byte*>(cache.data) + static_cast<std::size_t>(place) * head,
                from + first * static_cast<std::int64_t>(size), head);
  }
}

void append(const Context& context, const CacheAppend& args) {
  check_slots(args);
  const auto* slots = args.slots.as<std::int32_t>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t n = 0; n < args.k.shape[0]; ++n) {
    if (slots[n] < 0) continue;
    copy_row(args.k, n, args.key_cache, slots[n]);
    copy_row(args.v, n, args.value_cache, slots[n]);
  }
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CacheAppend, "cpu.rows"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = cached::append};

}  // namespace warpwright::ops
