// Matrix products of bf16 with vdpbf16ps: 8 × 3 vectors of fp32 sums in registers. Each instruction adds the
// products of two terms of the depth to 16 sums.
//
// A pair holds the terms 2p and 2p + 1 of a row of A or of a column of B. A panel of A has 8 rows: (depth /
// 2, 8) pairs. A panel of B has 48 columns: (depth / 2, 48) pairs. A pair of A is broadcast and multiplied by
// three vectors of B.
//
// Bound by the instruction: 24 of them for 11 loads per step. Products of bf16 are exact in fp32, and the
// instruction rounds after each of its two additions, so a sum has the rounding errors of fp32's
// multiply-add. It treats subnormal numbers as 0.
#include "ops/matmul/cpu/gemm.hpp"
#include "ops/cpu/dot.hpp"
#include "ops/matmul/cpu/pairs.hpp"

namespace warpwright::ops::matmul::avx512_bf16 {
namespace {

// The pairs of 16 lines that are contiguous: of n lines at `even` and `odd`, and 0 for the other lines.
inline __m512i interleave(const bf16* even, const bf16* odd, std::int64_t n) {
  const auto lanes = static_cast<__mmask16>(n >= kLanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

struct Dot {
  static constexpr Tile kTile = kTileAvx512Bf16;
  using Element = bf16;
  struct Session {};
  static constexpr int kRows = static_cast<int>(kTile.rows), kCols = static_cast<int>(kTile.cols);
  static_assert(kCols == 3 * kLanes && 2 * kRows == kLanes && kTile.depth == 2);
  static constexpr int kFewRows = 4;  // the most whose sums of two panels fit in registers

  // Both functions call put(i, d, pairs) for every 16th line i of the first `width` and every pair (d, d + 1)
  // of the depth, with the pairs of lines i … i + 15. Elements beyond the lines or the depth are 0.
  template <class Put>
  static void turn(const Operand<bf16>& o, Range lines, std::int64_t width, Range depth, Put&& put) {
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const std::int64_t count = lines.count - i;
      for (std::int64_t d = 0; d < depth.count; d += 2 * kLanes) {
        const std::int64_t n = depth.count - d;
        const bf16* from = o.at(lines.first + (count > 0 ? i : 0), depth.first + d);
        const auto put_pairs = [&](int p, __m512i pairs) {
          if (2 * p < n) put(i, d + 2 * p, pairs);
        };
        if (n >= 2 * kLanes && count >= kLanes) {
          transpose([&](int line) { return _mm512_loadu_si512(from + line * o.ld); }, put_pairs);
        } else {
          transpose([&](int line) { return load_row(from + line * o.ld, line < count ? n : 0); }, put_pairs);
        }
      }
    }
  }
  template <class Put>
  static void take_across(const Operand<bf16>& o, Range lines, std::int64_t width, Range depth, Put&& put) {
    for (std::int64_t d = 0; d < depth.count; d += 2) {
      const bf16* even = o.at(lines.first, depth.first + d);
      const bool paired = d + 1 < depth.count;
      for (std::int64_t i = 0; i < width; i += kLanes) {
        const std::int64_t n = lines.count - i;
        const __m512i pairs = paired ? interleave(even + i, even + i + o.ld, n)
                                     : interleave(even + i, even + i, n) & _mm512_set1_epi32(0xffff);
        put(i, d, pairs);
      }
    }
  }

  // Packs A into panels of kRows rows: (depth / 2, kRows) pairs each. Two panels at once.
  static void pack_a(const Operand<bf16>& a, Range rows, Range depth, std::int64_t padded, bf16* to) {
    const auto put = [=](std::int64_t r, std::int64_t d, __m512i pairs) {
      bf16* panel = to + r * padded + d * kRows;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel), _mm512_castsi512_si256(pairs));
      if (r + kRows >= rows.count) return;
      panel += kRows * padded;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel), _mm512_extracti32x8_epi32(pairs, 1));
    };
    if (a.depth_contiguous) return turn(a, rows, rows.count, depth, put);
    // A few panels at a time, so that their cache lines do not evict each other.
    constexpr std::int64_t kAtOnce = 8 * kRows;
    for (std::int64_t r = 0; r < rows.count; r += kAtOnce) {
      const Range some{rows.first + r, smaller(kAtOnce, rows.count - r)};
      take_across(a, some, some.count, depth,
                  [=](std::int64_t i, std::int64_t d, __m512i pairs) { put(r + i, d, pairs); });
    }
  }

  // Packs B into one panel of kCols columns: (depth / 2, kCols) pairs.
  static void pack_b(const Operand<bf16>& b, Range cols, Range depth, bf16* to) {
    const auto put = [=](std::int64_t c, std::int64_t d, __m512i pairs) {
      _mm512_storeu_si512(to + d * kCols + 2 * c, pairs);
    };
    b.depth_contiguous ? turn(b, cols, kCols, depth, put) : take_across(b, cols, kCols, depth, put);
  }

  template <class Prefetch>
  static void multiply(const bf16* a, const bf16* b, std::int64_t depth, float* out, Prefetch& prefetch) {
    vec sums[kRows][3];
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = zero();
    for (std::int64_t slice = 0; slice < depth; slice += kSlice) {
      prefetch();
      const bf16* end = a + smaller(kSlice, depth - slice) * kRows;
      for (; a != end; a += 2 * kRows, b += 2 * kCols) {
        const __m512bh b0 = load_pairs(b), b1 = load_pairs(b + 2 * kLanes), b2 = load_pairs(b + 4 * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512bh pair = broadcast_pair(a + 2 * r);
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, b0);
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, b1);
          sums[r][2] = _mm512_dpbf16_ps(sums[r][2], pair, b2);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store(out + r * kCols, sums[r][0]);
      store(out + r * kCols + kLanes, sums[r][1]);
      store(out + r * kCols + 2 * kLanes, sums[r][2]);
    }
  }

  template <int rows>
  static void multiply_few(const bf16* a, const bf16* b, const bf16* other, std::int64_t depth, float* out) {
    vec sums[rows][6];
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < 6; ++v) sums[r][v] = zero();
    }
    for (std::int64_t d = 0; d < depth; d += 2, a += 2 * kRows, b += 2 * kCols, other += 2 * kCols) {
      const __m512bh columns[6] = {
          load_pairs(b),     load_pairs(b + 2 * kLanes),     load_pairs(b + 4 * kLanes),
          load_pairs(other), load_pairs(other + 2 * kLanes), load_pairs(other + 4 * kLanes)};
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const __m512bh row = broadcast_pair(a + 2 * r);
#pragma GCC unroll 6
        for (int v = 0; v < 6; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], row, columns[v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 6
      for (int v = 0; v < 6; ++v) {
        store(out + (v / 3 * kRows + r) * kCols + v % 3 * kLanes, sums[r][v]);
      }
    }
  }
  static void multiply_few(const bf16* a, const bf16* b, const bf16* other, std::int64_t depth,
                           std::int64_t rows, float* out) {
    rows == 1 ? multiply_few<1>(a, b, other, depth, out) : multiply_few<kFewRows>(a, b, other, depth, out);
  }
};

