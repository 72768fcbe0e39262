// Matrix products of bf16 with Intel AMX: 2 × 2 tiles of 16 × 16 fp32 sums, with 32 terms of the depth per
// step (tile layouts: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20).
//
// For each 32 terms of the depth, a panel of A has two tiles of 16 rows × 32, and a panel of B two tiles of
// 16 pairs × 16 columns. A pair holds the terms 2p and 2p + 1 of one column. A step has 4 tile products (64
// cycles) and 4 tile loads (32 cycles from L1).
//
// A panel of B with the blocking's depth about fills L1, and A streams from L2. With a shorter depth, B would
// stay in L1, but GPT-2's 768 would be summed in two chunks. The fp32 sums would then pass through L2, which
// costs more. The kernel is bound by L2 and, if weights come from memory (256 rows), by memory.
#include "ops/matmul/cpu/gemm.hpp"
#include "ops/cpu/amx.hpp"
#include "ops/matmul/cpu/pairs.hpp"

namespace warpwright::ops::matmul::amx_bf16 {
namespace {

constexpr std::int64_t kTileElements = 16 * 32;
constexpr std::int64_t kStep = 2 * kTileElements;  // elements of a panel for 32 terms of the depth

struct Amx {
  static constexpr Tile kTile = kTileAmx;
  using Element = bf16;
  using Session = simd::TileSession;
  static_assert(kTile.rows == 32 && kTile.cols == 32 && kTile.depth == 32);

  // Packs 16 lines and 32 terms of the depth into a tile, either directly or transposed to pairs. An
  // incomplete tile is first copied and padded with zeros.
  template <bool transposed>
  static void pack_tile(const Operand<bf16>& o, Range lines, Range depth, bf16* tile) {
    alignas(64) bf16 copy[kTileElements];
    const bf16* from = o.at(lines.first, depth.first);
    std::int64_t stride = o.ld;
    if (lines.count < 16 || depth.count < 32) {
      for (int i = 0; i < 16; ++i) {
        const std::int64_t n = i < lines.count ? depth.count : 0;
        _mm512_store_si512(copy + i * 32, load_row(n > 0 ? from + i * stride : copy, n));
      }
      from = copy;
      stride = 32;
    }
    if constexpr (transposed) {
      transpose([=](int i) { return _mm512_loadu_si512(from + i * stride); },
                [=](int i, __m512i pairs) { _mm512_store_si512(tile + i * 32, pairs); });
    } else {
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 32, _mm512_loadu_si512(from + i * stride));
    }
  }

  // Packs panels of 32 lines whose depth is contiguous.
  template <bool transposed>
  static void pack_along(const Operand<bf16>& o, Range lines, Range depth, std::int64_t padded, bf16* to) {
    for (std::int64_t i = 0; i < tiles_of(lines.count, 32) * 32; i += 16) {
      bf16* tile = to + i / 32 * 32 * padded + i % 32 * 32;
      for (std::int64_t d = 0; d < depth.count; d += 32, tile += kStep) {
        pack_tile<transposed>(o, {lines.first + i, smaller(16, lines.count - i)},
                              {depth.first + d, smaller(32, depth.count - d)}, tile);
      }
    }
  }

  // Two terms of the depth of 32 contiguous lines, as pairs: lines 0-3, 8-11, 16-19 and 24-27 in `low`, the
  // others in `high`.
  struct Pairs {
    __m512i low, high;
  };
  static Pairs pairs_at(const Operand<bf16>& o, Range lines, Range depth, std::int64_t d) {
    const __m512i even = load_row(o.at(lines.first, depth.first + d), d < depth.count ? lines.count : 0);
    const __m512i odd =
        load_row(o.at(lines.first, depth.first + d + 1), d + 1 < depth.count ? lines.count : 0);
    return {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
  }

  // Packs one panel of A from an operand whose lines are contiguous.
  static void pack_a_across(const Operand<bf16>& a, Range lines, Range depth, bf16* to) {
    alignas(64) bf16 low[kTileElements], high[kTileElements];
    for (std::int64_t d = 0; d < depth.count; d += 32, to += kStep) {
      for (int p = 0; p < 16; ++p) {
        const Pairs pairs = pairs_at(a, lines, depth, d + 2 * p);
        _mm512_store_si512(low + p * 32, pairs.low);
        _mm512_store_si512(high + p * 32, pairs.high);
      }
      const auto put_row = [=](int row, __m512i pairs) { _mm512_store_si512(to + row * 32, pairs); };
      transpose([&](int p) { return _mm512_load_si512(low + p * 32); },
                [&](int i, __m512i pairs) { put_row(i / 4 * 8 + i % 4, pairs); });
      transpose([&](int p) { return _mm512_load_si512(high + p * 32); },
                [&](int i, __m512i pairs) { put_row(i / 4 * 8 + i % 4 + 4, pairs); });
    }
  }

  static void pack_b_across(const Operand<bf16>& b, Range cols, Range depth, bf16* to) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (std::int64_t d = 0; d < depth.count; d += 32, to += kTileElements) {
      for (int p = 0; p < 16; ++p, to += 32) {
        const Pairs pairs = pairs_at(b, cols, depth, d + 2 * p);
        _mm512_store_si512(to, _mm512_permutex2var_epi64(pairs.low, first, pairs.high));
        _mm512_store_si512(to + kTileElements, _mm512_permutex2var_epi64(pairs.low, second, pairs.high));
      }
    }
  }

