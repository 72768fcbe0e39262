// The blocked product C = A·B of the packed kernels, for the instruction set WARPWRIGHT_ISA. A file that
// includes this header describes its tile in a Kernel:
//   static constexpr Tile kTile;
//   using Element = …;                   of packed panels
//   using Session = …;                   lives on each thread during the product
//   pack_a(operand, rows, depth, …)      pads to whole tiles with zeros
//   pack_b(operand, cols, depth, to)     the same for one panel
//   multiply(a, b, depth, out, …)        stores one tile of results to out
//   kFewRows, multiply_few(a, b, other, depth, rows, out)
//                                        stores the first rows, at most kFewRows, of the tiles of two panels,
//                                        one tile after the other
//
// In each step, a team packs a block of A together (the blocking keeps it in L2), and its members wait for
// each other. Each member then processes its own columns: it packs a panel of B and multiplies it with every
// row tile of the block. Each tile of results goes through L1 to the epilogue. Only the epilogue deals with
// incomplete tiles, dtypes and the steps after the product.
#pragma once

#include <omp.h>

#include "ops/cpu/gelu.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

using namespace simd;

// Element (i, d), where i is a row of A or a column of B and d is along the depth, is data[i·ld + d] if the
// depth is contiguous, otherwise data[d·ld + i].
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t ld = 0;
  bool depth_contiguous = true;

  const T* at(std::int64_t i, std::int64_t d) const {
    return depth_contiguous ? data + i * ld + d : data + d * ld + i;
  }
};

// A range [first, first + count) of rows, columns or the depth.
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

// The steps after a tile's sums. `sums` holds the sums of earlier chunks of the depth: in C itself if it is
// fp32, otherwise in the scratch.
template <class T, class Out>
struct Epilogue {
  Out* c = nullptr;
  std::int64_t ldc = 0;
  const T* bias = nullptr;  // forward
  T* preact = nullptr;      // forward: written; dx: read
  std::int64_t ld_preact = 0;
  Activation activation = Activation::none;
  float scale = 1;                // forward
  const Out* residual = nullptr;  // forward
  std::int64_t ld_residual = 0;
  bool gradient = false;         // multiplies by act'(preact) instead of applying act
  bool add = false;              // C is +=
  bool plain = true;             // there is nothing but the product
  bool past_caches = false;      // C is written once, is aligned, and is too large for the caches
  float* column_sums = nullptr;  // dw: the row sums of A, (rows)
};

struct Place {
  std::int64_t row, col, rows, cols;  // of the tile, clipped to C
  float* sums;                        // for the tile's first element
  std::int64_t ld_sums;
  bool first, last;  // of the chunks of the depth
};

inline vec apply_derivative(Activation activation, vec v, vec preact) {
  switch (activation) {
    case Activation::gelu_tanh:
      return v * gelu_tanh_derivative(preact);
    case Activation::gelu_erf:
      return v * gelu_erf_derivative(preact);
    case Activation::relu:
      return v * relu_derivative(preact);
    case Activation::tanh:
      return v * tanh_derivative(preact);
    default:
      return v;
  }
}

template <class T, class Out>
inline vec finish(const Epilogue<T, Out>& e, vec v, std::int64_t row, std::int64_t col, int n) {
  if (e.bias) v += load_lanes(e.bias + col, n);
  T* preact = e.preact ? e.preact + row * e.ld_preact + col : nullptr;
  if (e.gradient) return apply_derivative(e.activation, v, load_lanes(preact, n));
  if (preact) store_lanes(preact, v, n);
  v = activate(e.activation, v) * set1(e.scale);
  return e.residual ? load_lanes(e.residual + row * e.ld_residual + col, n) + v : v;
}

// Adds the earlier sums to one vector of a row. Stores it as a sum, or finishes it and stores the result.
template <class T, class Out>
inline void put_vector(const Epilogue<T, Out>& e, const Place& p, float* sums, Out* c, std::int64_t r,
                       std::int64_t j, vec v, int n) {
  if (!p.first) v += load_lanes(sums + j, n);
  if (!p.last) {
    store_lanes(sums + j, v, n);
    return;
  }
  if (!e.plain) v = finish(e, v, p.row + r, p.col + j, n);
  if (e.past_caches && n == kLanes) {
    stream(c + j, v);
  } else {
    store_lanes(c + j, v, n);
  }
}

// Stores a row of a tile. It adds the earlier sums unless this chunk is the first.
template <std::int64_t width, class TOut>
inline void put_row(TOut* to, const float* sums, const float* tile, bool first) {
  if (first) {
    for (std::int64_t j = 0; j < width; j += kLanes) store(to + j, load(tile + j));
  } else {
    for (std::int64_t j = 0; j < width; j += kLanes) store(to + j, load(tile + j) + load(sums + j));
  }
}