void forward(const Context& context, const MatmulForward& args) {
  run_forward<Dot, bf16>(context, args);
}
void dx(const Context& context, const MatmulDx& args) {
  run_dx<Dot, bf16>(context, args);
}
void dw(const Context& context, const MatmulDw& args) {
  run_dw<Dot, bf16>(context, args);
}

}  // namespace

void pack(const Context& context, const Tensor& weight, const Tensor& packed) {
  pack_weight<Dot, bf16>(context, weight, packed);
}

}  // namespace warpwright::ops::matmul::avx512_bf16

namespace warpwright::ops {
namespace this_isa = matmul::avx512_bf16;

WARPWRIGHT_KERNEL(MatmulForward, kCpu) = {.needs = kThisCpu,
                                          .dtypes = DType::bf16,
                                          .run = this_isa::forward,
                                          .refuse = this_isa::refuse_packed<this_isa::Dot>,
                                          .workspace = this_isa::workspace<this_isa::Dot>,
                                          .cost = simd::cost_of_dot,
                                          .configuration = this_isa::configuration<this_isa::Dot>};
WARPWRIGHT_KERNEL(MatmulDx, kCpu) = {.needs = kThisCpu,
                                     .dtypes = DType::bf16,
                                     .run = this_isa::dx,
                                     .workspace = this_isa::workspace<this_isa::Dot>,
                                     .cost = simd::cost_of_dot,
                                     .configuration = this_isa::configuration<this_isa::Dot>};
WARPWRIGHT_KERNEL(MatmulDw, kCpu) = {.needs = kThisCpu,
                                     .dtypes = DType::bf16,
                                     .run = this_isa::dw,
                                     .workspace = this_isa::workspace<this_isa::Dot>,
                                     .cost = simd::cost_of_dot,
                                     .configuration = this_isa::configuration<this_isa::Dot>};

}  // namespace warpwright::ops
