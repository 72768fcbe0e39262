// Finds lost columns and keeps their x, on a CPU.
#include <algorithm>
#include <cstring>

#include "ops/element.hpp"
#include "ops/norm/kernels.hpp"

namespace warpwright::ops::norm {

void keep_lost_columns(const NormForward& a) {
  if (!a.lost) return;
  const Tensor& x = normalized_of(a);
  const std::int64_t N = x.shape[0], C = x.shape[1], K = a.lost.places();
  std::int32_t *count = a.lost.columns.as<std::int32_t>(), *columns = count + 1;
  std::fill(count, columns + K, -1);
  *count = 0;
  const auto lost = LostRule<double>::of(a.out.dtype);
  const Elements weight(a.weight), bias(a.bias);
  for (std::int64_t c = 0; c < C; ++c) {
    if (!lost(weight ? weight[c] : 1, bias ? bias[c] : 0)) continue;
    if (*count < K) columns[*count] = static_cast<std::int32_t>(c);
    ++*count;
  }
  const std::size_t size = size_of(x.dtype);
  const auto* from = static_cast<const std::byte*>(x.data);
  auto* to = static_cast<std::byte*>(a.lost.x.data);
  const std::int64_t found = std::min<std::int64_t>(*count, K);
  for (std::int64_t row = 0; row < N; ++row) {
    for (std::int64_t k = 0; k < found; ++k) {
      std::memcpy(to + static_cast<std::size_t>(row * K + k) * size,
                  from + static_cast<std::size_t>(row * C + columns[k]) * size, size);
    }
  }
}

}  // namespace warpwright::ops::norm