// Stores the rows of a tile of `width` columns, which is in L1.
template <std::int64_t width, class T, class Out>
inline void put_rows(const Epilogue<T, Out>& e, const Place& p, const float* tile) {
  const bool whole = p.cols == width && !e.past_caches && (e.plain || !p.last);
  for (std::int64_t r = 0; r < p.rows; ++r, tile += width) {
    float* sums = p.sums + r * p.ld_sums;
    Out* c = e.c + (p.row + r) * e.ldc + p.col;
    if (whole) {
      p.last ? put_row<width>(c, sums, tile, p.first) : put_row<width>(sums, sums, tile, p.first);
      continue;
    }
    const auto put = [&](std::int64_t j, int n) { put_vector(e, p, sums, c, r, j, load(tile + j), n); };
    if (p.cols == width) {
      for (std::int64_t j = 0; j < width; j += kLanes) put(j, kLanes);
    } else {
      for_each_vector(0, p.cols, put);
    }
  }
}

// sums[i] (= or +=) Σ_d A(i, d) over a range, for an A whose elements (i, d) are contiguous along i.
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

constexpr std::int64_t kSlice = 32;  // of the depth, between two calls of prefetch
constexpr std::int64_t kLineBytes = 64;

template <class Kernel, class T, class TOut>
struct Gemm {
  static constexpr Tile kTile = Kernel::kTile;
  using Element = typename Kernel::Element;

  Operand<T> a, b;
  Extent extent;
  Epilogue<T, TOut> epilogue;
  Blocking block{};  // braces: a constructor would be a shared function
  std::byte* scratch;
  const Element* packed = nullptr;  // all of B, from pack_all()

  // One sweep of a worker: a block of its team's rows, its own columns, and one chunk of the depth.
  struct Step {
    std::int64_t team, member;
    std::int64_t chunk, first_col;
    Range depth, rows, cols;
  };

  // The part-th of `parts` nearly equal shares of a range, in whole tiles.
  static Range share(Range whole, std::int64_t tile, std::int64_t part, std::int64_t parts) {
    const std::int64_t tiles = tiles_of(whole.count, tile);
    const std::int64_t begin = smaller(tiles * part / parts * tile, whole.count);
    const std::int64_t end = smaller(tiles * (part + 1) / parts * tile, whole.count);
    return {whole.first + begin, end - begin};
  }

  // The row blocks of the largest team. The other teams have no work in the blocks beyond their own.
  std::int64_t row_blocks() const {
    const std::int64_t tiles = tiles_of(tiles_of(extent.rows, kTile.rows), block.row_teams);
    return tiles_of(tiles * kTile.rows, block.rows);
  }
  std::int64_t steps() const {
    const std::int64_t sweeps = tiles_of(extent.cols, block.cols);
    return (sweeps == 0 && epilogue.column_sums ? 1 : sweeps) * row_blocks() * block.depth_chunks;
  }

  // The columns are the outermost loop and the depth the innermost, so that C stays in the caches while it is
  // summed.
  Step step_of(std::int64_t worker, std::int64_t index) const {
    Step s;
    s.team = worker / block.col_teams;
    s.member = worker % block.col_teams;
    s.chunk = index % block.depth_chunks;
    s.depth = {s.chunk * block.depth, smaller(block.depth, extent.depth - s.chunk * block.depth)};
    index /= block.depth_chunks;
    const Range team = share({0, extent.rows}, kTile.rows, s.team, block.row_teams);
    const std::int64_t row = index % row_blocks() * block.rows;
    s.rows = {team.first + row, smaller(block.rows, team.count - row)};
    s.first_col = index / row_blocks() * block.cols;
    const Range all{s.first_col, smaller(block.cols, extent.cols - s.first_col)};
    s.cols = share(all, kTile.cols, s.member, block.col_teams);
    return s;
  }

