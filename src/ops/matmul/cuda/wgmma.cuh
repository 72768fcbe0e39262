// Products on Hopper's tensor cores: C (rows, cols) = A (rows, depth) · B (depth, cols), of bf16 or fp16
// summed in fp32, then an epilogue on the sums while they are in registers.
//
// A block has one warp that feeds a ring of slabs (64 terms of the depth) of both factors' tiles in shared
// memory through the tensor copy engine, and groups of four warps that multiply them (wgmma), the sums in
// registers: either side by side on one tile, or ("pingpong") each on a tile of its own, so that one
// multiplies while the other is at its epilogue. Two blocks of a cluster may share one factor's tile: each
// copies half of it to both.
//
// What of a tile lies outside the matrices is read as zeros and not written, so rows, cols and depth are
// free. The copy engine wants addresses and rows that are multiples of 16 bytes.
//
// Which tiles a block makes, and how much of the depth of each, is a schedule of its own (schedule.cuh); what
// becomes of the sums, a list of steps (Epilogue).
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/hopper/products.cuh"
#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/hopper/tensor_map.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/schedule.cuh"
#include "ops/matmul/timeline.hpp"

namespace warpwright::ops::matmul::cuda {

using namespace hopper;

inline constexpr int kGroupThreads = 128;
inline constexpr int kSlab = 64;       // terms of the depth in a stage of the ring
inline constexpr int kBoxRows = 64;    // of a product, and of what a group's four warps send
inline constexpr int kWarpRows = 16;   // of it that each of them sends for itself
inline constexpr int kRowBytes = 128;  // of a tile's row in shared memory
inline constexpr int kBoxBytes = kBoxRows * kRowBytes;
inline constexpr int kSharedLimit = 227 * 1024;

// How many of the result's rows or columns a slab of a transposed factor's tile has. 96 columns are three
// slabs of 32: of two slabs of 64 a quarter would be copied for nothing. 160 are three of 64: five of 32
// would be twice as many rows to copy, which cost as much.
constexpr int slab_cols(int side) {
  return side % 64 == 0 || side > 128 ? 64 : 32;
}
// B's share of a stage.
constexpr int bytes_of_b(int side) {
  return (side + slab_cols(side) - 1) / slab_cols(side) * slab_cols(side) * kRowBytes;
}

// A block's tile; groups_down × groups_across groups share it, or, where there is one, two take turns. Blocks
// of a cluster have tiles below each other (and share B's) or beside each other (and share A's).
template <int rows, int cols, int groups_down, int groups_across, int cluster_down = 1,
          int cluster_across = 1>
struct Tile {
  static constexpr int kRows = rows, kCols = cols;
  static constexpr int kGroupsAcross = groups_across,
                       kTeam = groups_down * groups_across;  // groups on one tile
  static constexpr bool kPingpong = kTeam == 1;
  static constexpr int kGroups = kPingpong ? 2 : kTeam;
  static constexpr int kGroupRows = rows / groups_down, kGroupCols = cols / groups_across;
  static constexpr int kBlocks = kGroupRows / kBoxRows,
                       kSums = kGroupCols / 2;  // a thread's sums: kBlocks × kSums
  static constexpr int kClusterDown = cluster_down, kClusterAcross = cluster_across;
  static constexpr int kCluster = cluster_down * cluster_across;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  // Registers of a thread: what the compiler gives all of them, shared out anew between producer and groups.
  static constexpr bool kManySums = kBlocks * kSums > 160;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : kManySums ? 40 : 88;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : kManySums ? 232 : 208;

