#include "runtime/cpu/amx.hpp"
#include "runtime/cpu/ceiling_kernels.hpp"

namespace warpwright::ceiling::amx_bf16 {
namespace {

constexpr int kProducts = 6;  // independent accumulators in flight

}  // namespace

float multiply_add(std::int64_t iterations) {
  alignas(64) std::uint16_t ones[16][32];
  alignas(64) float sums[16][16];
  for (auto& row : ones) {
    for (auto& element : row) element = 0x3f80;  // 1 in bf16
  }
  const TileSession session;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  for (std::int64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(5, sums, 64);
  return sums[15][15];
}

// One product: 16×16 outputs of 32 multiply-adds.
double flops_per_iteration() {
  return kProducts * 2.0 * 16 * 16 * 32;
}

}  // namespace warpwright::ceiling::amx_bf16
