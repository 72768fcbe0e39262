#include <fmt/format.h>

#include <cstring>

#include "ops/int8_linear/kernels.hpp"
#include "ops/int8_linear/round_row.hpp"

namespace warpwright::ops {
namespace int8 {
namespace {

// Packs one panel from the rows of a weight, (N, K).
template <class T>
void pack_panel(const T* weight, const float* factors, std::int64_t N, std::int64_t K, std::int64_t panel,
                std::byte* packed) {
  std::byte* at = packed + factors_bytes(K) + panel * panel_bytes(K);
  std::memset(at, 0, static_cast<std::size_t>(panel_bytes(K)));
  auto* scales = reinterpret_cast<float*>(at);
  auto* sums = reinterpret_cast<std::int32_t*>(at + kPanel * 4);
  auto* elements = reinterpret_cast<std::int8_t*>(at + kPanel * 8);
  for (std::int64_t c = 0; c < std::min(kPanel, N - panel * kPanel); ++c) {
    const T* row = weight + (panel * kPanel + c) * K;
    const RowScale scale = weight_scale(row, factors, K);
    scales[c] = scale.scale;
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < K; ++k) {
      const std::int8_t q = round_weight(static_cast<float>(row[k]), factors[k], scale);
      sum += q;
      const std::int64_t tile = k / kStep * 2 + c / kTile;
      elements[tile * kTileBytes + k % kStep / 4 * kStep + c % kTile * 4 + k % 4] = q;
    }
    sums[c] = sum;
  }
}

}  // namespace

void pack(const Context& context, const Tensor& weight, const Tensor& factors, std::byte* packed) {
  const std::int64_t N = weight.shape[0], K = weight.shape[1], panels = ceil_div(N, kPanel);
  std::memset(packed, 0, static_cast<std::size_t>(factors_bytes(K)));
  auto* c = reinterpret_cast<float*>(packed);
  for (std::int64_t k = 0; k < K; ++k) c[k] = factors ? factors.as<float>()[k] : 1.0f;
  visit_dtype(weight.dtype, [&](auto tag) {
    const auto* data = weight.as<typename decltype(tag)::type>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
    for (std::int64_t panel = 0; panel < panels; ++panel) pack_panel(data, c, N, K, panel, packed);
  });
}

}  // namespace int8

using namespace int8;

std::string int8_layout(const DeviceInfo& device) {
  return parts_of(forced_choice(device, "int8_linear")).kernel == kReference ? "" : "int8.2";
}

std::int64_t int8_packed_bytes(std::int64_t N, std::int64_t K) {
  return factors_bytes(K) + ceil_div(N, kPanel) * panel_bytes(K);
}

void int8_pack(const Context& context, const Tensor& weight, const Tensor& factors, const Tensor& packed) {
  constexpr std::string_view kName = "int8_pack";
  require(weight.shape.rank() == 2 && is_floating(weight.dtype), kName,
          "weight must be (N, K) in a floating dtype");
  const std::int64_t N = weight.shape[0], K = weight.shape[1];
  require_tensor(kName, "weight", weight, weight.dtype, {N, K});
  if (factors) require_tensor(kName, "factors", factors, DType::f32, {K});
  require_tensor(kName, "packed", packed, DType::u8, {int8_packed_bytes(N, K)});
  require(reinterpret_cast<std::uintptr_t>(packed.data) % 64 == 0, kName,
          "packed must start at a multiple of 64 bytes");
  for (std::int64_t k = 0; factors && k < factors.shape[0]; ++k) {
    const float factor = factors.as<float>()[k];
    require(factor > 0 && std::isfinite(factor), kName,
            fmt::format("factor {} is {}, needs a finite number above 0", k, factor));
  }
  pack(context, weight, factors, static_cast<std::byte*>(packed.data));
  for (std::int64_t n = 0; n < weight.shape[0]; ++n) {
    const Panel panel = panel_at(static_cast<const std::byte*>(packed.data), weight.shape[1], n / kPanel);
    require(std::isfinite(panel.scales[n % kPanel]), kName,
            fmt::format("row {} of weight has a value that is not finite, or too large", n));
  }
}

}  // namespace warpwright::ops