  static constexpr int kABytes = rows * kRowBytes, kBBytes = bytes_of_b(cols);
  static constexpr int kStageBytes = kABytes + kBBytes;
  // Of a group, for what it sends. Where groups take turns, more of them keep its warps from waiting for the
  // copy engine.
  static constexpr int kBuffers = kPingpong && rows * cols > 64 * 128 ? 4 : 2;
  static constexpr int kBufferBytes = kGroups * kBuffers * kBoxBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kBiasBytes = kGroups * kGroupCols * 2;  // of each group's tile
  static constexpr int kRestBytes = kBufferBytes + kBarrierBytes + kBiasBytes;
  // A small tile's slabs are over long before the next ones come from device memory: it has many under way.
  static constexpr int kStages = std::min((kSharedLimit - 1024 - kRestBytes) / kStageBytes, 12);
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kRestBytes;
  static_assert(kCluster <= 2 && kStages >= 2 && kGroupRows % kBoxRows == 0);
};

// A matrix in device memory; stride in elements.
struct Matrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

struct Parameters {
  CUtensorMap a, b, out;
  CUtensorMap extra;              // a matrix of out's dtype that the epilogue reads or writes beside it
  Matrix plain_out, plain_extra;  // for threads that store by themselves
  const void* bias = nullptr;
  float scale = 1;
  bool add = false;           // out += (fp32)
  bool keeps = false;         // the epilogue writes extra
  bool adds_matrix = false;   // the epilogue reads extra, where it need not
  bool overlaps = false;      // B and bias may be read while the kernel before still runs
  float* row_sums = nullptr;  // (slabs, rows): SumRows
  Work work;
  Stamps* stamps = nullptr;   // of a traced schedule: (blocks, groups, kTracedTiles)
  float* partials = nullptr;  // of tiles whose depth is cut: a tile of sums for each block
  unsigned* flags =
      nullptr;  // for each group of each block: 1 where its partial sums stand; 0 before and after
};

template <class TileT, class InT, class OutT, bool a_transposed, bool b_transposed, class ScheduleT,
          class EpilogueT>
struct Kernel {
  using Tile = TileT;
  using In = InT;
  using Out = OutT;
  using Schedule = ScheduleT;
  using Epilogue = EpilogueT;
  // Whether the depth is the rows of A's, of B's matrix in memory, not its columns.
  static constexpr bool kATransposed = a_transposed, kBTransposed = b_transposed;
  // Of B's tile in shared memory.
  static constexpr int kBRowBytes = b_transposed ? 2 * slab_cols(Tile::kCols) : kRowBytes;
  // That are sent at once: a box's row, or half of one.
  static constexpr int kRowCols = kRowBytes / static_cast<int>(sizeof(Out));
  static constexpr int kChunkCols = Tile::kGroupCols % kRowCols == 0 ? kRowCols : kRowCols / 2;
  static constexpr int kChunkRowBytes = kChunkCols * static_cast<int>(sizeof(Out));
  static constexpr int kChunkSums = kChunkCols / 2;
  static constexpr int kChunks = Tile::kGroupCols / kChunkCols;
  static_assert(Tile::kGroupCols % kChunkCols == 0 && (kChunkCols == kRowCols || !Epilogue::kReadsMatrix));
  static constexpr int kSlots = Tile::kBuffers / Epilogue::kBoxes;  // places for chunks on their way out
  // Bytes that arrive for a stage.
  static constexpr int kStageBytes = Tile::kABytes + (kBTransposed ? Tile::kBBytes : Tile::kCols * kRowBytes);
};

// A place in the ring.
struct Cursor {
  int stage = 0, phase = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
  template <int kStages>
  __device__ void advance(int steps) {
    stage += steps;
    phase ^= stage / kStages & 1;
    stage %= kStages;
  }
};

// ---- The steps of an epilogue -----------------------------------------------------------------------------
//
// A step sees the sums of a chunk: v(j, r, e) of row r·8 + lane.row, column 8·j + lane.column + e.

// v += bias[column], where there is one. It is 0 outside the matrix, so that nothing branches and a chunk's
// are all on their way before the first is added.
struct AddBias {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    using In = typename Chunk::In;
    if (!chunk.parameters.bias) return;
#pragma unroll
    for (int j = 0; j < Chunk::kSums / 4; ++j) {
      const gpu::Packed<In, 2> pair = chunk.bias(j);
      chunk.v[4 * j] += pair[0], chunk.v[4 * j + 1] += pair[1];
      chunk.v[4 * j + 2] += pair[0], chunk.v[4 * j + 3] += pair[1];
    }
  }
};

// extra = v, where it is asked for
struct Keep {
  static constexpr bool kReadsMatrix = false, kSends = true;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    if (chunk.parameters.keeps) chunk.write(1);
  }
};

// v = act(v)
template <Activation activation>
struct Activate {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
#pragma unroll
    for (float& v : chunk.v) v = gpu::activate_16bit<activation>(v);
  }
};

// v = v · act'(extra)
template <Activation activation>
struct Differentiate {
  static constexpr bool kReadsMatrix = true, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.with_matrix(
        [](float v, float extra) { return v * gpu::activation_derivative_16bit<activation>(extra); });
  }
};

// v += extra, where it is given
struct AddMatrix {
  static constexpr bool kReadsMatrix = true, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.with_matrix([](float v, float extra) { return v + extra; });
  }
};

// v *= scale
struct Scale {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
#pragma unroll
    for (float& v : chunk.v) v *= chunk.parameters.scale;
  }
};

// Beside the product, the sums of A's rows over each slab of the depth, where they are asked for (A
// transposed): the bias gradient's partial sums, by warps that would idle, from the tiles in shared memory.
// Blocks with the same rows take turns, slab by slab.
struct SumRows {
  static constexpr bool kReadsMatrix = false, kSends = false;
  template <class Chunk>
  static __device__ void apply(Chunk&) {}
};

// The steps in this order, then out = v.
template <class... Steps>
struct Epilogue {
  static constexpr bool kReadsMatrix = (Steps::kReadsMatrix || ...);
  static constexpr bool kSumsRows = (std::is_same_v<Steps, SumRows> || ...);
  static constexpr bool kAddsBias = (std::is_same_v<Steps, AddBias> || ...);
  static constexpr bool kMatrixIsOptional = (std::is_same_v<Steps, AddMatrix> || ...);
  static constexpr int kBoxes = (Steps::kSends || ...) ? 2 : 1;  // that a chunk sends: out, extra
  static_assert(!kReadsMatrix || kBoxes == 1, "extra is read or written");
  static __device__ bool reads_matrix(const Parameters& p) {
    return kReadsMatrix && (!kMatrixIsOptional || p.adds_matrix);
  }
  template <class Chunk>
  static __device__ void apply(Chunk& chunk) {
    chunk.begin();
    (Steps::apply(chunk), ...);
    chunk.write(0);
    chunk.send();
  }
};

