// Packed sequences in the GPU's kernels, and the assignment of tiles to blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.hpp"

namespace warpwright::ops::attention::cuda {

// A (N, NH, HS) view. Strides are in bytes.
struct Rows {
  std::byte* data;
  std::int64_t row, head;
  DType dtype;
  bool aligned;  // true if every row can be read 16 bytes at a time

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
  int heads;  // of queries
  int group;  // query heads that see one key head
  bool causal;
  int window;  // 0: none

  template <class Args>
  explicit Sequences(const Args& a)
      : q(a.cu_seqlens_q.template as<std::int32_t>()),
        k(a.cu_seqlens_k.template as<std::int32_t>()),
        count(static_cast<int>(a.cu_seqlens_q.shape[0] - 1)),
        Nq(static_cast<int>(a.q.shape[0])),
        Nk(static_cast<int>(a.k.shape[0])),
        heads(static_cast<int>(a.q.shape[1])),
        group(static_cast<int>(a.q.shape[1] / a.k.shape[1])),
        causal(a.mask == Mask::causal),
        window(static_cast<int>(std::min(a.window, a.k.shape[0]))) {}

  __host__ __device__ int key_heads() const { return heads / group; }
  __device__ int key_head(int head) const { return head / group; }
  // A number of blocks that suffices for the tiles of this many rows, for any lengths of sequences.
  unsigned blocks(int rows, int tile) const { return blocks(rows, tile, heads); }
  unsigned blocks(int rows, int tile, int of_heads) const {
    return static_cast<unsigned>((static_cast<std::int64_t>(rows) / tile + count) * of_heads);
  }
};

// One tile of one sequence and head. Its queries are [q0, q0 + Lq) and its keys [k0, k0 + Lk) of the packed
// rows. The tile covers rows [first, first + rows), counted from the sequence's first.
struct Tile {
  int sequence, head, q0, Lq, k0, Lk, first, rows;
  __device__ int offset() const { return Lk - Lq; }  // causal: query i sees the keys up to i + offset
  // The number of keys that the sequence's queries up to this one see at most.
  __device__ int visible_keys(int query, bool causal) const {
    return causal ? min(max(query + offset() + 1, 0), Lk) : Lk;
  }
  // The first key that this query sees, if it sees any.
  __device__ int first_key(int query, int window) const {
    return window > 0 ? max(visible_keys(query, true) - window, 0) : 0;
  }
  // Only queries before this one see the key.
  __device__ int end_query(int key, int window) const {
    return window > 0 ? max(Lq - max(Lk - key - window, 0), 0) : Lq;
  }
};

// Clamps offsets that violate the contract to the rows that exist, so that nothing out of bounds is touched.
__device__ inline int bound(const std::int32_t* cu_seqlens, int s, int N) {
  return min(max(__ldg(cu_seqlens + s), 0), N);
}

// Sequence s, without a head and without rows.
__device__ inline Tile whole_sequence(const Sequences& sequences, int s) {
  Tile tile{};
  tile.sequence = s;
  tile.q0 = bound(sequences.q, s, sequences.Nq);
  tile.Lq = max(bound(sequences.q, s + 1, sequences.Nq) - tile.q0, 0);
  tile.k0 = bound(sequences.k, s, sequences.Nk);
  tile.Lk = max(bound(sequences.k, s + 1, sequences.Nk) - tile.k0, 0);
  return tile;
}

// Returns the sequence that contains `row`: the number of offsets after the first that are at most `row`. If
// the row is after the last sequence, this is the number of sequences. Each warp searches by itself, 32
// offsets at a time.
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

// Returns the tile of block `index`; its rows are 0 if there is none. The heads of a tile are consecutive,
// then the tiles of a sequence, and the tile with the most work comes first. Neighbouring data is thus read
// at about the same time, and the last blocks are short. Each warp searches by itself, with four sequences
// per lane at a time and without a barrier.
template <bool kOfKeys, int kRows>
__device__ inline Tile find_tile(const Sequences& sequences, unsigned index, int heads) {
  const int head = static_cast<int>(index % static_cast<unsigned>(heads));
  const int slot = static_cast<int>(index / static_cast<unsigned>(heads));
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
    int through = sum;  // of this lane and the lower ones
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

template <bool kOfKeys, int kRows>
__device__ inline Tile find_tile(const Sequences& sequences, unsigned index) {
  return find_tile<kOfKeys, kRows>(sequences, index, sequences.heads);
}

}  // namespace warpwright::ops::attention::cuda
