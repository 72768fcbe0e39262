// The fp32 tile: kTile.rows × 3 vectors of sums in registers (8 × 48 with AVX-512, 4 × 24 with AVX2). Each
// element of A is broadcast and multiplied by three vectors of B. bf16 operands are widened while they are
// packed.
//
// Bound by the FMA units: 24 (12) FMAs for 11 (7) loads per step. Packing costs 0.25 to 0.5 cycles per
// element of B, which is used for rows/32 cycles. With 256 rows, packing thus takes 3 % to 6 % of the time.
#include "ops/matmul/cpu/gemm.hpp"

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

// Transposes kLanes × kLanes in place.
#if defined(__AVX512F__)
inline void transpose(vec* r) {
  __m512 t[16];
#pragma GCC unroll 8
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
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // r[i + c]: column c (and 4 + c, …) of rows i … i + 3
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
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
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}
#else
inline void transpose(vec* r) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  __m256 u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
  }
}
#endif

#if defined(__AVX512F__)
constexpr Tile kFmaTile = kTileAvx512;
inline __m256 low_half(vec v) {
  return _mm512_castps512_ps256(v);
}
inline __m256 high_half(vec v) {
  return _mm512_extractf32x8_ps(v, 1);
}
inline void store_half(float* p, __m256 half) {
  _mm256_storeu_ps(p, half);
}
#else
constexpr Tile kFmaTile = kTileAvx2;
inline __m128 low_half(vec v) {
  return _mm256_castps256_ps128(v);
}
inline __m128 high_half(vec v) {
  return _mm256_extractf128_ps(v, 1);
}
inline void store_half(float* p, __m128 half) {
  _mm_storeu_ps(p, half);
}
#endif

struct Fma {
  static constexpr Tile kTile = kFmaTile;
  using Element = float;
  struct Session {};
  static constexpr int kRows = static_cast<int>(kTile.rows), kCols = static_cast<int>(kTile.cols);
  static_assert(kCols == 3 * kLanes && 2 * kRows == kLanes);
  static constexpr int kFewRows = kRows == 8 ? 4 : 1;  // the most whose sums of two panels fit in registers

  // Calls put(d, v) for every d of the depth. v holds element d of each of up to kLanes lines, and 0 beyond
  // them.
  template <class T, class Put>
  static void turn(const Operand<T>& o, Range lines, Range depth, Put&& put) {
    const T* from = o.at(lines.first, depth.first);
    for (std::int64_t d = 0; d < depth.count; d += kLanes) {
      const int n = static_cast<int>(smaller(kLanes, depth.count - d));
      vec r[kLanes];
      if (n == kLanes && lines.count >= kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) r[i] = load(from + i * o.ld + d);
      } else {
        for (int i = 0; i < kLanes; ++i) r[i] = i < lines.count ? load_lanes(from + i * o.ld + d, n) : zero();
      }
      transpose(r);
      if (n == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) put(d + i, r[i]);
      } else {
        for (int i = 0; i < n; ++i) put(d + i, r[i]);
      }
    }
  }

  // Packs two panels at a time from lines that are contiguous. It prefetches a later line of memory, because
  // the hardware does not prefetch across pages.
  template <class T>
  static void pack_a_across(const Operand<T>& a, Range rows, Range depth, std::int64_t padded, float* to) {
    constexpr std::int64_t kAhead = 8;
    for (std::int64_t d = 0; d < depth.count; ++d) {
      const T* from = a.at(rows.first, depth.first + d);
      const T* later = a.at(rows.first, depth.first + smaller(d + kAhead, depth.count - 1));
      float* panel = to + d * kRows;
      for (std::int64_t r = 0; r < rows.count; r += kLanes, panel += kLanes * padded) {
        _mm_prefetch(reinterpret_cast<const char*>(later + r), _MM_HINT_T0);
        const vec v = load_lanes(from + r, static_cast<int>(smaller(kLanes, rows.count - r)));
        store_half(panel, low_half(v));
        if (r + kRows < rows.count) store_half(panel + kRows * padded, high_half(v));
      }
    }
  }

  // Packs A into panels of kRows rows: (depth, kRows) each.
  template <class T>
  static void pack_a(const Operand<T>& a, Range rows, Range depth, std::int64_t padded, float* to) {
    if (!a.depth_contiguous) {
      // A few panels at a time, so that their cache lines do not evict each other.
      for (std::int64_t r = 0; r < rows.count; r += 8 * kRows) {
        const Range some{rows.first + r, smaller(8 * kRows, rows.count - r)};
        pack_a_across(a, some, depth, padded, to + r * padded);
      }
      return;
    }
    for (std::int64_t r = 0; r < rows.count; r += kLanes) {  // two panels at once
      float *first = to + r * padded, *second = r + kRows < rows.count ? first + kRows * padded : nullptr;
      turn(a, {rows.first + r, rows.count - r}, depth, [&](std::int64_t d, vec v) {
        store_half(first + d * kRows, low_half(v));
        if (second) store_half(second + d * kRows, high_half(v));
      });
    }
  }

  // Packs B into one panel of kCols columns: (depth, kCols).
  template <class T>
  static void pack_b(const Operand<T>& b, Range cols, Range depth, float* to) {
    if (!b.depth_contiguous) {
      for (std::int64_t d = 0; d < depth.count; ++d) {
        const T* from = b.at(cols.first, depth.first + d);
        for (std::int64_t c = 0; c < kCols; c += kLanes, to += kLanes) {
          const int n = static_cast<int>(smaller(kLanes, cols.count - c));
          store(to, n > 0 ? load_lanes(from + c, n) : zero());
        }
      }
      return;
    }
    for (std::int64_t c = 0; c < kCols; c += kLanes) {
      turn(b, {cols.first + c, cols.count - c}, depth,
           [&](std::int64_t d, vec v) { store(to + d * kCols + c, v); });
    }
  }

  template <class Prefetch>
  static void multiply(const float* a, const float* b, std::int64_t depth, float* out, Prefetch& prefetch) {
    vec sums[kRows][3];
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = zero();
    for (std::int64_t slice = 0; slice < depth; slice += kSlice) {
      prefetch();
      const float* end = a + smaller(kSlice, depth - slice) * kRows;
      for (; a != end; a += kRows, b += kCols) {
        const vec b0 = load(b), b1 = load(b + kLanes), b2 = load(b + 2 * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const vec broadcast = set1(a[r]);
          sums[r][0] = fma(broadcast, b0, sums[r][0]);
          sums[r][1] = fma(broadcast, b1, sums[r][1]);
          sums[r][2] = fma(broadcast, b2, sums[r][2]);
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
  static void multiply_few(const float* a, const float* b, const float* other, std::int64_t depth,
                           float* out) {
    vec sums[rows][6];
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < 6; ++v) sums[r][v] = zero();
    }
    for (std::int64_t d = 0; d < depth; ++d, a += kRows, b += kCols, other += kCols) {
      const vec columns[6] = {load(b),     load(b + kLanes),     load(b + 2 * kLanes),
                              load(other), load(other + kLanes), load(other + 2 * kLanes)};
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const vec row = set1(a[r]);
#pragma GCC unroll 6
        for (int v = 0; v < 6; ++v) sums[r][v] = fma(row, columns[v], sums[r][v]);
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
  static void multiply_few(const float* a, const float* b, const float* other, std::int64_t depth,
                           std::int64_t rows, float* out) {
    rows == 1 ? multiply_few<1>(a, b, other, depth, out) : multiply_few<kFewRows>(a, b, other, depth, out);
  }
};

template <class T, class Out>
void finish_rows(const Context& context, const Epilogue<T, Out>& e, const float* sums, const Shape& shape) {
  const std::int64_t rows = shape[0], cols = shape[1];
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t r = 0; r < rows; ++r) {
    for_each_vector(0, cols, [&](std::int64_t j, int n) {
      const vec v = finish(e, load_lanes(sums + r * cols + j, n), r, j, n);
      store_lanes(e.c + r * e.ldc + j, v, n);
    });
  }
}

template <class T>
void sum_columns(const Context& context, const MatmulDw& args) {
  const Operand<T> a{static_cast<const T*>(args.dout.data), args.dout.strides[0], false};
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1];
#pragma omp parallel for schedule(static) num_threads(context.threads())
  for (std::int64_t i = 0; i < N; i += kLanes) {
    sum_rows(a, {i, smaller(kLanes, N - i)}, {0, M}, static_cast<float*>(args.dbias.data),
             args.store == Store::add);
  }
}

void forward(const Context& context, const MatmulForward& args) {
  args.x.dtype == DType::f32 ? run_forward<Fma, float>(context, args) : run_forward<Fma, bf16>(context, args);
}
void dx(const Context& context, const MatmulDx& args) {
  args.dout.dtype == DType::f32 ? run_dx<Fma, float>(context, args) : run_dx<Fma, bf16>(context, args);
}
void dw(const Context& context, const MatmulDw& args) {
  args.x.dtype == DType::f32 ? run_dw<Fma, float>(context, args) : run_dw<Fma, bf16>(context, args);
}

}  // namespace