// ---- The kernel -------------------------------------------------------------------------------------------

__device__ inline std::byte* aligned_tiles(void* memory) {
  return static_cast<std::byte*>(memory) + (1024 - shared_address(memory) % 1024) % 1024;
}

// One block's shared memory.
template <class Tile>
struct Shared {
  std::byte* tiles;    // kStages × (A's tile, B's tile)
  std::byte* buffers;  // kGroups × kBuffers
  Barrier *full, *empty, *extra;
  std::byte* bias;  // kGroups × kGroupCols

  // At a multiple of 1024 bytes.
  __device__ explicit Shared(std::byte* memory) {
    tiles = memory;
    buffers = tiles + Tile::kStages * Tile::kStageBytes;
    full = reinterpret_cast<Barrier*>(buffers + Tile::kBufferBytes);
    empty = full + Tile::kStages;
    extra = empty + Tile::kStages;
    bias = buffers + Tile::kBufferBytes + Tile::kBarrierBytes;
  }
  static_assert((2 * Tile::kStages + Tile::kGroups * Tile::kBuffers) * sizeof(Barrier) <=
                Tile::kBarrierBytes);

  __device__ void initialize_all(int helpers) const {
    for (int i = 0; i < Tile::kStages; ++i) {
      initialize(full + i, 1);
      initialize(empty + i, (4 * Tile::kTeam + helpers) * Tile::kCluster);
    }
    for (int i = 0; i < Tile::kGroups * Tile::kBuffers; ++i) initialize(extra + i, 4);
    fence_initialized_barriers();
  }
};

// One of kParts blocks' share of a factor's tile: kSide rows of the result's index from `side` on, a slab of
// the depth, to this block and those that share the tile.
template <int kSide, bool kTransposed, int kParts>
__device__ void copy_factor(std::byte* to, const CUtensorMap* map, Barrier* barrier, int side, int depth,
                            int part, int blocks) {
  const auto copy = [&](std::byte* place, int column, int row) {
    if constexpr (kParts == 1) {
      copy_box(place, map, barrier, column, row);
    } else {
      copy_box_to_blocks(place, map, barrier, column, row, blocks);
    }
  };
  if constexpr (kTransposed) {
    constexpr int kDepths = kSlab / kParts, kCols = slab_cols(kSide);
#pragma unroll
    for (int slab = 0; slab < (kSide + kCols - 1) / kCols; ++slab) {
      copy(to + (slab * kSlab + part * kDepths) * (2 * kCols), side + slab * kCols, depth + part * kDepths);
    }
  } else {
    constexpr int kSides = kSide / kParts;
    copy(to + part * kSides * kRowBytes, depth, side + part * kSides);
  }
}

// A thread of a group: its rows are row() and row() + 8 of 64, its columns column() and the next, of every
// eight.
struct Lane {
  int thread;  // of the group
  __device__ Lane() : thread(static_cast<int>(threadIdx.x % kGroupThreads)) {}
  // Without a sign quotients are shifts, and take no register more.
  __device__ unsigned index() const { return static_cast<unsigned>(thread); }
  __device__ int row() const { return static_cast<int>(index() / 32 * 16 + index() % 32 / 4); }
  __device__ int column() const { return static_cast<int>(index() % 4 * 2); }
  __device__ bool leads() const { return thread == 0; }
};

// A group's way out: boxes of 64 rows of 128 bytes, through buffers that the copy engine empties. Each warp
// sends its 16 rows and waits for nothing but them, so that the four drift apart: what one waits for the
// others need not. One and the same thread of a warp asks the copy engine and waits for it.
template <class K>
struct Outlet {
  using Tile = typename K::Tile;
  std::byte* buffers;
  Barrier* extra;
  const std::byte* bias;
  int group;
  int first_row, first_byte;  // of this warp in a box
  Lane lane;
  int count = 0;  // of chunks so far

  __device__ std::byte* slot(int index) const {
    return buffers + index % K::kSlots * (K::Epilogue::kBoxes * kBoxBytes);
  }

  // Where the epilogue may read a matrix: all but the last kPending chunks have left their slots, and to that
  // of the chunk that many ahead the warp's rows of its box are on their way.
  template <int kPending>
  __device__ void fetch(const Parameters& p, int ahead, int row, int col) const {
    if (!elected()) return;
    wait_until_stores_have_read<kPending>();
    if (!K::Epilogue::reads_matrix(p)) return;
    const int index = count + ahead;
    Barrier* const barrier = extra + index % K::kSlots;
    arrive_expecting(barrier, kWarpRows * kRowBytes);
    copy_box(slot(index) + first_byte, &p.extra, barrier, col, row + first_row);
  }
};

// Two numbers in shared memory.
__device__ inline float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}
__device__ inline void store_pair(std::uint32_t address, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(address), "f"(pair.x), "f"(pair.y) : "memory");
}

// Part of a group's sums, 64 rows and the columns of one box, at its epilogue.
template <class K>
struct Chunk {
  using In = typename K::In;
  using Out = typename K::Out;
  static constexpr int kSums = K::kChunkSums;

  const Parameters& parameters;
  Outlet<K>& outlet;
  int row, col;  // of the box
  int in_tile;   // the thread's first column in the group's tile
  float v[kSums];

  // Of the j-th two columns of this thread, 0 outside the matrix.
  __device__ gpu::Packed<In, 2> bias(int j) const {
    return gpu::Packed<In, 2>::load(reinterpret_cast<const In*>(outlet.bias) + in_tile + 8 * j);
  }

  // In a box, two by two 8×8 matrices from the j-th eight columns on (j even): a lane names a row of one of
  // them.
  __device__ std::uint32_t place(std::uint32_t box, int j) const {
    const unsigned thread = outlet.lane.index(), matrix = thread % 32 / 8;
    const unsigned at = thread / 32 * 16 + matrix % 2 * 8 + thread % 8;
    constexpr unsigned kUnits = K::kChunkRowBytes / 16;  // of a row
    const unsigned first = at * kUnits;
    return (box + ((first + matrix / 2) ^ first / 8 % kUnits) * 16) ^ static_cast<unsigned>(j) * 16;
  }

  // Numbers of fp32 in a box, of the j-th eight columns (j even) and the next eight. Of two rows that follow
  // each other the second one's lanes have the other eight columns first: the first eight of both lie in the
  // same banks.
  __device__ bool swaps() const { return outlet.lane.index() / 4 % 2 != 0; }
  __device__ std::uint32_t place(std::uint32_t box, int j, int r, int step) const {
    const int at = outlet.lane.row() + 8 * r, column = outlet.lane.column();
    const int unit = 2 * (j + (swaps() ? 1 - step : step)) + column / 4;
    return box + static_cast<std::uint32_t>(at * kRowBytes + (unit ^ at % 8) * 16 + column % 4 * 4);
  }

  template <class F>
  __device__ void with_matrix(F&& f) {
    if (K::Epilogue::reads_matrix(parameters)) {
      wait(outlet.extra + outlet.count % K::kSlots, outlet.count / K::kSlots & 1);
      const std::uint32_t box = shared_address(outlet.slot(outlet.count));
#pragma unroll
      for (int j = 0; j < kSums / 4; j += 2) {
        if constexpr (sizeof(Out) == 2) {
          std::uint32_t pairs[4];
          gpu::load_matrices(pairs, place(box, j));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            v[4 * j + 2 * i] = f(v[4 * j + 2 * i], gpu::detail::Pair<Out>::low(pairs[i]));
            v[4 * j + 2 * i + 1] = f(v[4 * j + 2 * i + 1], gpu::detail::Pair<Out>::high(pairs[i]));
          }
        } else {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float2 first = load_pair(place(box, j, r, 0)), second = load_pair(place(box, j, r, 1));
            const float2 here = swaps() ? second : first, next = swaps() ? first : second;
            float *const to = v + 4 * j + 2 * r, *const to_next = to + 4;
            to[0] = f(to[0], here.x), to[1] = f(to[1], here.y);
            to_next[0] = f(to_next[0], next.x), to_next[1] = f(to_next[1], next.y);
          }
        }
      }
    }
    __syncwarp();  // a warp writes what its lanes have read, where its stores have been read
  }

  __device__ void begin() {
    if constexpr (!K::Epilogue::kReadsMatrix) {
      if (elected()) wait_until_stores_have_read<K::kSlots - 1>();
      __syncwarp();
    }
  }

  // The values as they are, to box 0 (out) or 1 (extra) of the chunk's slot.
  __device__ void write(int index) {
    std::byte* const box = outlet.slot(outlet.count) + index * kBoxBytes;
    if constexpr (sizeof(Out) == 2) {
      const std::uint32_t boxes = shared_address(box);
#pragma unroll
      for (int j = 0; j < kSums / 4; j += 2) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pairs[i] = gpu::detail::Pair<Out>::of(v[4 * j + 2 * i], v[4 * j + 2 * i + 1]);
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(place(boxes, j)),
            "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
            : "memory");
      }
    } else {
      const std::uint32_t boxes = shared_address(box);
#pragma unroll
      for (int j = 0; j < kSums / 4; j += 2) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            const float* const even_row = v + 4 * (j + step) + 2 * r;
            const float* const odd_row = v + 4 * (j + 1 - step) + 2 * r;
            store_pair(place(boxes, j, r, step),
                       make_float2(swaps() ? odd_row[0] : even_row[0], swaps() ? odd_row[1] : even_row[1]));
          }
        }
      }
    }
  }

  __device__ void send() {
    fence_stores_to_shared();
    __syncwarp();
    if (elected()) {
      const std::byte* const box = outlet.slot(outlet.count) + outlet.first_byte;
      const int first_row = row + outlet.first_row;
      if (parameters.add) {
        add_box(&parameters.out, box, col, first_row);
      } else {
        store_box(&parameters.out, box, col, first_row);
      }
      if constexpr (K::Epilogue::kBoxes == 2) {
        if (parameters.keeps) store_box(&parameters.extra, box + kBoxBytes, col, first_row);
      }
      commit_stores();
    }
    ++outlet.count;
  }
};

// Of this thread, as numbers that the compiler knows to be the same in the whole warp.
__device__ inline int warp_of_threads() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
}
__device__ inline int group_of_threads() {
  return warp_of_threads() / (kGroupThreads / 32);
}

// The copying warp's way through the slabs of a piece: copy_a(slab, stage) and copy_b, of B all but the first
// `ahead` slabs.
template <class K, class CopyA, class CopyB>
__device__ void copy_slabs(Barrier* full, Barrier* empty, int slabs, int ahead, Cursor& cursor,
                           CopyA&& copy_a, CopyB&& copy_b) {
#pragma unroll 1
  for (int slab = 0; slab < slabs; ++slab) {
    const int stage = cursor.stage;
    if (slab >= ahead) wait(empty + stage, cursor.phase ^ 1);
    if (elected()) {
      if (slab >= ahead) {
        arrive_expecting(full + stage, K::kStageBytes);
        copy_b(slab, stage);
      }
      copy_a(slab, stage);
    }
    cursor.advance<K::Tile::kStages>();
  }
}

// The first slabs of B, weights, before the kernels before this one have ended. Returns how many of them are
// on their way.
template <class K, class CopyB>
__device__ int copy_weights_ahead(Barrier* full, int slabs, CopyB&& copy_b) {
  const int ahead = min(slabs, K::Tile::kStages);
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage) {
    if (!elected()) continue;
    arrive_expecting(full + stage, K::kStageBytes);
    copy_b(stage, stage);
  }
  return ahead;
}

// B's tile as products take it (describe_tile), and a step of 16 terms in it.
template <class K>
__device__ std::uint64_t describe_b(const void* tile) {
  if constexpr (K::kBRowBytes == kRowBytes) return describe_tile(tile, kBoxBytes);
  constexpr std::uint64_t kSwizzle64 = std::uint64_t{2} << 62, kEightRows = std::uint64_t{512 >> 4} << 32;
  return kSwizzle64 | kEightRows | describe_lower(tile, kBoxBytes / 2);
}
template <class K>
inline constexpr int kStepOfB = K::kBRowBytes == kRowBytes ? kDescribedStep<K::kBTransposed> : 64;

// A group's products over that many slabs, which it releases as it goes; done_issuing() when the last are
// under way.
template <class K, class Release, class Done>
__device__ void multiply_slabs(float (&sum)[K::Tile::kBlocks][K::Tile::kSums], std::uint64_t a_tile,
                               std::uint64_t b_tile, Barrier* full, int slabs, Cursor& cursor,
                               Release&& release, Done&& done_issuing) {
  using Tile = typename K::Tile;
  pin(sum);
  int before = 0;
#pragma unroll 1  // a kernel's code comes from device memory when it is first run
  for (int i = 0; i < slabs; ++i) {
    wait(full + cursor.stage, cursor.phase);
    const std::uint64_t stage = static_cast<std::uint64_t>(cursor.stage * (Tile::kStageBytes / 16));
    begin_products();
#pragma unroll
    for (int step = 0; step < kSlab / 16; ++step) {
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        multiply_tiles<typename K::In, Tile::kGroupCols, K::kATransposed, K::kBTransposed>(
            sum[b], a_tile + stage + b * (kBoxBytes / 16) + step * kDescribedStep<K::kATransposed>,
            b_tile + stage + step * kStepOfB<K>, i > 0 || step > 0);
      }
    }
    commit_products();
    if (i > 0) {
      wait_for_products<1>();
      release(before);
    }
    before = cursor.stage;
    cursor.advance<Tile::kStages>();
  }
  done_issuing();
  wait_for_products<0>();
  pin(sum);
  if (slabs > 0) release(before);
}
template <class K, class Release>
__device__ void multiply_slabs(float (&sum)[K::Tile::kBlocks][K::Tile::kSums], std::uint64_t a_tile,
                               std::uint64_t b_tile, Barrier* full, int slabs, Cursor& cursor,
                               Release&& release) {
  multiply_slabs<K>(sum, a_tile, b_tile, full, slabs, cursor, release, [] {});
}

// A helper's part of SumRows: 64 rows of each of these slabs whose turn it is, to p.row_sums.
template <class K, class Release>
__device__ void sum_rows_of_slabs(const Parameters& p, const std::byte* tiles, Barrier* full, int turn,
                                  int turns, int first_row, int helper, int begin, int end, Cursor& cursor,
                                  Release&& release) {
  using Tile = typename K::Tile;
  using In = typename K::In;
  static_assert(K::kATransposed && sizeof(In) == 2);
  const int lane = static_cast<int>(threadIdx.x) % 32, row = first_row + helper * 64 + 2 * lane;
#pragma unroll 1
  for (int slab = begin; slab < end; ++slab) {
    wait(full + cursor.stage, cursor.phase);
    if (slab % turns == turn) {
      const std::byte* const tile = tiles + cursor.stage * Tile::kStageBytes + helper * kBoxBytes;
      float low = 0, high = 0;
#pragma unroll 8
      for (int k = 0; k < kSlab; ++k) {
        const auto pair = gpu::Packed<In, 2>::load(
            reinterpret_cast<const In*>(tile + k * kRowBytes + (lane / 4 ^ k % 8) * 16 + lane % 4 * 4));
        low += pair[0], high += pair[1];
      }
      if (row < p.work.rows) {
        float* const to = p.row_sums + static_cast<std::int64_t>(slab) * p.work.rows + row;
        *reinterpret_cast<float2*>(to) = make_float2(low, high);
      }
    }
    __syncwarp();
    release(cursor.stage);
    cursor.advance<Tile::kStages>();
  }
}