  Element* a_block(const Step& s) const {
    return reinterpret_cast<Element*>(scratch + static_cast<std::size_t>(s.team) * block.a_bytes);
  }
  static std::int64_t padded_depth(std::int64_t depth) { return tiles_of(depth, kTile.depth) * kTile.depth; }
  // Packs panels of the whole depth, one after the other. A chunk of the depth is a part of its panel.
  static void pack_all(const Operand<T>& b, std::int64_t cols, std::int64_t depth, Element* to, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t c = 0; c < cols; c += kTile.cols) {
      Kernel::pack_b(b, {c, smaller(kTile.cols, cols - c)}, {0, depth}, to + c * padded_depth(depth));
    }
  }
  const Element* packed_panel(std::int64_t col, std::int64_t depth) const {
    return packed + col * padded_depth(extent.depth) + depth * kTile.cols;
  }
  // Returns the panel of a step's columns from `col` on.
  const Element* panel(const Step& s, std::int64_t col) const {
    if (packed) return packed_panel(s.cols.first + col, s.depth.first);
    Element* to = b_panel(s);
    Kernel::pack_b(b, {s.cols.first + col, smaller(kTile.cols, s.cols.count - col)}, s.depth, to);
    return to;
  }

  Element* b_panel(const Step& s) const {
    const auto worker = static_cast<std::size_t>(s.team * block.col_teams + s.member);
    return reinterpret_cast<Element*>(scratch + block.b_offset + worker * block.b_bytes);
  }

  // Packs this member's share of the team's block of A, and computes dw's sums of its rows.
  void pack_rows(const Step& s) const {
    if (s.rows.count <= 0) return;
    const Range mine = share(s.rows, kTile.rows, s.member, block.col_teams);
    if (mine.count <= 0) return;
    Kernel::pack_a(a, mine, s.depth, block.depth, a_block(s) + (mine.first - s.rows.first) * block.depth);
    if (epilogue.column_sums && s.first_col == 0) {
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
            s.chunk == 0 && !epilogue.add,  // +=: C is fp32 and holds the sum so far
            s.chunk + 1 == block.depth_chunks};
    if constexpr (sizeof(TOut) == sizeof(float)) {
      p.sums = epilogue.c + row * epilogue.ldc + col;
      p.ld_sums = epilogue.ldc;
    } else {
      p.ld_sums = block.cols;
      p.sums = reinterpret_cast<float*>(scratch + block.sums_offset +
                                        static_cast<std::size_t>(s.team) * block.sums_bytes) +
               (row - s.rows.first) * block.cols + (col - s.first_col);
    }
    return p;
  }

  // Rows of memory that are prefetched a few lines at a time.
  struct Lines {
    const char* base = nullptr;
    std::int64_t stride = 0, length = 0, rows = 0;  // bytes between rows, lines per row
    std::int64_t at_once = 0, row = 0, line = 0;

    template <class TAny>
    static Lines of(const TAny* data, std::int64_t ld, std::int64_t rows, std::int64_t length) {
      constexpr std::int64_t size = sizeof(TAny);
      return {.base = reinterpret_cast<const char*>(data),
              .stride = ld * size,
              .length = tiles_of(length * size, kLineBytes),
              .rows = rows};
    }
    Lines over(std::int64_t slices) const {
      Lines lines = *this;
      lines.at_once = tiles_of(rows * length, slices > 0 ? slices : 1);
      return lines;
    }
    template <auto hint>  // _MM_HINT_*: an enum in GCC, numbers in clang
    void ask() {
      for (std::int64_t i = 0; i < at_once && row < rows; ++i) {
        _mm_prefetch(base + row * stride + line * kLineBytes, hint);
        if (++line < length) continue;
        line = 0;
        ++row;
      }
    }
  };

  // The lines that a product prefetches in every slice of its depth: those of B from which the next panel is
  // packed, and those that the next epilogue reads.
  struct Prefetch {
    Lines panel, sums, preact;

    void operator()() {
      panel.template ask<_MM_HINT_T1>();
      sums.template ask<_MM_HINT_T0>();
      preact.template ask<_MM_HINT_T0>();
    }
  };

  // The panel after column `col` of a step: its next columns, or the first ones of the next step.
  Lines panel_after(const Step& s, const Step& next, std::int64_t col) const {
    const bool within = col + kTile.cols < s.cols.count;
    const Step& at = within ? s : next;
    const std::int64_t first = at.cols.first + (within ? col + kTile.cols : 0);
    const Range cols{first, smaller(kTile.cols, at.cols.first + at.cols.count - first)};
    if (cols.count <= 0 || at.depth.count <= 0) return {};
    const std::int64_t slices = tiles_of(s.rows.count, kTile.rows) * tiles_of(s.depth.count, kSlice);
    if (packed) {
      return Lines::of(packed_panel(cols.first, at.depth.first), 0, 1, at.depth.count * kTile.cols)
          .over(slices);
    }
    const bool along = b.depth_contiguous;
    return Lines::of(b.at(cols.first, at.depth.first), b.ld, along ? cols.count : at.depth.count,
                     along ? at.depth.count : cols.count)
        .over(slices);
  }

  // The product of a few rows with panels that are packed already. Reading the panels bounds its time. Two
  // streams from memory are faster than one, so it takes two panels at a time, one from each half of the
  // columns. A panel that is left over takes both places.
  void multiply_few(const Step& s) const {
    alignas(64) float tiles[2][kTile.rows * kTile.cols];
    const std::int64_t panels = tiles_of(s.cols.count, kTile.cols), half = tiles_of(panels, 2);
    for (std::int64_t i = 0; i < half; ++i) {
      const bool two = half + i < panels;
      const std::int64_t col = i * kTile.cols, other = two ? (half + i) * kTile.cols : col;
      Kernel::multiply_few(a_block(s), panel(s, col), panel(s, other), padded_depth(s.depth.count),
                           s.rows.count, tiles[0]);
      put_rows<kTile.cols>(epilogue, place(s, s.rows.first, s.cols.first + col), tiles[0]);
      if (two) put_rows<kTile.cols>(epilogue, place(s, s.rows.first, s.cols.first + other), tiles[1]);
    }
  }

  // Multiplies a worker's columns with its team's block of A. A tile's epilogue runs after the product of the
  // next tile, so that it does not wait for its own product.
  void multiply(const Step& s, const Step& next) const {
    if (s.rows.count <= 0 || s.cols.count <= 0) return;
    if (packed && s.rows.count <= Kernel::kFewRows) return multiply_few(s);
    alignas(64) float tiles[2][kTile.rows * kTile.cols];
    const std::int64_t depth = padded_depth(s.depth.count);
    const std::int64_t slices = tiles_of(s.depth.count, kSlice);
    Place waiting{};
    int tile = 0;
    for (std::int64_t col = 0; col < s.cols.count; col += kTile.cols) {
      const Element* columns = panel(s, col);
      Prefetch prefetch{panel_after(s, next, col), {}, {}};
      for (std::int64_t row = 0; row < s.rows.count; row += kTile.rows, tile ^= 1) {
        const Place p = place(s, s.rows.first + row, s.cols.first + col);
        if (!waiting.first) {
          prefetch.sums = Lines::of(waiting.sums, waiting.ld_sums, waiting.rows, waiting.cols).over(slices);
        }
        if (epilogue.gradient && waiting.last) {
          const T* preact = epilogue.preact + waiting.row * epilogue.ld_preact + waiting.col;
          prefetch.preact = Lines::of(preact, epilogue.ld_preact, waiting.rows, waiting.cols).over(slices);
        }
        Kernel::multiply(a_block(s) + row * block.depth, columns, depth, tiles[tile], prefetch);
        put_rows<kTile.cols>(epilogue, waiting, tiles[tile ^ 1]);
        waiting = p;
      }
    }
    put_rows<kTile.cols>(epilogue, waiting, tiles[tile ^ 1]);
  }

  // Uses all threads even if there are fewer workers, because OpenMP ends the threads that a smaller team
  // leaves over.
  void run(int team) const {
    const std::int64_t workers = block.row_teams * block.col_teams, count = steps();
#pragma omp parallel num_threads(team)
    {
      // If there are fewer threads than workers, each thread takes several.
      const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
      [[maybe_unused]] const typename Kernel::Session session;
      const bool shared = block.col_teams > 1;
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t w = thread; w < workers; w += threads) {
          pack_rows(step_of(w, i));
          if (!shared) multiply(step_of(w, i), step_of(w, i + 1 < count ? i + 1 : i));
        }
        if (!shared) continue;
#pragma omp barrier
        for (std::int64_t w = thread; w < workers; w += threads) {
          multiply(step_of(w, i), step_of(w, i + 1 < count ? i + 1 : i));
        }
#pragma omp barrier
      }
    }
  }
};