void finish(const Context& context, const MatmulForward& args, const float* sums) {
  const auto with = [&]<class T>() {
    with_type_of<T>(args.out, [&]<class Out>() {
      finish_rows(context, forward_epilogue<T, Out>(args), sums, args.out.shape);
    });
  };
  args.x.dtype == DType::f32 ? with.template operator()<float>() : with.template operator()<bf16>();
}
void finish(const Context& context, const MatmulDx& args, const float* sums) {
  const auto with = [&]<class T>() {
    with_type_of<T>(
        args.dx, [&]<class Out>() { finish_rows(context, dx_epilogue<T, Out>(args), sums, args.dx.shape); });
  };
  args.dout.dtype == DType::f32 ? with.template operator()<float>() : with.template operator()<bf16>();
}
void finish(const Context& context, const MatmulDw& args) {
  if (!args.dbias) return;
  args.x.dtype == DType::f32 ? sum_columns<float>(context, args) : sum_columns<bf16>(context, args);
}

void pack(const Context& context, const Tensor& weight, const Tensor& packed) {
  pack_weight<Fma, float>(context, weight, packed);
}

}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA

namespace warpwright::ops {
namespace this_isa = matmul::WARPWRIGHT_ISA;

WARPWRIGHT_KERNEL(MatmulForward, kCpu) = {.needs = kThisCpu,
                                          .dtypes = kCpuDTypes,
                                          .run = this_isa::forward,
                                          .refuse = this_isa::refuse_packed<this_isa::Fma>,
                                          .workspace = this_isa::workspace<this_isa::Fma>,
                                          .configuration = this_isa::configuration<this_isa::Fma>};
WARPWRIGHT_KERNEL(MatmulDx, kCpu) = {.needs = kThisCpu,
                                     .dtypes = kCpuDTypes,
                                     .run = this_isa::dx,
                                     .workspace = this_isa::workspace<this_isa::Fma>,
                                     .configuration = this_isa::configuration<this_isa::Fma>};
WARPWRIGHT_KERNEL(MatmulDw, kCpu) = {.needs = kThisCpu,
                                     .dtypes = kCpuDTypes,
                                     .run = this_isa::dw,
                                     .workspace = this_isa::workspace<this_isa::Fma>,
                                     .configuration = this_isa::configuration<this_isa::Fma>};

}  // namespace warpwright::ops
