#pragma once
// The blocked product C = A·B that the packed kernels share. The including file has defined, in an unnamed
// namespace of WARPWRIGHT_ISA, nothing yet; it includes this and then describes its tile in a Kernel:
//   static constexpr Tile kTile;  using Element = …;       of packed panels
//   pack_a(operand, row_tiles, …)  pack_b(…)                zero-padded to whole tiles
//   multiply(a, b, depth, out)                              one tile of results, stored to out
//
// Per team and step: pack a block of A (kept in L2 by the blocking) together, wait for each other, then each
// member takes its columns: pack a group of B, multiply it with every row tile of the block. The tile of
// results goes through L1 to the epilogue, which alone knows of ragged edges, dtypes and what follows the
// product.
#include "ops/cpu/gelu.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/matmul/kernels.hpp"

#include <omp.h>

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

using namespace simd;

// Element (i, d), i a row of A or a column of B and d along the depth, is data[i·ld + d] where the depth is
// contiguous, else data[d·ld + i].
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t ld = 0;
  bool depth_contiguous = true;

  const T* at(std::int64_t i, std::int64_t d) const {
    return depth_contiguous ? data + i * ld + d : data + d * ld + i;
  }
};

// A range [first, first + count) of rows or columns and of the depth, of which a packed panel is made.
struct Range {
  std::int64_t first, count;
};

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) {
  return (count + tile - 1) / tile;
}

template <class T>
inline vec load_lanes(const T* p, int n) {
  return n == kLanes ? load(p) : load(p, n);
}
template <class T>
inline void store_lanes(T* p, vec v, int n) {
  n == kLanes ? store(p, v) : store(p, v, n);
}

// What becomes of a tile of sums. `sums` holds what earlier chunks of the depth have left: C itself where it
// is fp32, a place in the scratch otherwise.
template <class T>
struct Epilogue {
  T* c = nullptr;
  std::int64_t ldc = 0;
  const T* bias = nullptr;  // forward
  T* preact = nullptr;      // forward: written; dx: read
  std::int64_t ld_preact = 0;
  Activation activation = Activation::none;
  bool gradient = false;         // multiply by act'(preact) instead of applying act
  bool add = false;              // C is +=
  bool past_caches = false;      // C is written once, aligned, and too large for the caches
  float* column_sums = nullptr;  // dw: the row sums of A, (rows)
};

struct Place {
  std::int64_t row, col, rows, cols;  // of the tile, cut at C's edges
  float* sums;                        // of the tile's first element
  std::int64_t ld_sums;
  bool first, last;  // chunk of the depth
};

inline vec apply(Activation activation, vec v) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(v);
    case Activation::gelu_erf:
      return gelu_erf(v);
    default:
      return v;
  }
}

inline vec apply_derivative(Activation activation, vec v, vec preact) {
  return activation == Activation::gelu_tanh ? v * gelu_tanh_derivative(preact)
                                             : v * gelu_erf_derivative(preact);
}

template <class T>
inline vec finish(const Epilogue<T>& e, vec v, std::int64_t row, std::int64_t col, int n) {
  if (e.bias) v += load_lanes(e.bias + col, n);
  T* preact = e.preact ? e.preact + row * e.ld_preact + col : nullptr;
  if (e.gradient) return apply_derivative(e.activation, v, load_lanes(preact, n));
  if (preact) store_lanes(preact, v, n);
  return apply(e.activation, v);
}

template <class T>
inline void put_vector(const Epilogue<T>& e, const Place& p, std::int64_t r, std::int64_t j, vec v, int n) {
  float* sums = p.sums + r * p.ld_sums + j;
  if (!p.first) v += load_lanes(sums, n);
  if (!p.last) {
    store_lanes(sums, v, n);
    return;
  }
  T* c = e.c + (p.row + r) * e.ldc + p.col + j;
  v = finish(e, v, p.row + r, p.col + j, n);
  if (e.past_caches && n == kLanes) {
    stream(c, v);
  } else {
    store_lanes(c, v, n);
  }
}

// tile: (rows, ld) fp32 in L1.
template <class T>
void put_tile(const Epilogue<T>& e, Place p, const float* tile, std::int64_t ld) {
  if (e.add) p.first = false;  // C is fp32 then, and holds the sum so far
  for (std::int64_t r = 0; r < p.rows; ++r) {
    std::int64_t j = 0;
    for (; j + kLanes <= p.cols; j += kLanes) put_vector(e, p, r, j, load(tile + r * ld + j), kLanes);
    if (j < p.cols) put_vector(e, p, r, j, load(tile + r * ld + j), static_cast<int>(p.cols - j));
  }
}

// Asks for the lines that put_tile will read, while the product that precedes it runs.
template <class T>
inline void prefetch_tile(const Epilogue<T>& e, const Place& p) {
  const bool sums = !p.first || e.add;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    for (std::int64_t j = 0; sums && j < p.cols; j += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(p.sums + r * p.ld_sums + j), _MM_HINT_T0);
    }
    for (std::int64_t j = 0; e.gradient && p.last && j < p.cols; j += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(e.preact + (p.row + r) * e.ld_preact + p.col + j),
                   _MM_HINT_T0);
    }
  }
}

