#include "ops/matmul/packed.hpp"

#include <fmt/format.h>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops {

using matmul::round_up;

namespace {

struct Layout {
  std::string_view kernel;
  Needs needs;
  DType dtype;
  matmul::Tile tile;
  void (*pack)(const Context&, const Tensor&, const Tensor&);
};

// In the order of the kernels in variants.cpp.
constexpr Layout kLayouts[] = {
    {"cpu.amx_bf16", Needs::amx_bf16, DType::bf16, matmul::kTileAmx, matmul::amx_bf16::pack},
    {"cpu.avx512_bf16", Needs::avx512_bf16, DType::bf16, matmul::kTileAvx512Bf16, matmul::avx512_bf16::pack},
    {"cpu.avx512", Needs::avx512, DType::f32, matmul::kTileAvx512, matmul::avx512::pack},
    {"cpu.avx2", Needs::avx2, DType::f32, matmul::kTileAvx2, matmul::avx2::pack},
};

// The layout of the forced kernel, or else of the one that is chosen for many rows.
const Layout* layout_of(DType dtype, const DeviceInfo& device) {
  const std::string_view forced = parts_of(forced_choice(device, "matmul.forward")).kernel;
  for (const Layout& layout : kLayouts) {
    if (layout.dtype != dtype || !refuse_device(layout.needs, device).empty()) continue;
    const bool chosen = layout.needs != Needs::avx512_bf16 || device.cpu.fast_bf16_dot();
    if (forced.empty() ? chosen : layout.kernel == forced) return &layout;
  }
  return nullptr;
}

const Layout& require_layout(DType dtype, const DeviceInfo& device) {
  const Layout* layout = layout_of(dtype, device);
  require(layout, "matmul.forward", fmt::format("no kernel here packs weights of {}", name_of(dtype)));
  return *layout;
}

}  // namespace

std::string packed_layout(DType dtype, const DeviceInfo& device) {
  const Layout* layout = layout_of(dtype, device);
  return layout ? layout->tile.layout : "";
}

std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device) {
  const matmul::Tile& tile = require_layout(dtype, device).tile;
  return round_up(round_up(N, tile.cols) * round_up(K, tile.depth) * static_cast<std::int64_t>(tile.element),
                  64);
}

void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed) {
  require_layout(weight.dtype, context.device()).pack(context, weight, packed);
}

Refusal matmul::refuse_packed(const MatmulForwardProblem& p, const Tile& tile, const DeviceInfo& device) {
  if (!p.packed) return {};
  if (packed_layout(p.dtype, device) != tile.layout) return kNotPacked;
  const std::int64_t bytes = packed_bytes(p.N, p.K, p.dtype, device);
  if (p.packed_bytes == bytes) return {};
  return fmt::format("packed has {} bytes, but its layout needs {}", p.packed_bytes, bytes);
}

}  // namespace warpwright::ops
