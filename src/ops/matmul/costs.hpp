// The constants from which the time of a product on Hopper's tensor cores is predicted (time.hpp). They
// belong to one GPU. tools/fit_matmul.py fits them to the measured times in bench/results/NAME-matmul.jsonl
// and writes costs_NAME.inc.
//
// The model:
//   slab       64 terms of the depth of one tile. Three bounds limit it: the multiplications, the copies into
//              the block's shared memory, and the traffic of all busy multiprocessors through the
//              second-level cache. The largest one is its time.
//   wave       the tiles that the GPU computes at the same time: all their slabs, then an epilogue, which
//              writes the results. Between two waves, the next tile's slabs hide a part of the epilogue. The
//              visible part is "shown".
//   product    the launch, then the larger of two bounds: its waves, and its bytes at the memory's bandwidth.
//              If several blocks share a tile's depth, adding their sums (the "fix-up") comes on top.
//
// Times are in seconds, bandwidths in bytes per second. A factor multiplies a time; a fraction of 0.1 makes a
// time 10 % longer. A sharpness is the p of the p-norm that combines bounds: two bounds overlap only in part,
// so close bounds take longer than the larger one.
//
// Arrays of three are by direction: forward, dx, dw.
#pragma once

#include <array>

#include "ops/matmul/tiles.hpp"

namespace warpwright::ops::matmul {

// The costs of one tile of our kernels.
struct TileCosts {
  // Seconds of a slab's multiplications on an otherwise idle GPU, as a multiple of the seconds that its FLOPs
  // take at Costs::multiprocessor_flops.
  double slab = 1;
  // Seconds of a tile's epilogue, with 16-bit and with fp32 results.
  double epilogue16 = 1.5e-6, epilogue32 = 3e-6;
  // Fraction of a slab's multiplications that summing dout's columns as they pass (dbias) adds.
  double row_sums = 0.1;
  // Factor on a slab's multiplications in a model's step.
  double in_step = 1;
};

// The costs of cuBLASLt's kernels. A kernel's style, 0 to 3, is the upper two bits of its option: how warps
// share a tile. Arrays of four are by style.
struct LibraryCosts {
  // Seconds to begin and to end.
  double start[3];
  // Seconds of a slab's multiplications: per element, per row and per column of the tile, and once per slab.
  // At 4 · direction + style.
  double area[12], rows[12], cols[12], slab[12];
  // Fraction by which slabs of the last tile take longer if a block has an odd number of tiles.
  double alone[4];
  // Fraction by which multiplications take longer if every multiprocessor has a block, as in Costs.
  double crowding;
  // Seconds to copy one row of a box, 128 bytes.
  double row_copy;
  // Fractions by which copying a straddling box takes longer, as in Costs.
  double straddling_lines, straddling_sectors[3];
  // Fraction by which a slab takes longer for each doubling of the ratio of a tile's sides beyond 4.
  double narrow;
  // Bytes per second from the second-level cache to all blocks: to single blocks, to clusters.
  double cache_bandwidth[2];
  // Bytes per second that are read from device memory, and the cost of a written byte as a multiple of a read
  // one: of a 16-bit result, of an fp32 one.
  double memory_bandwidth[3], written[2];
  // Fractions by which a written byte costs more if the result's rows straddle lines or sectors, as in Costs.
  double straddling_written_lines, straddling_written_sectors;
  // Seconds of an epilogue: per tile, and per element of the tile.
  double epilogue[4], epilogue_area[4];
  // Factor on an epilogue with fp32 results.
  double epilogue32;
  // Factor on an epilogue between two tiles: the part that the next tile's slabs do not hide. Values above 1
  // count as 1.
  double shown[4];
  // If the depth is cut: seconds once, and bytes per second of the partial sums.
  double cut, cut_bandwidth;
  // Factor on the waves of a kernel whose option has its lowest bit set.
  double option;
  // Seconds that an activation adds: per element to the epilogue, and once per product.
  double activation[3], activation_start[3];
  // Seconds by which a product begins later with clusters of 4 to 7 blocks, and of 8 or more.
  double cluster4, cluster8;
  // As Costs::throttle, on the multiplications alone.
  double throttle;
  // Sharpness of a slab's bounds and of a product's bounds.
  double slab_sharpness, sharpness;
};

// The costs of one GPU.
struct Costs {
  // Multiprocessors of the GPU on which the times were measured.
  double multiprocessors;
  // FLOPs per second of one multiprocessor. This is only the scale of TileCosts::slab.
  double multiprocessor_flops;
  // Seconds until the first slab has arrived, and from the last slab to the end, together.
  double launch;
  // Seconds that a launch takes longer in dw, which writes fp32 sums.
  double gradient_launch;
  // Seconds that a launch takes longer if the blocks of a cluster share what they copy.
  double pair_launch;
  // Seconds to start the blocks of a wave, if every tile has a block of its own.
  double block_start;
  // Seconds to start the clusters of a wave, if a cluster shares a tile's depth.
  double cluster_start;
  // Factor on an epilogue between two tiles: the part that the next tile's slabs do not hide. For tiles whose
  // groups take turns, shown_activation and shown_derivative count instead.
  double shown_epilogue;
  // Fraction by which multiplications take longer if all multiprocessors multiply. With fewer, it is
  // proportionally less.
  double crowding;
  // Bytes per second from the second-level cache to all clusters.
  double cache_bandwidth;
  // Bytes per second from the second-level cache to all blocks, without clusters.
  double blocks_cache_bandwidth;
  // As in LibraryCosts.
  double memory_bandwidth, written[2], straddling_written_lines, straddling_written_sectors;
  // Seconds in which a block's copy engine copies one row of a box, 128 bytes.
  double row_copy;
  // Fractions by which a box costs more if its rows straddle lines of the cache. A box's row has 128 bytes,
  // as many as a line. The elements of the matrix's rows decide:
  //   a multiple of 64   each row of a box fills one line, and the box costs nothing more
  //   a multiple of 16   it touches two lines: straddling_lines, straddling_traffic_lines
  //   any other          it also touches five sectors of 32 bytes instead of four: straddling_sectors,
  //                      straddling_traffic
  // The first two are fractions of the copy engine's time, the other two of the cache's traffic.
  double straddling_lines, straddling_sectors;
  double straddling_traffic_lines, straddling_traffic;
  // Seconds until a worker can read the sums of other workers (Stream-K), and seconds more for each of them.
  double fix_up_latency, fix_up_sharer;
  // Bytes per second of partial sums that one worker writes or reads.
  double fix_up_bandwidth;
  // Seconds until the blocks of a cluster can exchange sums of one tile.
  double exchange_latency;
  // Bytes per second that one block exchanges.
  double exchange_bandwidth;
  // Factor on TileCosts::slab.
  double transposed[3];
  // Seconds per element that the activation (forward) and its derivative (dx) add to an epilogue.
  double activation, derivative;
  // Seconds per element that a residual adds to an epilogue.
  double added_matrix;
  // Factors on these times of activation and derivative between two tiles whose groups take turns: the part
  // that the other group's multiplications do not hide.
  double shown_activation, shown_derivative;
  // After a while at full load, the chip lowers its clock to keep its power limit. Waves of `seconds` at full
  // clock take longer by the fraction throttle · seconds / (seconds + throttle_seconds).
  double throttle, throttle_seconds;
  // Sharpness of a slab's bounds and of a product's bounds.
  double slab_sharpness, sharpness;
  // Seconds to finish dbias after its product is done.
  double row_sums;
  // Costs in a model's step. They are fitted to whole forwards in which one product's kernel was changed.
  //   step_pair_launch, step_cluster_start   seconds, in place of pair_launch and cluster_start: a cluster
  //                                          begins only if there is room for all of its blocks
  //   step_cache_bandwidth                   bytes per second, in place of both cache bandwidths: x and the
  //                                          weights share the cache with data of other kernels
  //   step_crowded_start                     seconds by which x arrives later if every multiprocessor has a
  //                                          block of 64 × 64; falls to 0 if half of them have one
  double step_pair_launch, step_cluster_start, step_cache_bandwidth, step_crowded_start;
  LibraryCosts library;
  std::array<TileCosts, kTileCount> tiles;  // in the order of kTiles
};

// The costs of an H200. They serve every device of compute capability 9.0.
const Costs& costs_of_h200();

}  // namespace warpwright::ops::matmul
