#include "ops/matmul/packed.hpp"

#include "ops/cpu/refuse.hpp"
#include "ops/matmul/kernels.hpp"

namespace warpwright::ops {
namespace {

struct Layout {
  const char* name;
  matmul::Tile tile;
  void (*pack)(const Context&, const Tensor&, const Tensor&);
};

const Layout* layout_of(DType dtype, const DeviceInfo& device) {
  static constexpr Layout kAmx{"amx_bf16.1", matmul::kTileAmx, matmul::amx_bf16::pack};
  static constexpr Layout kAvx512{"avx512_fp32.1", matmul::kTileAvx512, matmul::avx512::pack};
  static constexpr Layout kAvx2{"avx2_fp32.1", matmul::kTileAvx2, matmul::avx2::pack};
  if (device.device.kind != DeviceKind::cpu) return nullptr;
  if (dtype == DType::bf16) return device.cpu.amx_bf16 && device.cpu.avx512 ? &kAmx : nullptr;
  if (dtype != DType::f32) return nullptr;
  return device.cpu.avx512 ? &kAvx512 : device.cpu.avx2 ? &kAvx2 : nullptr;
}

constexpr std::int64_t up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

std::string packed_layout(DType dtype, const DeviceInfo& device) {
  const Layout* layout = layout_of(dtype, device);
  return layout ? layout->name : "";
}

std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device) {
  const matmul::Tile& tile = layout_of(dtype, device)->tile;
  return up(up(N, tile.cols) * up(K, tile.depth) * static_cast<std::int64_t>(tile.element), 64);
}

void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed) {
  layout_of(weight.dtype, context.device())->pack(context, weight, packed);
}

}  // namespace warpwright::ops
