// Products of int8 with Intel AMX: 2 × 2 tiles of 16 × 16 int32 sums, with 64 terms of the depth per step
// (tile layouts: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20). A step has 4
// tile products (64 cycles) and 4 tile loads (32 cycles from L1).
#include "ops/int8_linear/cpu/product.hpp"
#include "ops/cpu/amx.hpp"

namespace warpwright::ops::int8::amx_int8 {
namespace {

struct Amx {
  static constexpr std::int64_t kRows = 2 * kTile;
  using Session = simd::TileSession;

  static void multiply(const std::uint8_t* x, std::int64_t rows, const Panel& panel, std::int64_t steps,
                       std::int32_t* sums) {
    constexpr int kRowBytes = kPanel * sizeof(std::int32_t);
    const std::uint8_t* low = x + steps * kTileBytes;
    const std::int8_t* w = panel.elements;
    _tile_zero(0);
    _tile_zero(1);
    if (rows <= kTile) {
      for (std::int64_t s = 0; s < steps; ++s, x += kTileBytes, w += 2 * kTileBytes) {
        _tile_loadd(4, x, kStep);
        _tile_loadd(6, w, kStep);
        _tile_loadd(7, w + kTileBytes, kStep);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
      }
      _tile_stored(0, sums, kRowBytes);
      _tile_stored(1, sums + kTile, kRowBytes);
      return;
    }
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t s = 0; s < steps; ++s, x += kTileBytes, low += kTileBytes, w += 2 * kTileBytes) {
      _tile_loadd(4, x, kStep);
      _tile_loadd(6, w, kStep);
      _tile_loadd(7, w + kTileBytes, kStep);
      _tile_dpbusd(0, 4, 6);
      _tile_loadd(5, low, kStep);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(1, sums + kTile, kRowBytes);
    _tile_stored(2, sums + kTile * kPanel, kRowBytes);
    _tile_stored(3, sums + kTile * kPanel + kTile, kRowBytes);
  }
};

// A tile product takes as long for few rows as for 16, so VNNI comes first for these.
double cost(const Int8LinearProblem& p, const DeviceInfo&) {
  return p.M <= 4 ? 1 : 0;
}

}  // namespace
}  // namespace warpwright::ops::int8::amx_int8

namespace warpwright::ops {
namespace this_isa = int8::amx_int8;

WARPWRIGHT_KERNEL(Int8Linear, kCpu) = {.needs = kThisCpu,
                                       .dtypes = kCpuDTypes,
                                       .run = this_isa::run<this_isa::Amx>,
                                       .workspace = int8::workspace,
                                       .cost = this_isa::cost};

}  // namespace warpwright::ops