// sums[i] (= or +=) Σ_d A(i, d) over a range, for an A whose rows are contiguous.
template <class T>
void sum_rows(const Operand<T>& a, Range rows, Range depth, float* sums, bool add) {
  for (std::int64_t i = rows.first; i < rows.first + rows.count; i += kLanes) {
    const int n = static_cast<int>(smaller(kLanes, rows.first + rows.count - i));
    vec even = zero(), odd = zero();
    std::int64_t d = depth.first;
    const std::int64_t end = depth.first + depth.count;
    for (; d + 2 <= end; d += 2) {
      even += load_lanes(a.at(i, d), n);
      odd += load_lanes(a.at(i, d + 1), n);
    }
    if (d < end) even += load_lanes(a.at(i, d), n);
    const vec total = even + odd;
    store_lanes(sums + i, add ? load_lanes(sums + i, n) + total : total, n);
  }
}

template <class Kernel, class T, class TOut>
struct Gemm {
  static constexpr Tile kTile = Kernel::kTile;
  using Element = typename Kernel::Element;

  Operand<T> a, b;
  Extent extent;
  Epilogue<TOut> epilogue;
  Blocking block;
  std::byte* scratch;

  // Where a worker is: its team, its place in it, and the step's ranges of depth, rows and columns.
  struct Step {
    std::int64_t team, member, parity;
    std::int64_t chunk;
    Range depth, rows, cols;
  };

  Element* a_panel(const Step& s) const {
    return reinterpret_cast<Element*>(scratch +
                                      static_cast<std::size_t>(2 * s.team + s.parity) * block.a_bytes);
  }
  Element* b_panel(const Step& s) const {
    const auto worker = static_cast<std::size_t>(s.team * block.col_teams + s.member);
    return reinterpret_cast<Element*>(scratch + block.b_offset + worker * block.b_bytes);
  }

  // The part-th of `parts` nearly equal shares of a range, in whole tiles.
  static Range share(Range whole, std::int64_t tile, std::int64_t part, std::int64_t parts) {
    const std::int64_t tiles = tiles_of(whole.count, tile);
    const std::int64_t begin = smaller(tiles * part / parts * tile, whole.count);
    const std::int64_t end = smaller(tiles * (part + 1) / parts * tile, whole.count);
    return {whole.first + begin, end - begin};
  }

  // This member's share of the team's block of A.
  void pack_rows(const Step& s) const {
    const Range mine = share(s.rows, kTile.rows, s.member, block.col_teams);
    if (mine.count <= 0) return;
    Element* panel = a_panel(s) + (mine.first - s.rows.first) * block.depth;
    Kernel::pack_a(a, mine, s.depth, block.depth, panel);
    if (epilogue.column_sums && s.cols.first == 0) {
      sum_rows(a, mine, s.depth, epilogue.column_sums, epilogue.add || s.chunk > 0);
    }
  }

  Place place(const Step& s, std::int64_t row, std::int64_t col) const {
    Place p{row,
            col,
            smaller(kTile.rows, s.rows.first + s.rows.count - row),
            smaller(kTile.cols, extent.cols - col),
            nullptr,
            0,
            s.chunk == 0,
            s.chunk + 1 == block.depth_chunks};
    if constexpr (sizeof(TOut) == sizeof(float)) {
      p.sums = epilogue.c + row * epilogue.ldc + col;
      p.ld_sums = epilogue.ldc;
    } else {
      p.ld_sums = block.cols;
      p.sums = reinterpret_cast<float*>(scratch + block.sums_offset +
                                        static_cast<std::size_t>(s.team) * block.sums_bytes) +
               (row - s.rows.first) * block.cols + (col - s.cols.first);
    }
    return p;
  }

  // This member's columns of the step: every group of B against every row tile of the team's block.
  void multiply(const Step& s) const {
    alignas(64) float tile[kTile.rows * kTile.cols];
    const Range mine = share(s.cols, kTile.cols, s.member, block.col_teams);
    const std::int64_t end = mine.first + mine.count, width = kTile.group * kTile.cols;
    const std::int64_t depth = tiles_of(s.depth.count, kTile.depth) * kTile.depth;
    for (std::int64_t group = mine.first; group < end; group += width) {
      const Range cols{group, smaller(width, end - group)};
      Kernel::pack_b(b, cols, s.depth, block.depth, b_panel(s));
      for (std::int64_t col = group; col < group + cols.count; col += kTile.cols) {
        const Element* b_tile = b_panel(s) + (col - group) * block.depth;
        for (std::int64_t row = s.rows.first; row < s.rows.first + s.rows.count; row += kTile.rows) {
          const Place p = place(s, row, col);
          prefetch_tile(epilogue, p);
          Kernel::multiply(a_panel(s) + (row - s.rows.first) * block.depth, b_tile, depth, tile);
          put_tile(epilogue, p, tile, kTile.cols);
        }
      }
    }
  }