template <class K>
__global__ void __launch_bounds__(K::Tile::kThreads, 1)
    multiply_kernel(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = typename K::Tile;
  using In = typename K::In;
  constexpr int kStages = Tile::kStages, kCluster = Tile::kCluster;
  extern __shared__ uint4 memory[];
  const Shared<Tile> shared(aligned_tiles(memory));
  const int rank = static_cast<int>(blockIdx.x) % kCluster, worker = static_cast<int>(blockIdx.x) / kCluster;
  const int down = rank % Tile::kClusterDown, across = rank / Tile::kClusterDown;
  const int group = group_of_threads();
  gpu::let_next_kernel_begin();

  // Warps that sum rows, of 64 each.
  const int helpers = K::Epilogue::kSumsRows && p.row_sums ? Tile::kRows / 64 : 0;
  if (threadIdx.x == 0) shared.initialize_all(helpers);
  if (threadIdx.x == Tile::kGroups * kGroupThreads) {
    prefetch_map(&p.a);
    prefetch_map(&p.b);
    prefetch_map(&p.out);
    prefetch_map(&p.extra);
  }
  if constexpr (kCluster > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
  typename K::Schedule schedule(p.work, worker, static_cast<int>(gridDim.x) / kCluster,
                                Tile::kRows * Tile::kClusterDown);
  const auto first_row = [&](const Piece& piece) {
    return (piece.row_tile * Tile::kClusterDown + down) * Tile::kRows;
  };
  const auto first_col = [&](const Piece& piece) {
    return (piece.col_tile * Tile::kClusterAcross + across) * Tile::kCols;
  };
  const int warp_lane = static_cast<int>(threadIdx.x) % 32;
  const auto release = [&](int stage) {
    if constexpr (kCluster == 1) {
      if (warp_lane == 0) arrive(shared.empty + stage);
    } else {
      if (warp_lane < kCluster) arrive_at_block(shared.empty + stage, warp_lane);
    }
  };
  Cursor cursor;
  Piece piece;

  if (group == Tile::kGroups) {
    give_registers<Tile::kProducerRegisters>();
    const int helper = warp_of_threads() - Tile::kGroups * 4 - 1;  // -1: the producer
    if (helper >= helpers) return;
    if constexpr (K::Epilogue::kSumsRows) {
      static_assert(K::kATransposed && sizeof(In) == 2 && Tile::kRows <= 3 * 64);
      const int col_tiles = p.work.col_tiles * Tile::kClusterAcross;
      while (helper >= 0 && schedule.next(piece)) {
        sum_rows_of_slabs<K>(p, shared.tiles, shared.full, piece.col_tile * Tile::kClusterAcross + across,
                             col_tiles, first_row(piece), helper, piece.begin, piece.end, cursor, release);
      }
    }
    if (helper < 0) {
      // The blocks that share A's tile are the ones beside this one, B's the ones below each other.
      constexpr int kColumnMask = (1 << Tile::kClusterDown) - 1;
      const int a_blocks = kCluster == 1 ? 1 : Tile::kClusterAcross == 2 ? 3 : 1 << rank;
      const int b_blocks = kCluster == 1 ? 1 : Tile::kClusterDown == 2 ? kColumnMask : 1 << rank;
      const Shared<Tile> mine(kept_in_register(shared.tiles));
      int ahead = -1;
      while (schedule.next(piece)) {
        const int row = first_row(piece), col = first_col(piece), slabs = piece.end - piece.begin;
        const auto copy_a = [&](int slab, int stage) {
          copy_factor<Tile::kRows, K::kATransposed, Tile::kClusterAcross>(
              mine.tiles + stage * Tile::kStageBytes, &p.a, mine.full + stage, row,
              (piece.begin + slab) * kSlab, across, a_blocks);
        };
        const auto copy_b = [&](int slab, int stage) {
          copy_factor<Tile::kCols, K::kBTransposed, Tile::kClusterDown>(
              mine.tiles + stage * Tile::kStageBytes + Tile::kABytes, &p.b, mine.full + stage, col,
              (piece.begin + slab) * kSlab, down, b_blocks);
        };
        ahead = ahead < 0 && p.overlaps ? copy_weights_ahead<K>(mine.full, slabs, copy_b) : 0;
        gpu::wait_for_kernels_before();
        copy_slabs<K>(mine.full, mine.empty, slabs, ahead, cursor, copy_a, copy_b);
      }
    }
    __syncwarp();
    if constexpr (kCluster > 1) cluster_barrier();
    return;
  }

  take_registers<Tile::kGroupRegisters>();
  const int member = Tile::kPingpong ? 0 : group;  // of the team on a tile
  const int group_row = member / Tile::kGroupsAcross * Tile::kGroupRows;
  const int group_col = member % Tile::kGroupsAcross * Tile::kGroupCols;
  const int warp = warp_of_threads() % 4;
  Outlet<K> outlet{kept_in_register(shared.buffers + group * Tile::kBuffers * kBoxBytes),
                   shared.extra + group * Tile::kBuffers,
                   shared.bias + group * Tile::kGroupCols * 2,
                   group,
                   warp * kWarpRows,
                   warp * (kWarpRows * K::kChunkRowBytes),
                   Lane()};
  const Lane& lane = outlet.lane;
  // 64 rows, or in a transposed tile a slab of 64 columns, are 8192 bytes either way.
  const std::uint64_t a_tile = describe_tile(shared.tiles + group_row * kRowBytes, kBoxBytes);
  const std::uint64_t b_tile = describe_b<K>(shared.tiles + Tile::kABytes + group_col * kRowBytes);

  // Groups that take turns: barrier kTurn + g says that it is g's turn to multiply.
  constexpr int kTurn = 1 + Tile::kGroups;
  bool more = schedule.next(piece);
  [[maybe_unused]] int traced = 0;  // tiles
  Piece following;
  if constexpr (Tile::kPingpong) {
    if (group == 1 && more) {
      arrive_at_named_barrier(kTurn, 2 * kGroupThreads);
      cursor.advance<kStages>(piece.end - piece.begin);
      more = schedule.next(piece);
    }
  }
  while (more) {
    const int row = first_row(piece) + group_row, col = first_col(piece) + group_col;
    if constexpr (K::Epilogue::kReadsMatrix) {
      if (piece.ends_tile) {
#pragma unroll
        for (int i = 0; i < min(K::kSlots, K::kChunks * Tile::kBlocks); ++i) {
          outlet.template fetch<0>(p, i, row + i / K::kChunks * kBoxRows,
                                   col + i % K::kChunks * K::kChunkCols);
        }
      }
    }
    bool other_more = false;
    if constexpr (Tile::kPingpong) {
      named_barrier(kTurn + group, 2 * kGroupThreads);
      other_more = schedule.next(following);
    }

    if constexpr (K::Epilogue::kAddsBias) {
      // The bias of the tile, while it is being summed. All warps have met since they read the last one's.
      if constexpr (!Tile::kPingpong) named_barrier(1 + group, kGroupThreads);
      const int at = 2 * lane.thread;
      if (p.bias && at < Tile::kGroupCols) {
        gpu::copy_async<4>(const_cast<std::byte*>(outlet.bias) + 2 * at,
                           static_cast<const In*>(p.bias) + col + at, col + at < p.work.cols ? 4 : 0);
      }
      gpu::commit_copies();
    }

    float sum[Tile::kBlocks][Tile::kSums] = {};
    [[maybe_unused]] Stamps stamps;
    if constexpr (K::Schedule::kTraced) stamps.products = clock64();
    multiply_slabs<K>(sum, a_tile, b_tile, shared.full, piece.end - piece.begin, cursor, release, [&] {
      if constexpr (Tile::kPingpong) {
        if (other_more) arrive_at_named_barrier(kTurn + 1 - group, 2 * kGroupThreads);
      }
    });

    if constexpr (K::Schedule::kTraced) stamps.epilogue = clock64();
    if constexpr (K::Epilogue::kAddsBias) {
      // The bias has come. (Before every chunk this would wait for the stores under way too, which are
      // counted together.)
      gpu::wait_for_groups<0>();
      named_barrier(1 + group, kGroupThreads);
    }
    // Of a tile with as many workers as every other each finishes some of the chunks.
    int sharers = 1, self = 0;
    const auto part = [&](int of_worker) {
      const std::int64_t index = (of_worker * kCluster + rank) * std::int64_t{Tile::kTeam} + member;
      return Part<Tile::kBlocks, Tile::kSums>{p.partials + index * (Tile::kGroupRows * Tile::kGroupCols),
                                              p.flags + index, 1 + group, lane.thread};
    };
    constexpr int kChunksOfGroup = K::kChunks * Tile::kBlocks;
    unsigned finished = 0;  // a bit for each chunk
    if constexpr (K::Schedule::kCutsDepth) {
      sharers = schedule.sharers_of_each_tile();
      self = worker % sharers;
      if (sharers > 1) {
        for (int chunk = 0; chunk < kChunksOfGroup; ++chunk) {
          if (chunk * sharers / kChunksOfGroup == self) finished |= 1u << chunk;
        }
#pragma unroll
        for (int chunk = 0; chunk < kChunksOfGroup; ++chunk) {
          if (!(finished >> chunk & 1)) part(worker).write(sum, chunk * K::kChunkSums / 4, K::kChunkSums / 4);
        }
        part(worker - self).meet(sharers);
      } else if (!piece.ends_tile) {
        part(worker).write(sum, 0, Part<Tile::kBlocks, Tile::kSums>::kQuads);
        part(worker).raise_flag();
      } else if (piece.begin > 0) {
        const int first = schedule.first_worker_of(piece);
        take_flags(part(first).flag, kCluster * Tile::kTeam, worker - first, 1 + group, lane.thread);
        constexpr int kAtOnce =
            std::max(32 / (Tile::kBlocks * Tile::kSums / 4), 1);  // parts, as registers allow
#pragma unroll kAtOnce
        for (int w = worker - 1; w >= first; --w)
          part(w).template add_to<Tile::kBlocks * Tile::kSums>(sum, 0);
      }
    }
    if (!K::Schedule::kCutsDepth || piece.ends_tile || sharers > 1) {
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
        for (int c = 0; c < K::kChunks; ++c) {
          const int index = b * K::kChunks + c;
          if constexpr (K::Epilogue::kReadsMatrix) {
            static_assert(!K::Schedule::kCutsDepth);
            // To the slot of the chunk before, or of the one before that.
            constexpr int kBehind = K::kSlots > 2 ? 2 : 1;
            const int next = index - kBehind + K::kSlots;
            if (index >= kBehind && next < K::kChunks * Tile::kBlocks) {
              outlet.template fetch<kBehind - 1>(p, K::kSlots - kBehind, row + next / K::kChunks * kBoxRows,
                                                 col + next % K::kChunks * K::kChunkCols);
            }
          }
          Chunk<K> chunk{
              p, outlet, row + b * kBoxRows, col + c * K::kChunkCols, c * K::kChunkCols + lane.column(), {}};
          if constexpr (K::Schedule::kCutsDepth) {
            if (sharers > 1) {
              if (!(finished >> index & 1)) continue;
#pragma unroll 1
              for (int w = 0; w < sharers; ++w) {
                if (w == self) continue;
                part(worker - self + w).template add_to<K::kChunkSums>(sum, index * K::kChunkSums / 4);
              }
            }
          }
#pragma unroll
          for (int i = 0; i < K::kChunkSums; ++i) chunk.v[i] = sum[b][c * K::kChunkSums + i];
          K::Epilogue::apply(chunk);
        }
      }
    }

    if constexpr (K::Schedule::kTraced) {
      stamps.end = clock64();
      const int index = traced++;
      if (lane.leads() && index < kTracedTiles) {
        p.stamps[(static_cast<int>(blockIdx.x) * Tile::kGroups + group) * kTracedTiles + index] = stamps;
      }
    }
    if constexpr (Tile::kPingpong) {
      if (!other_more) break;
      cursor.advance<kStages>(following.end - following.begin);
    }
    more = schedule.next(piece);
  }
  if (elected()) wait_until_stores_have_read<0>();
  if constexpr (kCluster > 1) cluster_barrier();
#endif
}

// ---- On the host ------------------------------------------------------------------------------------------

struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  DType in = DType::bf16, out = DType::bf16;
  Matrix a, b, result, extra;
};

template <int kSide, bool kTransposed, int kParts>
CUtensorMap map_factor(const Matrix& m, DType dtype, std::int64_t side, std::int64_t depth) {
  if (kTransposed) {
    return map_boxes<2>(m.data, dtype, {side, depth}, {m.stride}, {slab_cols(kSide), kSlab / kParts},
                        2 * slab_cols(kSide));
  }
  return map_boxes<2>(m.data, dtype, {depth, side}, {m.stride}, {kSlab, kSide / kParts});
}

// All but out's and extra's maps.
template <class K>
Parameters describe_factors(const Product& product, int raster) {
  using Tile = typename K::Tile;
  const auto [rows, cols, depth, in, out, a, b, result, extra] = product;
  Parameters p;
  p.a = map_factor<Tile::kRows, K::kATransposed, Tile::kClusterAcross>(a, in, rows, depth);
  p.b = map_factor<Tile::kCols, K::kBTransposed, Tile::kClusterDown>(b, in, cols, depth);
  p.plain_out = result;
  p.plain_extra = extra;
  p.work.rows = static_cast<int>(rows);
  p.work.cols = static_cast<int>(cols);
  p.work.slabs = static_cast<int>((depth + kSlab - 1) / kSlab);
  p.work.col_tiles = static_cast<int>((cols + Tile::kCols * Tile::kClusterAcross - 1) /
                                      (Tile::kCols * Tile::kClusterAcross));
  p.work.raster = raster;
  return p;
}