  static void pack_a(const Operand<bf16>& a, Range rows, Range depth, std::int64_t padded, bf16* to) {
    if (a.depth_contiguous) {
      pack_along<false>(a, rows, depth, padded, to);
      return;
    }
    for (std::int64_t r = 0; r < rows.count; r += 32) {
      const Range lines{rows.first + r, smaller(32, rows.count - r)};
      pack_a_across(a, lines, depth, to + r * padded);
    }
  }

  // Packs one panel of B.
  static void pack_b(const Operand<bf16>& b, Range cols, Range depth, bf16* to) {
    const std::int64_t padded = tiles_of(depth.count, 32) * 32;
    b.depth_contiguous ? pack_along<true>(b, cols, depth, padded, to) : pack_b_across(b, cols, depth, to);
  }

  template <class Prefetch>
  static void multiply(const bf16* a, const bf16* b, std::int64_t depth, float* out, Prefetch& prefetch) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t d = 0; d < depth; d += 32, a += kStep, b += kStep) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      _tile_loadd(7, b + kTileElements, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + kTileElements, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      prefetch();
    }
    constexpr int kRowBytes = kTile.cols * sizeof(float);
    _tile_stored(0, out, kRowBytes);
    _tile_stored(1, out + 16, kRowBytes);
    _tile_stored(2, out + 16 * kTile.cols, kRowBytes);
    _tile_stored(3, out + 16 * kTile.cols + 16, kRowBytes);
  }

  static constexpr std::int64_t kFewRows = 16;  // the rows of a tile register
  static void multiply_few(const bf16* a, const bf16* b, const bf16* other, std::int64_t depth, std::int64_t,
                           float* out) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t d = 0; d < depth; d += 32, a += kStep, b += kStep, other += kStep) {
      _tile_loadd(4, a, 64);
      _tile_loadd(5, b, 64);
      _tile_loadd(6, other, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, b + kTileElements, 64);
      _tile_loadd(5, other + kTileElements, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 4, 5);
    }
    constexpr int kRowBytes = kTile.cols * sizeof(float);
    float* second = out + kTile.rows * kTile.cols;
    _tile_stored(0, out, kRowBytes);
    _tile_stored(1, out + 16, kRowBytes);
    _tile_stored(2, second, kRowBytes);
    _tile_stored(3, second + 16, kRowBytes);
  }
};

void forward(const Context& context, const MatmulForward& args) {
  run_forward<Amx, bf16>(context, args);
}
void dx(const Context& context, const MatmulDx& args) {
  run_dx<Amx, bf16>(context, args);
}
void dw(const Context& context, const MatmulDw& args) {
  run_dw<Amx, bf16>(context, args);
}

}  // namespace

void pack(const Context& context, const Tensor& weight, const Tensor& packed) {
  pack_weight<Amx, bf16>(context, weight, packed);
}

}  // namespace warpwright::ops::matmul::amx_bf16

namespace warpwright::ops {
namespace this_isa = matmul::amx_bf16;

WARPWRIGHT_KERNEL(MatmulForward, kCpu) = {.needs = kThisCpu,
                                          .dtypes = DType::bf16,
                                          .run = this_isa::forward,
                                          .refuse = this_isa::refuse_packed<this_isa::Amx>,
                                          .workspace = this_isa::workspace<this_isa::Amx>,
                                          .configuration = this_isa::configuration<this_isa::Amx>};
WARPWRIGHT_KERNEL(MatmulDx, kCpu) = {.needs = kThisCpu,
                                     .dtypes = DType::bf16,
                                     .run = this_isa::dx,
                                     .workspace = this_isa::workspace<this_isa::Amx>,
                                     .configuration = this_isa::configuration<this_isa::Amx>};
WARPWRIGHT_KERNEL(MatmulDw, kCpu) = {.needs = kThisCpu,
                                     .dtypes = DType::bf16,
                                     .run = this_isa::dw,
                                     .workspace = this_isa::workspace<this_isa::Amx>,
                                     .configuration = this_isa::configuration<this_isa::Amx>};

}  // namespace warpwright::ops