  // Everything worker number `worker` of all does; barriers are the caller's, so that one thread can play
  // several workers where OpenMP grants fewer threads than asked for.
  template <class F>
  void for_workers(int thread, int threads, Step s, Range all_rows, F&& f) const {
    const std::int64_t workers = block.row_teams * block.col_teams;
    for (std::int64_t w = thread; w < workers; w += threads) {
      s.team = w / block.col_teams;
      s.member = w % block.col_teams;
      const Range team_rows = share({0, extent.rows}, kTile.rows, s.team, block.row_teams);
      s.rows = {team_rows.first + all_rows.first, smaller(all_rows.count, team_rows.count - all_rows.first)};
      if (s.rows.count > 0) f(s);
    }
  }

  void run() const {
    // The largest team's rows; the others skip the steps that lie beyond theirs.
    const std::int64_t team_rows = tiles_of(tiles_of(extent.rows, kTile.rows), block.row_teams) * kTile.rows;
#pragma omp parallel num_threads(static_cast <int>(block.row_teams * block.col_teams))
    {
      const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
      Kernel::begin();
      Step s{};
      for (std::int64_t col = 0; col < extent.cols; col += block.cols) {
        s.cols = {col, smaller(block.cols, extent.cols - col)};
        for (std::int64_t row = 0; row < team_rows; row += block.rows) {
          for (s.chunk = 0; s.chunk < block.depth_chunks; ++s.chunk) {
            s.depth = {s.chunk * block.depth, smaller(block.depth, extent.depth - s.chunk * block.depth)};
            const Range rows{row, block.rows};
            for_workers(thread, threads, s, rows, [&](const Step& step) { pack_rows(step); });
#pragma omp barrier
            for_workers(thread, threads, s, rows, [&](const Step& step) { multiply(step); });
            s.parity ^= 1;
          }
        }
      }
      Kernel::end();
    }
  }
};

template <class T>
Epilogue<T> forward_epilogue(const MatmulForward& args) {
  Epilogue<T> e;
  e.c = static_cast<T*>(args.out.data);
  e.ldc = args.out.strides[0];
  e.bias = static_cast<const T*>(args.bias.data);
  e.preact = static_cast<T*>(args.preact.data);
  e.ld_preact = args.preact ? args.preact.strides[0] : 0;
  e.activation = args.activation;
  return e;
}

template <class Kernel, class T>
void run_forward(const Context& context, const MatmulForward& args) {
  Gemm<Kernel, T, T> g;
  g.extent = {args.x.shape[0], args.weight.shape[0], args.x.shape[1]};
  g.a = {static_cast<const T*>(args.x.data), args.x.strides[0], true};
  g.b = {static_cast<const T*>(args.weight.data), args.x.shape[1], true};
  g.epilogue = forward_epilogue<T>(args);
  g.block = block(g.extent, Kernel::kTile, sizeof(T) != sizeof(float), context.device());
  g.scratch = static_cast<std::byte*>(context.scratch());
  g.run();
}

template <class Kernel, class T>
void run_dx(const Context& context, const MatmulDx& args) {
  Gemm<Kernel, T, T> g;
  g.extent = {args.dout.shape[0], args.weight.shape[1], args.dout.shape[1]};
  g.a = {static_cast<const T*>(args.dout.data), args.dout.strides[0], true};
  g.b = {static_cast<const T*>(args.weight.data), args.weight.shape[1], false};
  g.epilogue.c = static_cast<T*>(args.dx.data);
  g.epilogue.ldc = args.dx.strides[0];
  g.epilogue.preact = static_cast<T*>(args.preact.data);
  g.epilogue.ld_preact = args.preact ? args.preact.strides[0] : 0;
  g.epilogue.activation = args.activation;
  g.epilogue.gradient = args.activation != Activation::none;
  g.block = block(g.extent, Kernel::kTile, sizeof(T) != sizeof(float), context.device());
  g.scratch = static_cast<std::byte*>(context.scratch());
  g.run();
}

template <class Kernel, class T>
void run_dw(const Context& context, const MatmulDw& args) {
  Gemm<Kernel, T, float> g;
  g.extent = {args.dout.shape[1], args.x.shape[1], args.x.shape[0]};
  g.a = {static_cast<const T*>(args.dout.data), args.dout.strides[0], false};
  g.b = {static_cast<const T*>(args.x.data), args.x.strides[0], false};
  g.epilogue.c = static_cast<float*>(args.dweight.data);
  g.epilogue.ldc = args.x.shape[1];
  g.epilogue.add = args.store == Store::add;
  g.epilogue.column_sums = static_cast<float*>(args.dbias.data);
  g.block = block(g.extent, Kernel::kTile, false, context.device());
  // Whole lines only: 64-byte rows of 16 fp32 that start on a line.
  const bool lines = kLanes == 16 && args.x.shape[1] % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(args.dweight.data) % 64 == 0;
  g.epilogue.past_caches = lines && !g.epilogue.add && g.block.depth_chunks == 1 &&
                           args.dweight.bytes() > context.device().l2_bytes;
  g.scratch = static_cast<std::byte*>(context.scratch());
  g.run();
}

}  // namespace
}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA
