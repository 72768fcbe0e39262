// Schedules: the tiles of a worker (a block or a cluster), and its part of the depth of each tile.
//
//   Block        one tile per worker
//   Persistent   as many workers as the GPU holds at once; each walks the tiles, `workers` apart
//   StreamK      the same, except that the last tiles, between one and two per worker, are cut at equal
//                shares of the depth (Osama et al., "Stream-K", 2023, in its hybrid form)
//
// A Stream-K worker makes its share from the end: the part that ends a tile comes last. The worker that ends
// a tile owns it. It waits for the workers before it, which have the rest of the depth and began with it, and
// adds their sums to its own, from the end of the depth to its beginning. Nobody waits for a worker that the
// GPU starts later.
#pragma once

#include <cstdint>

#include "roofline/shares.hpp"

namespace warpwright::ops::matmul::cuda {

// A tile, and the slabs [begin, end) of its depth.
struct Piece {
  int row_tile = 0, col_tile = 0;
  int begin = 0, end = 0;
  bool ends_tile = true;
  int cut_tile = 0;  // its index among the cut tiles
};

// The whole task. Row and column tiles are those of a worker, which may be a cluster.
struct Work {
  int rows = 0, cols = 0, slabs = 0;
  int col_tiles = 0;
  int raster = 1;                       // tiles go down this many rows of tiles, then across
  const int* rows_on_device = nullptr;  // the number of rows, if only the device knows it
};

class Walk {
 public:
  static constexpr bool kTraced = false;
  __device__ Walk(const Work& work, int worker, int workers, int tile_rows)
      : work_(work), workers_(workers), tile_(worker) {
    const int rows = work.rows_on_device ? min(*work.rows_on_device, work.rows) : work.rows;
    row_tiles_ = (rows + tile_rows - 1) / tile_rows;
    tiles_ = row_tiles_ * work.col_tiles;
  }

 protected:
  __device__ Piece tile(int index) const {
    const int per_raster = work_.raster * work_.col_tiles;
    const int first = index / per_raster * work_.raster;
    const int height = min(work_.raster, row_tiles_ - first), rest = index % per_raster;
    return {first + rest % height, rest / height, 0, work_.slabs, true, 0};
  }

  const Work& work_;
  int workers_, row_tiles_, tiles_, tile_;
};

class Persistent : public Walk {
 public:
  static constexpr bool kCutsDepth = false;
  using Walk::Walk;
  __device__ bool next(Piece& piece) {
    if (tile_ >= tiles_) return false;
    piece = tile(tile_);
    tile_ += workers_;
    return true;
  }
};

// The same schedule. Each group also notes its times (timeline.hpp).
class TracedPersistent : public Persistent {
 public:
  static constexpr bool kTraced = true;
  using Persistent::Persistent;
};

class Block : public Walk {
 public:
  static constexpr bool kCutsDepth = false;
  using Walk::Walk;
  __device__ bool next(Piece& piece) {
    if (tile_ >= tiles_) return false;
    piece = tile(tile_);
    tile_ = tiles_;
    return true;
  }
};

class StreamK : public Walk {
 public:
  static constexpr bool kCutsDepth = true;
  __device__ StreamK(const Work& work, int worker, int workers, int tile_rows)
      : Walk(work, worker, workers, tile_rows), worker_(worker) {
    whole_ = roofline::whole_tiles(tiles_, workers);
    begin_ = share_begin_of(worker);
    end_ = share_begin_of(worker + 1);
  }

  __device__ bool next(Piece& piece) {
    if (tile_ < whole_) {
      piece = tile(tile_);
      tile_ += workers_;
      return true;
    }
    if (begin_ >= end_) return false;
    const int cut = (end_ - 1) / work_.slabs, start = cut * work_.slabs;
    piece = tile(whole_ + cut);
    piece.end = end_ - start;
    piece.begin = max(begin_ - start, 0);
    piece.ends_tile = piece.end == work_.slabs;
    piece.cut_tile = cut;
    end_ = start + piece.begin;
    return true;
  }

  // The number of workers that share each tile, if all tiles are cut and shared equally; otherwise 1.
  __device__ int sharers_of_each_tile() const {
    return whole_ == 0 && sharers() % tiles_ == 0 ? sharers() / tiles_ : 1;
  }

  // The first of the workers that have a part of the tile that this piece ends.
  __device__ int first_worker_of(const Piece& piece) const {
    int w = worker_;
    while (share_begin_of(w) > piece.cut_tile * work_.slabs) --w;
    return w;
  }

 private:
  __device__ int cut_slabs() const { return (tiles_ - whole_) * work_.slabs; }
  __device__ int sharers() const { return roofline::sharers_of(cut_slabs(), work_.slabs, workers_); }
  __device__ int share_begin_of(int w) const { return roofline::share_begin(cut_slabs(), sharers(), w); }

  int worker_, whole_, begin_, end_;  // in slabs; workers_of() keeps them below 2^31
};

}  // namespace warpwright::ops::matmul::cuda