// Calls run.operator()<Out>() with the type of a result's elements: the factors' or fp32.
template <class T, class Run>
void with_type_of(const Tensor& result, Run&& run) {
  if constexpr (sizeof(T) != sizeof(float)) {
    if (result.dtype == DType::f32) return run.template operator()<float>();
  }
  run.template operator()<T>();
}

template <class T, class Out>
Epilogue<T, Out> forward_epilogue(const MatmulForward& args) {
  Epilogue<T, Out> e;
  e.c = static_cast<Out*>(args.out.data);
  e.ldc = args.out.strides[0];
  e.bias = static_cast<const T*>(args.bias.data);
  e.preact = static_cast<T*>(args.preact.data);
  e.ld_preact = args.preact ? args.preact.strides[0] : 0;
  e.activation = args.activation;
  e.scale = args.scale;
  e.residual = static_cast<const Out*>(args.residual.data);
  e.ld_residual = args.residual ? args.residual.strides[0] : 0;
  e.plain =
      !args.bias && !args.preact && args.activation == Activation::none && args.scale == 1 && !args.residual;
  return e;
}

template <class T, class Out>
Epilogue<T, Out> dx_epilogue(const MatmulDx& args) {
  Epilogue<T, Out> e;
  e.c = static_cast<Out*>(args.dx.data);
  e.ldc = args.dx.strides[0];
  e.preact = static_cast<T*>(args.preact.data);
  e.ld_preact = args.preact ? args.preact.strides[0] : 0;
  e.activation = args.activation;
  e.gradient = args.activation != Activation::none;
  e.plain = !e.gradient;
  return e;
}

