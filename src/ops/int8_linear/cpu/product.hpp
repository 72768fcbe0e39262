// The product of rounded rows with packed panels, for the instruction set WARPWRIGHT_ISA. A file that
// includes this header describes its instructions in a Kernel:
//   static constexpr std::int64_t kRows;   rows of a tile of sums
//   static constexpr int kShift;           the rounded rows hold q + kShift: 0, or 128 for bytes without sign
//   using Session = …;                     lives on each thread during the product
//   multiply(x, rows, panel, steps, sums)  sums (kRows, kPanel) of at least `rows` rows
//
// A team rounds a block of rows into tiles of (16 rows, 64 terms) for each 64 terms of the depth; the block
// stays in L2. Each member then takes its own panels of the weight, which pass through L1. The steps after a
// tile's sums run after the product of the next tile, so that they do not wait for it.
#pragma once

#include <omp.h>

#include <cstring>

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

inline ivec magnitude_bits(vec v) {
  return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}
inline ivec larger(ivec a, ivec b) {
  return _mm512_max_epu32(a, b);
}
inline std::uint32_t largest(ivec v) {
  return static_cast<std::uint32_t>(_mm512_reduce_max_epu32(v));
}
// Rounds the lanes to int8 and flips the bits of `flip` in each.
inline void store_bytes(std::int8_t* to, vec v, int flip) {
  const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(flip))));
}
inline vec to_float(const std::int32_t* p) {
  return _mm512_cvtepi32_ps(_mm512_loadu_si512(p));
}

#else

inline ivec magnitude_bits(vec v) {
  return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}
inline ivec larger(ivec a, ivec b) {
  return _mm256_max_epu32(a, b);
}
inline std::uint32_t largest(ivec v) {
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(most));
}
inline void store_bytes(std::int8_t* to, vec v, int flip) {
  const __m256i words = _mm256_cvtps_epi32(v);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  const __m128i bytes = _mm_packs_epi16(halves, halves);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                   _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(flip))));
}
inline vec to_float(const std::int32_t* p) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#endif

template <class T>
inline vec load_lanes(const T* p, int n) {
  return n == kLanes ? load(p) : load(p, n);
}

// Rounds a row into its line of each of the row's tiles. `to` is its line of the first one. Returns the
// row's scale (int8_linear.hpp).
template <int shift, class T>
float round_row(const T* row, std::int64_t depth, std::int8_t* to) {
  static_assert(kStep % kLanes == 0);
  ivec most = magnitude_bits(zero());
  for (std::int64_t k = 0; k < depth; k += kLanes) {
    most = larger(most, magnitude_bits(load_lanes(row + k, static_cast<int>(smaller(kLanes, depth - k)))));
  }
  const std::uint32_t bits = largest(most);
  const bool finite = bits < 0x7f800000u;
  const float magnitude = __builtin_bit_cast(float, bits);
  const bool counts = finite && magnitude >= kLeastMaximum;
  const vec inverse = set1(counts ? kLargest / magnitude : 0.0f);
  for (std::int64_t k = 0; k < steps_of(depth) * kStep; k += kLanes) {
    const auto n = static_cast<int>(smaller(kLanes, depth - k));
    const vec v = n > 0 && counts ? load_lanes(row + k, n) * inverse : zero();
    store_bytes(to + k / kStep * kTileBytes + k % kStep, v, shift);
  }
  return !finite ? __builtin_nanf("") : counts ? magnitude / kLargest : 0.0f;
}

template <class Kernel, class T>
struct Product {
  const T* x;
  std::int64_t ldx;
  const T* bias;
  T* out;
  std::int64_t ldo;
  Activation activation;
  std::int64_t M, N, K;
  const std::byte* packed;
  std::byte* scratch;
  Grid grid;

  struct Range {
    std::int64_t first, count;
  };
  // The part-th of `parts` nearly equal shares of `count` in whole tiles.
  static Range share(std::int64_t count, std::int64_t tile, std::int64_t part, std::int64_t parts) {
    const std::int64_t tiles = (count + tile - 1) / tile;
    const std::int64_t begin = smaller(tiles * part / parts * tile, count);
    return {begin, smaller(tiles * (part + 1) / parts * tile, count) - begin};
  }
  // A team's rows from `block` on, for the index-th block.
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

  float* scales_of(std::int64_t team) const {
    return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(team) * grid.block_bytes);
  }
  std::int8_t* rounded_of(std::int64_t team) const {
    return reinterpret_cast<std::int8_t*>(scales_of(team) + grid.block);
  }

  void round_rows(std::int64_t team, std::int64_t member, std::int64_t index) const {
    const Range rows = rows_of(team, index);
    const Range mine = share(rows.count, 1, member, grid.col_teams);
    for (std::int64_t r = mine.first; r < mine.first + mine.count; ++r) {
      std::int8_t* line = rounded_of(team) + r / kTile * kTile * steps_of(K) * kStep + r % kTile * kStep;
      scales_of(team)[r] = round_row<Kernel::kShift>(x + (rows.first + r) * ldx, K, line);
    }
  }

  // A tile of sums that waits for the steps after the product.
  struct Waiting {
    std::int64_t row = 0, rows = 0, panel = 0;  // row: in out
    const float* scales = nullptr;              // of its rows
    const std::int32_t* sums = nullptr;
  };

  void finish(const Waiting& tile) const {
    const Panel panel = panel_at(packed, K, tile.panel);
    const std::int64_t col = tile.panel * kPanel;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const vec scale = set1(tile.scales[r]);
      T* to = out + (tile.row + r) * ldo + col;
      for (std::int64_t j = 0; j < smaller(kPanel, N - col); j += kLanes) {
        const auto n = static_cast<int>(smaller(kLanes, N - col - j));
        vec v = to_float(tile.sums + r * kPanel + j) * (scale * load(panel.scales + j));
        if (bias) v += load_lanes(bias + col + j, n);
        v = activate(activation, v);
        n == kLanes ? store(to + j, v) : store(to + j, v, n);
      }
    }
  }

  void multiply(std::int64_t team, std::int64_t member, std::int64_t index) const {
    const Range rows = rows_of(team, index),
                mine = share((N + kPanel - 1) / kPanel, 1, member, grid.col_teams);
    alignas(64) std::int32_t sums[2][Kernel::kRows * kPanel];
    Waiting waiting;
    int tile = 0;
    for (std::int64_t p = mine.first; p < mine.first + mine.count; ++p) {
      const Panel panel = panel_at(packed, K, p);
      for (std::int64_t r = 0; r < rows.count; r += Kernel::kRows, tile ^= 1) {
        const std::int64_t count = smaller(Kernel::kRows, rows.count - r);
        const std::int8_t* from =
            rounded_of(team) + r / kTile * kTile * steps_of(K) * kStep + r % kTile * kStep;
        Kernel::multiply(from, count, panel, steps_of(K), sums[tile]);
        finish(waiting);
        waiting = {rows.first + r, count, p, scales_of(team) + r, sums[tile]};
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
  p.out = static_cast<T*>(args.out.data);
  p.ldo = args.out.strides[0];
  p.activation = args.activation;
  p.grid =
      grid_of({.M = p.M, .N = p.N, .K = p.K, .dtype = args.x.dtype, .packed = args.packed.data != nullptr},
              context.device());
  p.scratch = static_cast<std::byte*>(context.scratch());
  p.packed = static_cast<const std::byte*>(args.packed.data);
  if (!p.packed) {
    pack(context, args.weight, p.scratch);
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
