// A group's results on their way to device memory: the outlet, and a chunk at its epilogue.
#pragma once

#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/hopper/parameters.cuh"
#include "ops/matmul/cuda/hopper/ring.cuh"

namespace warpwright::ops::matmul::cuda {

// Sends boxes of 64 rows of 128 bytes through buffers that the copy engine empties. Each warp sends its own
// 16 rows and waits only for those. So the four warps may drift apart, and one does not wait for what holds
// up another. The same thread of a warp always asks the copy engine and waits for it.
template <class K>
struct Outlet {
  using Tile = typename K::Tile;
  std::byte* buffers;
  Barrier* extra;
  const std::byte* bias;
  int group;
  int first_row, first_byte;  // this warp's, in a box
  Lane lane;
  int count = 0;  // chunks so far

  __device__ Outlet(const Shared<Tile>& shared, int group_index, int warp)
      : buffers(kept_in_register(shared.buffers + group_index * Tile::kBuffers * kBoxBytes)),
        extra(shared.extra + group_index * Tile::kBuffers),
        bias(shared.bias + group_index * Tile::kGroupCols * 2),
        group(group_index),
        first_row(warp * kWarpRows),
        first_byte(warp * (kWarpRows * K::kChunkRowBytes)) {}

  __device__ std::byte* slot(int index) const {
    return buffers + index % K::kSlots * (K::Epilogue::kBoxes * kBoxBytes);
  }

  // For epilogues that read a matrix. Waits until all except the last kPending chunks have left their slots.
  // Then requests this warp's rows of the box for the chunk that is `ahead` chunks later.
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

// Loads and stores two numbers in shared memory.
__device__ inline float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}
__device__ inline void store_pair(std::uint32_t address, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(address), "f"(pair.x), "f"(pair.y) : "memory");
}

// A part of a group's sums at its epilogue: 64 rows and the columns of one box.
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

  // The bias of this thread's j-th pair of columns; 0 outside the matrix.
  __device__ gpu::Packed<In, 2> bias(int j) const {
    return gpu::Packed<In, 2>::load(reinterpret_cast<const In*>(outlet.bias) + in_tile + 8 * j);
  }

  // The address in a box for two by two 8×8 matrices from the j-th eight columns on (j is even). Each lane
  // names a row of one matrix.
  __device__ std::uint32_t place(std::uint32_t box, int j) const {
    const unsigned thread = outlet.lane.index(), matrix = thread % 32 / 8;
    const unsigned at = thread / 32 * 16 + matrix % 2 * 8 + thread % 8;
    constexpr unsigned kUnits = K::kChunkRowBytes / 16;  // of a row
    const unsigned first = at * kUnits;
    return (box + ((first + matrix / 2) ^ first / 8 % kUnits) * 16) ^ static_cast<unsigned>(j) * 16;
  }

  // The address in a box of fp32 numbers, for the j-th eight columns (j is even) and the next eight. In odd
  // rows the lanes take the second eight first, because the first eight columns of two consecutive rows are
  // in the same banks.
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
    __syncwarp();  // the stores of a warp overwrite numbers that its lanes have read
  }

  __device__ void begin() {
    if constexpr (!K::Epilogue::kReadsMatrix) {
      if (elected()) wait_until_stores_have_read<K::kSlots - 1>();
      __syncwarp();
    }
  }

  // Writes the values to box 0 (out) or 1 (extra) of the chunk's slot.
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

}  // namespace warpwright::ops::matmul::cuda