template <class Kernel, class T>
void run_forward(const Context& context, const MatmulForward& args) {
  with_type_of<T>(args.out, [&]<class Out>() {
    Gemm<Kernel, T, Out> g;
    g.extent = {.rows = args.x.shape[0], .cols = args.weight.shape[0], .depth = args.x.shape[1]};
    g.a = {.data = static_cast<const T*>(args.x.data), .ld = args.x.strides[0], .depth_contiguous = true};
    g.b = {.data = static_cast<const T*>(args.weight.data), .ld = args.x.shape[1], .depth_contiguous = true};
    g.epilogue = forward_epilogue<T, Out>(args);
    g.block = block(g.extent, Kernel::kTile, sizeof(Out) != sizeof(float), context.device());
    g.scratch = static_cast<std::byte*>(context.scratch());
    g.packed = static_cast<const typename Kernel::Element*>(args.packed.data);
    g.run(context.threads());
  });
}

template <class Kernel, class T>
void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed) {
  const Operand<T> b{
      .data = static_cast<const T*>(weight.data), .ld = weight.shape[1], .depth_contiguous = true};
  Gemm<Kernel, T, T>::pack_all(b, weight.shape[0], weight.shape[1],
                               static_cast<typename Kernel::Element*>(packed.data), context.threads());
}

template <class Kernel, class T>
void run_dx(const Context& context, const MatmulDx& args) {
  with_type_of<T>(args.dx, [&]<class Out>() {
    Gemm<Kernel, T, Out> g;
    g.extent = {.rows = args.dout.shape[0], .cols = args.weight.shape[1], .depth = args.dout.shape[1]};
    g.a = {
        .data = static_cast<const T*>(args.dout.data), .ld = args.dout.strides[0], .depth_contiguous = true};
    g.b = {.data = static_cast<const T*>(args.weight.data),
           .ld = args.weight.shape[1],
           .depth_contiguous = false};
    g.epilogue = dx_epilogue<T, Out>(args);
    g.block = block(g.extent, Kernel::kTile, sizeof(Out) != sizeof(float), context.device());
    g.scratch = static_cast<std::byte*>(context.scratch());
    g.run(context.threads());
  });
}

template <class Kernel, class T>
void run_dw(const Context& context, const MatmulDw& args) {
  Gemm<Kernel, T, float> g;
  g.extent = {.rows = args.dout.shape[1], .cols = args.x.shape[1], .depth = args.x.shape[0]};
  g.a = {
      .data = static_cast<const T*>(args.dout.data), .ld = args.dout.strides[0], .depth_contiguous = false};
  g.b = {.data = static_cast<const T*>(args.x.data), .ld = args.x.strides[0], .depth_contiguous = false};
  g.epilogue.c = static_cast<float*>(args.dweight.data);
  g.epilogue.ldc = args.x.shape[1];
  g.epilogue.add = args.store == Store::add;
  g.epilogue.column_sums = static_cast<float*>(args.dbias.data);
  g.block = block(g.extent, Kernel::kTile, false, context.device());
  // Only whole lines: rows of 16 fp32 that begin at a multiple of 64 bytes.
  const bool lines = kLanes == 16 && args.x.shape[1] % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(args.dweight.data) % 64 == 0;
  g.epilogue.past_caches = lines && !g.epilogue.add && g.block.depth_chunks == 1 &&
                           args.dweight.bytes() > context.device().l2_bytes;
  g.scratch = static_cast<std::byte*>(context.scratch());
  g.run(context.threads());
}

// For the kernels' objects.
template <class Kernel>
Refusal refuse_packed(const MatmulForwardProblem& p, const DeviceInfo& device) {
  return matmul::refuse_packed(p, Kernel::kTile, device);
}
template <class Kernel, class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo& device) {
  return matmul::workspace(p, Kernel::kTile, device);
}
template <class Kernel, class Problem>
std::string configuration(const Problem& p, const DeviceInfo& device) {
  return chunks(extent_of(p), Kernel::kTile, device);
}

}  // namespace
}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA
