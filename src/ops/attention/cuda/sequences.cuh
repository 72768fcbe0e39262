// Packed sequences as the kernels see them, and which tile of which sequence a block works on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention::cuda {

// A (N, NH, HS) view; strides in bytes.
struct Rows {
  std::byte* data;
  std::int64_t row, head;
  DType dtype;
  bool aligned;  // every row can be read 16 bytes at a time

  explicit Rows(const Tensor& t)
      : data(static_cast<std::byte*>(t.data)),
        row(t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype))),
        head(t.strides[1] * static_cast<std::int64_t>(size_of(t.dtype))),
        dtype(t.dtype),
        aligned(((reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(row) |
                  static_cast<std::uintptr_t>(head)) %
                 16) == 0) {}

  __device__ std::byte* at(int r, int h) const { return data + r * row + h * head; }
};

struct Sequences {
  const std::int32_t *q, *k;  // (S + 1)
  int count, Nq, Nk;
  int heads;
  bool causal;

  template <class Args>
  explicit Sequences(const Args& a)
      : q(a.cu_seqlens_q.template as<std::int32_t>()),
        k(a.cu_seqlens_k.template as<std::int32_t>()),
        count(static_cast<int>(a.cu_seqlens_q.shape[0] - 1)),
        Nq(static_cast<int>(a.q.shape[0])),
        Nk(static_cast<int>(a.k.shape[0])),
        heads(static_cast<int>(a.q.shape[1])),
        causal(a.mask == Mask::causal) {}

  // Blocks that are enough for tiles of so many rows, whatever the lengths.
  unsigned blocks(int rows, int tile) const {
    return static_cast<unsigned>((static_cast<std::int64_t>(rows) / tile + count) * heads);
  }
};

// One tile of one sequence and head: queries [q0, q0 + Lq), keys [k0, k0 + Lk) of the packed rows, of which
// the tile covers rows [first, first + rows) counted from the sequence's first.
struct Tile {
  int sequence, head, q0, Lq, k0, Lk, first, rows;
  __device__ int offset() const { return Lk - Lq; }  // causal: query i sees keys up to i + offset
  // Queries up to this one of the sequence see this many keys at most.
  __device__ int visible_keys(int query, bool causal) const {
    return causal ? min(max(query + offset() + 1, 0), Lk) : Lk;
  }
};

// Bounds that are not what the contract says are cut to the rows that exist: nothing out of bounds is
// touched.
__device__ inline int bound(const std::int32_t* cu_seqlens, int s, int N) {
  return min(max(__ldg(cu_seqlens + s), 0), N);
}

// Sequence s; of no head, and no rows of it.
__device__ inline Tile whole_sequence(const Sequences& sequences, int s) {
  Tile tile{};
  tile.sequence = s;
  tile.q0 = bound(sequences.q, s, sequences.Nq);
  tile.Lq = max(bound(sequences.q, s + 1, sequences.Nq) - tile.q0, 0);
  tile.k0 = bound(sequences.k, s, sequences.Nk);
  tile.Lk = max(bound(sequences.k, s + 1, sequences.Nk) - tile.k0, 0);
  return tile;
}

// How many of the bounds behind the first are at most `row`: the sequence of that row, or where it is behind
// the last one, their number. Each warp looks for itself, 32 bounds at a time.
__device__ inline int sequence_of(const std::int32_t* cu_seqlens, int count, int N, int row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int low = 0, high = count;
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + (lane + 1) * step;
    const bool passed = at <= high && bound(cu_seqlens, at, N) <= row;
    low += __popc(__ballot_sync(~0u, passed)) * step;
    high = min(high, low + step - 1);
  }
  return low;
}

// The tile of block `index`; rows is 0 where there is none. Heads are neighbours, then tiles of one sequence,
// the one with the most work first: what lies side by side in memory is read at about the same time, and the
// last blocks are short ones. Each warp looks for itself: four sequences a lane at a time, no barrier.
template <bool kOfKeys, int kRows>
__device__ inline Tile find_tile(const Sequences& sequences, unsigned index) {
  const int head = static_cast<int>(index % static_cast<unsigned>(sequences.heads));
  const int slot = static_cast<int>(index / static_cast<unsigned>(sequences.heads));
  const std::int32_t* bounds = kOfKeys ? sequences.k : sequences.q;
  const int N = kOfKeys ? sequences.Nk : sequences.Nq;
  const int lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kPerLane = 4;
  int before = 0;
  for (int base = 0; base < sequences.count; base += 32 * kPerLane) {
    int tiles[kPerLane], sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int s = base + lane * kPerLane + i;
      const int length = s < sequences.count ? max(bound(bounds, s + 1, N) - bound(bounds, s, N), 0) : 0;
      tiles[i] = (length + kRows - 1) / kRows;
      sum += tiles[i];
    }
    int through = sum;  // of this and the lower lanes
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += other;
    }
    const unsigned beyond = __ballot_sync(~0u, before + through > slot);
    if (beyond == 0) {
      before += __shfl_sync(~0u, through, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(beyond)) - 1;
    int s = base + lane * kPerLane, local = slot - (before + through - sum), count = tiles[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (local >= count) local -= count, count = tiles[i], ++s;
    }
    s = __shfl_sync(~0u, s, owner);
    local = __shfl_sync(~0u, local, owner);
    count = __shfl_sync(~0u, count, owner);
    Tile tile = whole_sequence(sequences, s);
    tile.head = head;
    tile.first = (kOfKeys ? local : count - 1 - local) * kRows;
    tile.rows = min(kRows, (kOfKeys ? tile.Lk : tile.Lq) - tile.first);
    return tile;
  }
  return {};
}

}  // namespace warpwright::ops::attention::cuda
