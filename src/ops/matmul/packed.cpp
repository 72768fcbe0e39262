#include "ops/matmul/packed.hpp"

#include <fmt/format.h>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops {

using matmul::round_up;

namespace {

struct Layout {
  matmul::Tile tile;
  void (*pack)(const Context&, const Tensor&, const Tensor&);
};

const Layout* layout_of(DType dtype, const DeviceInfo& device) {
  static constexpr Layout kAmx{matmul::kTileAmx, matmul::amx_bf16::pack};
  static constexpr Layout kAvx512{matmul::kTileAvx512, matmul::avx512::pack};
  static constexpr Layout kAvx2{matmul::kTileAvx2, matmul::avx2::pack};
  if (device.device.kind != DeviceKind::cpu) return nullptr;
  if (dtype == DType::bf16) return device.cpu.amx_bf16 && device.cpu.avx512 ? &kAmx : nullptr;
  if (dtype != DType::f32) return nullptr;
  return device.cpu.avx512 ? &kAvx512 : device.cpu.avx2 ? &kAvx2 : nullptr;
}

}  // namespace

std::string packed_layout(DType dtype, const DeviceInfo& device) {
  const Layout* layout = layout_of(dtype, device);
  return layout ? layout->tile.layout : "";
}

std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device) {
  const matmul::Tile& tile = layout_of(dtype, device)->tile;
  return round_up(round_up(N, tile.cols) * round_up(K, tile.depth) * static_cast<std::int64_t>(tile.element),
                  64);
}

void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed) {
  layout_of(weight.dtype, context.device())->pack(context, weight, packed);
}

Refusal matmul::refuse_packed(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device) {
  if (!p.packed) return {};
  if (packed_layout(p.dtype, device) != tile.layout) return kNotPacked;
  const std::int64_t bytes = packed_bytes(p.N, p.K, p.dtype, device);
  if (p.packed_bytes == bytes) return {};
  return fmt::format("packed has {} bytes, but its layout needs {}", p.packed_bytes, bytes);
}

}  // namespace warpwright::ops
