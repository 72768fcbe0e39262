// What the times of products on Hopper are predicted from (selector.hpp): constants of one GPU, fitted to
// measured times of every kernel. tools/fit_matmul.py fits them to bench/results/NAME-products.jsonl and
// writes costs_NAME.inc. Seconds, bytes, bytes a second, FLOPs a second.
#pragma once

#include <array>

#include "ops/matmul/tiles.hpp"

namespace warpwright::ops::matmul {

// Of one tile of our kernels.
struct TileCosts {
  double slab =
      1;  // of 64 of the depth on a GPU that does nothing else, times the multiprocessor's rate over FLOPs
  double epilogue16 = 1.5e-6, epilogue32 = 3e-6;  // with 16-bit and with fp32 results
  double row_sums = 0.1;  // that slabs take longer where dout's columns are summed as they pass
  double in_step = 1;     // what slabs take in a model's step, of that
};

// Of the library's kernels. By style: its option's two upper bits, that is, how warps share a tile.
struct LibraryCosts {
  double start[3];  // by direction: until it has begun and ended
  // By direction and style, four of each: of a slab, for each of the tile's elements, rows and columns, and
  // once.
  double area[12], rows[12], cols[12], slab[12];
  double alone[4];  // by style: that an odd tile of a block takes longer
  double crowding;  // as below
  double row_copy;  // of a row of 128 bytes
  double straddling_lines,
      straddling_sectors[3];   // that copying costs more, as below; the latter by direction
  double narrow;               // that slabs take longer for each doubling of a tile's sides' ratio over 4
  double cache_bandwidth[2];   // to blocks by themselves, to clusters
  double memory_bandwidth[3];  // by direction
  double epilogue[4], epilogue_area[4];       // by style: of a tile, and of each of its elements
  double epilogue32;                          // times that with fp32 results
  double shown[4];                            // by style: of an epilogue between two tiles
  double cut, cut_bandwidth;                  // where the depth is cut: once, and for the partial sums
  double option;                              // with the option's lowest bit, times
  double activation[3], activation_start[3];  // by direction: of an element, and once
  double cluster4, cluster8;                  // that beginning takes longer with such clusters
  double throttle;                            // as below
  double slab_sharpness, sharpness;
};

struct Costs {
  double multiprocessors;         // that the times are of
  double multiprocessor_flops;    // the scale of TileCosts::slab, no more
  double launch;                  // until the first slab has come, and from the last one to the end
  double gradient_launch;         // more of it where fp32 sums go out
  double pair_launch;             // and where blocks share what they copy
  double block_start;             // of each block of a tile
  double cluster_start;           // and where a cluster shares the tile's depth
  double shown_epilogue;          // of an epilogue between two tiles, what the next one's slabs do not hide
  double crowding;                // that products take longer when all multiprocessors are at them
  double cache_bandwidth;         // of the second-level cache, to clusters
  double blocks_cache_bandwidth;  // and to blocks by themselves
  double memory_bandwidth;
  double row_copy;  // of a row of 128 bytes, by the copy engine
  // What copying a box costs more where rows of so many elements lie in memory. A box's row is 128 bytes: one
  // of the caches' lines where it begins with one, else parts of two (lines); and parts of five sectors of 32
  // bytes where it begins within one (sectors).
  double straddling_lines, straddling_sectors;          // of copies
  double straddling_traffic_lines, straddling_traffic;  // of the cache's traffic
  double fix_up_latency;                                // until other workers' sums can be read
  double fix_up_bandwidth;                              // of partial sums, of one multiprocessor
  double exchange_latency;                              // between the blocks of a cluster
  double exchange_bandwidth;
  double transposed[3];                       // products by direction
  double activation, derivative;              // that an element's adds to the epilogue
  double added_matrix;                        // and that one of a residual does
  double shown_activation, shown_derivative;  // of them, where groups take turns
  // That products take longer when they have gone on for much longer than throttle_seconds: the chip then
  // holds its power limit.
  double throttle, throttle_seconds;
  double slab_sharpness, sharpness;
  double row_sums;  // what is left of a bias gradient when its product is done
  // In a model's step, fitted to whole forwards with one product's kernel changed. Clusters begin when there
  // is room for all of their blocks; x and the weights pass through the second-level cache together with what
  // other kernels leave there; and where most multiprocessors have a block of 64×64, x reaches them later.
  double step_pair_launch, step_cluster_start, step_cache_bandwidth, step_crowded_start;
  LibraryCosts library;
  std::array<TileCosts, kTileCount> tiles;  // as kTiles
};

// Those of an H200, for every device of compute capability 9.0.
const Costs& costs_of_h200();

}  // namespace warpwright::ops::matmul
