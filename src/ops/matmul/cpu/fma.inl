// The fp32 tile: kTile.rows × 3 vectors of sums in registers (8 × 48 with AVX-512, 4 × 24 with AVX2), each
// element of A broadcast against three vectors of B. bf16 operands are widened while they are packed.
//
// Bound by the FMA units: 24 (12) FMAs for 11 (7) loads a step. Packing costs 0.25 to 0.5 cycles an element
// of B, and an element of B is used for rows/32 cycles, so it is 3% to 6% where there are 256 rows.
#include "ops/matmul/cpu/gemm.inl"

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

// The kLanes × kLanes transpose, in place.
#if defined(__AVX512F__)
inline void transpose(vec* r) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  for (int i = 0; i < 16; i += 4) {  // r[i + c]: column c (and 4 + c, …) of rows i … i + 3
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88),
                 b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88),
                 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
    t[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
    t[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}
#else
inline void transpose(vec* r) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  __m256 u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
  }
}
#endif

#if defined(__AVX512F__)
constexpr Tile kFmaTile = kTileAvx512;
#else
constexpr Tile kFmaTile = kTileAvx2;
#endif

struct Fma {
  static constexpr Tile kTile = kFmaTile;
  using Element = float;
  static constexpr int kRows = static_cast<int>(kTile.rows), kCols = static_cast<int>(kTile.cols);
  static_assert(kCols == 3 * kLanes && kRows <= kLanes);

  static void begin() {}
  static void end() {}

  // Up to kLanes lines of the operand, turned: to[d·stride + i] for d in the depth. Lines beyond `count` are
  // 0.
  template <class T>
  static void pack_turned(const Operand<T>& o, Range lines, Range depth, float* to, std::int64_t stride,
                          int width) {
    for (std::int64_t d = 0; d < depth.count; d += kLanes) {
      const int n = static_cast<int>(smaller(kLanes, depth.count - d));
      vec r[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        r[i] = i < lines.count ? load_lanes(o.at(lines.first + i, depth.first + d), n) : zero();
      }
      transpose(r);
      for (int i = 0; i < n; ++i) {
        width == kLanes ? store(to + (d + i) * stride, r[i]) : store(to + (d + i) * stride, r[i], width);
      }
    }
  }

  // Lines that lie side by side: whole vectors of the operand's rows.
  template <class T>
  static void pack_straight(const Operand<T>& o, Range lines, Range depth, std::int64_t tile,
                            std::int64_t panel, float* to) {
    const std::int64_t step = tile < kLanes ? tile : kLanes;
    for (std::int64_t d = 0; d < depth.count; ++d) {
      const T* from = o.at(lines.first, depth.first + d);
      for (std::int64_t i = 0; i < lines.count; i += step) {
        const int n = static_cast<int>(smaller(step, lines.count - i));
        float* place = to + i / tile * panel + d * tile + i % tile;
        const vec v = load_lanes(from + i, n);
        step == kLanes ? store(place, v) : store(place, v, static_cast<int>(step));
      }
      for (std::int64_t i = tiles_of(lines.count, step) * step; i % tile != 0; i += step) {
        float* place = to + i / tile * panel + d * tile + i % tile;
        store_lanes(place, zero(), static_cast<int>(step));
      }
    }
  }

  // Panels of kRows rows: (depth, kRows) each.
  template <class T>
  static void pack_a(const Operand<T>& a, Range rows, Range depth, std::int64_t padded, float* to) {
    if (!a.depth_contiguous) {
      // A few panels at a time, so that their lines do not evict each other.
      for (std::int64_t r = 0; r < rows.count; r += 8 * kRows) {
        const Range some{rows.first + r, smaller(8 * kRows, rows.count - r)};
        pack_straight(a, some, depth, kRows, kRows * padded, to + r * padded);
      }
      return;
    }
    for (std::int64_t r = 0; r < rows.count; r += kRows) {
      const Range lines{rows.first + r, smaller(kRows, rows.count - r)};
      pack_turned(a, lines, depth, to + r * padded, kRows, kRows);
    }
  }

  // Panels of kCols columns: (depth, kCols) each.
  template <class T>
  static void pack_b(const Operand<T>& b, Range cols, Range depth, std::int64_t padded, float* to) {
    if (!b.depth_contiguous) {
      pack_straight(b, cols, depth, kCols, kCols * padded, to);
      return;
    }
    for (std::int64_t c = 0; c < tiles_of(cols.count, kCols) * kCols; c += kLanes) {
      const Range lines{cols.first + c, smaller(kLanes, cols.count - c)};
      pack_turned(b, lines, depth, to + c / kCols * kCols * padded + c % kCols, kCols, kLanes);
    }
  }

  static void multiply(const float* a, const float* b, std::int64_t depth, float* out) {
    vec sums[kRows][3];
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = zero();
    for (std::int64_t d = 0; d < depth; ++d, a += kRows, b += kCols) {
      const vec b0 = load(b), b1 = load(b + kLanes), b2 = load(b + 2 * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const vec broadcast = set1(a[r]);
        sums[r][0] = fma(broadcast, b0, sums[r][0]);
        sums[r][1] = fma(broadcast, b1, sums[r][1]);
        sums[r][2] = fma(broadcast, b2, sums[r][2]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store(out + r * kCols, sums[r][0]);
      store(out + r * kCols + kLanes, sums[r][1]);
      store(out + r * kCols + 2 * kLanes, sums[r][2]);
    }
  }
};

}  // namespace

void forward(const Context& context, const MatmulForward& args) {
  args.x.dtype == DType::f32 ? run_forward<Fma, float>(context, args) : run_forward<Fma, bf16>(context, args);
}
void dx(const Context& context, const MatmulDx& args) {
  args.dout.dtype == DType::f32 ? run_dx<Fma, float>(context, args) : run_dx<Fma, bf16>(context, args);
}
void dw(const Context& context, const MatmulDw& args) {
  args.x.dtype == DType::f32 ? run_dw<Fma, float>(context, args) : run_dw<Fma, bf16>(context, args);
}

}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA
