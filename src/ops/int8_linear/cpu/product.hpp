// The product of rounded rows with packed panels, for the instruction set WARPWRIGHT_ISA. A file that
// includes this header describes its instructions in a Kernel:
//   static constexpr std::int64_t kRows;   rows of a tile of sums
//   using Session = …;                     lives on each thread during the product
//   multiply(x, rows, panel, steps, sums)  sums (kRows, kPanel) of at least `rows` rows
//
// A team rounds a block of rows into tiles of (16 rows, 64 terms) for each 64 terms of the depth; the block
// stays in L2. Each member then takes its own panels of the weight, with a few rows at a time (group_of).
// The steps after a tile's sums run after the product of the next tile, so that they do not wait for it.
#pragma once

#include <omp.h>

#include "ops/cpu/gelu.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/int8_linear/kernels.hpp"

namespace warpwright::ops::int8::WARPWRIGHT_ISA {
namespace {

using namespace simd;

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

#if defined(__AVX512F__)

inline bool all_finite(vec zeros) {  // of 0 · x
  return _mm512_cmp_ps_mask(zeros, zeros, _CMP_UNORD_Q) == 0;
}
// The bytes round(v) + z, limited to 0 … 255.
inline void store_bytes(std::uint8_t* to, vec v, std::int32_t z) {
  const ivec q =
      _mm512_max_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(z)), _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(q));
}
inline ivec load_words(const std::int32_t* p) {
  return _mm512_loadu_si512(p);
}
// Σ q·w − z·Σ w
inline vec corrected(const std::int32_t* products, std::int32_t z, ivec sums) {
  return _mm512_cvtepi32_ps(
      _mm512_sub_epi32(load_words(products), _mm512_mullo_epi32(_mm512_set1_epi32(z), sums)));
}

#else

inline bool all_finite(vec zeros) {
  return _mm256_movemask_ps(_mm256_cmp_ps(zeros, zeros, _CMP_UNORD_Q)) == 0;
}
inline void store_bytes(std::uint8_t* to, vec v, std::int32_t z) {
  const ivec q = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(z));
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
}
inline ivec load_words(const std::int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline vec corrected(const std::int32_t* products, std::int32_t z, ivec sums) {
  return _mm256_cvtepi32_ps(
      _mm256_sub_epi32(load_words(products), _mm256_mullo_epi32(_mm256_set1_epi32(z), sums)));
}

#endif

struct Row {
  float scale;
  std::int32_t zero;
};

// Rounds a row of x · c into its line of each of the row's tiles. `to` is its line of the first one.
template <class T>
Row round_row(const T* row, const float* factors, std::int64_t depth, std::uint8_t* to) {
  static_assert(kStep % kLanes == 0);
  vec low = zero(), high = zero(), zeros = zero();
  for (std::int64_t k = 0; k < depth; k += kLanes) {
    const vec v = load_lanes(row + k, static_cast<int>(smaller(kLanes, depth - k))) * load(factors + k);
    low = min(low, v);
    high = max(high, v);
    zeros = fma(v, zero(), zeros);
  }
  const float first = -maximum(zero() - low), range = maximum(high) - first;
  const bool finite = all_finite(zeros) && range <= __FLT_MAX__;
  const bool counts = finite && range >= kLeastRange;
  const float inverse = counts ? kMostX / range : 0.0f;
  const std::int32_t shift = counts ? _mm_cvtss_si32(_mm_set_ss(-first * inverse)) : 0;
  for (std::int64_t k = 0; k < steps_of(depth) * kStep; k += kLanes) {
    const auto n = static_cast<int>(smaller(kLanes, depth - k));
    const vec v = n > 0 && counts ? load_lanes(row + k, n) * load(factors + k) * set1(inverse) : zero();
    store_bytes(to + k / kStep * kTileBytes + k % kStep, v, shift);
  }
  return {!finite ? __builtin_nanf("") : counts ? range / kMostX : 0.0f, shift};
}

template <class Kernel, class T>
struct Product {
  const T* x;
  std::int64_t ldx;
  const T* bias;
  const T* residual;
  std::int64_t ldr;
  T* out;
  std::int64_t ldo;
  Activation activation;
  std::int64_t M, N, K;
  const std::byte* packed;
  std::byte* scratch;
  Grid grid;
  std::int64_t l1_bytes, l2_bytes;

  struct Range {
    std::int64_t first, count;
  };
  // The part-th of `parts` nearly equal shares of `count` in whole tiles.
  static Range share(std::int64_t count, std::int64_t tile, std::int64_t part, std::int64_t parts) {
    const std::int64_t tiles = (count + tile - 1) / tile;
    const std::int64_t begin = smaller(tiles * part / parts * tile, count);
    return {begin, smaller(tiles * (part + 1) / parts * tile, count) - begin};
  }
  // The index-th block of a team's rows.
  Range rows_of(std::int64_t team, std::int64_t index) const {
    const Range all = share(M, kTile, team, grid.row_teams);
    const std::int64_t first = smaller(index * grid.block, all.count);
    return {all.first + first, smaller(grid.block, all.count - first)};
  }
  std::int64_t blocks() const {
    const std::int64_t tiles = (M + kTile - 1) / kTile;
    const std::int64_t most = (tiles + grid.row_teams - 1) / grid.row_teams * kTile;
    return (most + grid.block - 1) / grid.block;
  }

  Row* rows_in(std::int64_t team) const {
    return reinterpret_cast<Row*>(scratch + static_cast<std::size_t>(team) * grid.block_bytes);
  }
  // The line of a row in the first tile of its 16 rows.
  std::uint8_t* line_of(std::int64_t team, std::int64_t row) const {
    auto* rounded = reinterpret_cast<std::uint8_t*>(rows_in(team) + grid.block);
    return rounded + row / kTile * kTile * steps_of(K) * kStep + row % kTile * kStep;
  }

  void round_rows(std::int64_t team, std::int64_t member, std::int64_t index) const {
    const Range rows = rows_of(team, index);
    const Range mine = share(rows.count, 1, member, grid.col_teams);
    for (std::int64_t r = mine.first; r < mine.first + mine.count; ++r) {
      rows_in(team)[r] =
          round_row(x + (rows.first + r) * ldx, reinterpret_cast<const float*>(packed), K, line_of(team, r));
    }
  }

  // A tile of sums that waits for the steps after the product.
  struct Waiting {
    std::int64_t row = 0, rows = 0, panel = 0;  // row: in out
    const Row* of_rows = nullptr;
    const std::int32_t* products = nullptr;
  };

  // The steps after the sums for the first n of kLanes columns of a tile.
  void finish_columns(const Waiting& tile, const Panel& panel, std::int64_t j, int n) const {
    const std::int64_t col = tile.panel * kPanel + j;
    const ivec sums = load_words(panel.sums + j);
    const vec scales = load(panel.scales + j), shift = bias ? load_lanes(bias + col, n) : zero();
    T* to = out + tile.row * ldo + col;
    for (std::int64_t r = 0; r < tile.rows; ++r, to += ldo) {
      const Row& row = tile.of_rows[r];
      const vec sum = corrected(tile.products + r * kPanel + j, row.zero, sums);
      vec v = activate(activation, fma(sum, set1(row.scale) * scales, shift));
      if (residual) v = v + load_lanes(residual + (tile.row + r) * ldr + col, n);
      store_lanes(to, v, n);
    }
  }
  void finish(const Waiting& tile) const {
    const Panel panel = panel_at(packed, K, tile.panel);
    const std::int64_t columns = smaller(kPanel, N - tile.panel * kPanel);
    for (std::int64_t j = 0; j < columns; j += kLanes) {
      const auto n = static_cast<int>(smaller(kLanes, columns - j));
      finish_columns(tile, panel, j, n);
    }
  }

  // The rows that take all panels before the next rows do: those that stay in L1 next to a panel. The weight
  // passes once for each such group. If the groups are small, and the weight does not stay in L2, it passes
  // once for all rows instead.
  std::int64_t group_of(std::int64_t rows) const {
    const std::int64_t line = steps_of(K) * kStep + 1;
    const std::int64_t fit = l1_bytes * 5 / 8 / line / Kernel::kRows * Kernel::kRows;
    const bool stays = N * line <= l2_bytes / 2;
    if (fit < 2 * kTile && !stays) return rows;
    return fit > 0 ? fit : Kernel::kRows;
  }

  void multiply(std::int64_t team, std::int64_t member, std::int64_t index) const {
    const Range rows = rows_of(team, index),
                mine = share((N + kPanel - 1) / kPanel, 1, member, grid.col_teams);
    alignas(64) std::int32_t products[2][Kernel::kRows * kPanel];
    Waiting waiting;
    int tile = 0;
    const std::int64_t group = group_of(rows.count);
    for (std::int64_t g = 0; g < rows.count; g += group) {
      for (std::int64_t p = mine.first; p < mine.first + mine.count; ++p) {
        const Panel panel = panel_at(packed, K, p);
        for (std::int64_t r = g; r < smaller(g + group, rows.count); r += Kernel::kRows, tile ^= 1) {
          const std::int64_t count = smaller(Kernel::kRows, rows.count - r);
          Kernel::multiply(line_of(team, r), count, panel, steps_of(K), products[tile]);
          finish(waiting);
          waiting = {rows.first + r, count, p, rows_in(team) + r, products[tile]};
        }
      }
    }
    finish(waiting);
  }

  void run(int team_size) const {
    const std::int64_t workers = grid.row_teams * grid.col_teams, count = blocks();
#pragma omp parallel num_threads(team_size)
    {
      // If there are fewer threads than workers, each thread takes several.
      const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
      [[maybe_unused]] const typename Kernel::Session session;
      const bool shared = grid.col_teams > 1;
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t w = thread; w < workers; w += threads) {
          round_rows(w / grid.col_teams, w % grid.col_teams, i);
          if (!shared) multiply(w, 0, i);
        }
        if (!shared) continue;
#pragma omp barrier
        for (std::int64_t w = thread; w < workers; w += threads) {
          multiply(w / grid.col_teams, w % grid.col_teams, i);
        }
#pragma omp barrier
      }
    }
  }
};

template <class Kernel, class T>
void run_of(const Context& context, const Int8Linear& args) {
  Product<Kernel, T> p;
  p.x = static_cast<const T*>(args.x.data);
  p.M = args.x.shape[0];
  p.K = args.x.shape[1];
  p.N = args.weight.shape[0];
  p.ldx = args.x.strides[0];
  p.bias = static_cast<const T*>(args.bias.data);
  p.residual = static_cast<const T*>(args.residual.data);
  p.ldr = args.residual.strides[0];
  p.out = static_cast<T*>(args.out.data);
  p.ldo = args.out.strides[0];
  p.activation = args.activation;
  p.grid =
      grid_of({.M = p.M, .N = p.N, .K = p.K, .dtype = args.x.dtype, .packed = args.packed.data != nullptr},
              context.device());
  p.l1_bytes = static_cast<std::int64_t>(context.device().l1_bytes);
  p.l2_bytes = static_cast<std::int64_t>(context.device().l2_bytes);
  p.scratch = static_cast<std::byte*>(context.scratch());
  p.packed = static_cast<const std::byte*>(args.packed.data);
  if (!p.packed) {
    pack(context, args.weight, args.factors, p.scratch);
    p.packed = p.scratch;
    p.scratch += p.grid.packed_bytes;
  }
  p.run(context.threads());
}

template <class Kernel>
void run(const Context& context, const Int8Linear& args) {
  args.x.dtype == DType::f32 ? run_of<Kernel, float>(context, args) : run_of<Kernel, bf16>(context, args);
}

}  // namespace
}  // namespace warpwright::ops::int8::WARPWRIGHT_ISA