template <class K>
Parameters describe(const Product& product, int raster) {
  const auto [rows, cols, depth, in, out, a, b, result, extra] = product;
  Parameters p = describe_factors<K>(product, raster);
  const auto map = [&](const Matrix& m, DType dtype) {
    return map_boxes<2>(m.data, dtype, {cols, rows}, {m.stride}, {K::kChunkCols, kWarpRows},
                        K::kChunkRowBytes);
  };
  p.out = map(result, out);
  p.extra = extra.data ? map(extra, out) : p.out;
  return p;
}

// together: only when all blocks can be on the GPU at once, and all at once, not beside the kernel before.
// Blocks that wait for each other want that.
template <class K>
void launch(const Parameters& p, int workers, bool together, cudaStream_t stream, std::string_view what) {
  using Tile = typename K::Tile;
  gpu::allow_shared(multiply_kernel<K>, Tile::kSharedBytes);
  // A block by itself is no cluster of one: those begin 0.1 to 0.3 µs later.
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if constexpr (Tile::kCluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = Tile::kCluster;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  } else if (p.overlaps) {
    attributes[count++] = gpu::overlap_attribute();
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers * Tile::kCluster));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, multiply_kernel<K>, p), what);
}

}  // namespace warpwright::ops::matmul::cuda
