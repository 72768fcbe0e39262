// The tensors of an attention to a cache as its kernels on a GPU read them.
#pragma once

#include <bit>
#include <climits>
#include <cstdint>

#include "ops/cached_attention/kernels.hpp"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {

// Row n of q belongs to a sequence and sees its keys [first, last). Without a sequence: [0, 0). Key j is in
// row j + to_row of k if j ≥ appended, otherwise in the cache.
struct RowOfSequence {
  int sequence, first, last, appended, to_row;
};

// A tensor's heads: a pointer to the first one, and the strides of rows and heads.
template <class T>
struct Heads {
  T* data;
  std::int64_t row, head;

  __device__ T* at(int n, int h) const { return data + n * row + h * head; }
};

template <class T>
struct Arguments {
  Heads<const T> q, k, v;  // k and v may be null
  Heads<T> out;
  T *keys, *values;
  const std::int32_t *table, *bounds, *lengths;
  int S, N, NH, KH, HS, blocks, block_size, blocks_each, window;
  int block_shift;  // log2(block_size), if it is a power of two
  float scale;      // in units of ln 2

  // Finds the sequence of row n.
  __device__ RowOfSequence row(int n) const {
    // With a query for each sequence it is the n-th, whose numbers are read at once.
    const int guess = min(n, S - 1);
    int sequence = guess, begin = max(__ldg(bounds + guess), 0), end = __ldg(bounds + guess + 1),
        length = __ldg(lengths + guess);
    if (n < begin || n >= end) {
      int low = 0, high = S;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (__ldg(bounds + middle) <= n ? low : high) = middle;
      }
      sequence = low, begin = max(__ldg(bounds + low), 0), end = __ldg(bounds + low + 1);
      length = __ldg(lengths + low);
    }
    if (n < begin || n >= end) return {-1, 0, 0, 0, 0};
    length = min(max(length, 0), blocks_each * block_size);
    const int last = n - end + 1 + length;
    return {sequence, window > 0 && last > window ? last - window : 0, last,
            k.data ? length - (end - begin) : INT_MAX, end - length};
  }
  // The row of HS elements in the cache that key j has in head 0, given the number of its block in the
  // sequence. A block outside the cache becomes block 0.
  __device__ std::int64_t place(const RowOfSequence& r, int j, int number) const {
    const int block = __ldg(table + static_cast<std::int64_t>(r.sequence) * blocks_each + number);
    const std::int64_t inside = block >= 0 && block < blocks ? block : 0;
    return inside * KH * block_size + (j - number * block_size);
  }
  // The first element of that key or its value in a head.
  __device__ std::int64_t at(std::int64_t place, int head) const {
    return (place + std::int64_t{head} * block_size) * HS;
  }
  // Stores row n of k and v, its last key and value, in the cache. Thread i of `threads` takes part.
  template <int lanes>
  __device__ void append(const RowOfSequence& r, int n, int head, int i, int threads) const {
    if (!k.data || r.last <= 0) return;
    using Pack = gpu::Packed<T, lanes>;
    const std::int64_t to = at(place(r, r.last - 1, (r.last - 1) / block_size), head);
    for (int d = i * lanes; d < HS; d += threads * lanes) {
      Pack::load(k.at(n, head) + d).store(keys + to + d);
      Pack::load(v.at(n, head) + d).store(values + to + d);
    }
  }
};

template <class T>
Arguments<T> arguments_of(const CachedAttention& a) {
  constexpr float kLog2E = 1.44269504088896341f;
  const auto integers = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  const auto rows = [](const Tensor& t) {
    return t ? Heads<const T>{static_cast<const T*>(t.data), t.strides[0], t.strides[1]} : Heads<const T>{};
  };
  const auto size = [](std::int64_t n) { return static_cast<int>(n); };
  const auto block_size = static_cast<unsigned>(a.key_cache.shape[2]);
  return {.q = rows(a.q),
          .k = rows(a.k),
          .v = rows(a.v),
          .out = {static_cast<T*>(a.out.data), a.out.strides[0], a.out.strides[1]},
          .keys = static_cast<T*>(a.key_cache.data),
          .values = static_cast<T*>(a.value_cache.data),
          .table = integers(a.block_table),
          .bounds = integers(a.cu_seqlens),
          .lengths = integers(a.lengths),
          .S = size(a.block_table.shape[0]),
          .N = size(a.q.shape[0]),
          .NH = size(a.q.shape[1]),
          .KH = size(a.key_cache.shape[1]),
          .HS = size(a.key_cache.shape[3]),
          .blocks = size(a.key_cache.shape[0]),
          .block_size = size(a.key_cache.shape[2]),
          .blocks_each = size(a.block_table.shape[1]),
          .window = size(a.window),
          .block_shift = std::countr_zero(block_size),
          .scale = a.scale * kLog2E};
}

}  // namespace warpwright::ops::cached
