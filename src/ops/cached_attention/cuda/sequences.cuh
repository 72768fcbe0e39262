// The tensors of an attention to a cache as its kernels on a GPU read them.
#pragma once

#include <cstdint>

#include "ops/cached_attention/kernels.hpp"

namespace warpwright::ops::cached {

// Row n of q belongs to a sequence and sees its keys [first, last). No sequence: [0, 0).
struct RowOfSequence {
  int sequence, first, last;
};

template <class T>
struct Arguments {
  const T *q, *keys, *values;
  T* out;
  const std::int32_t *table, *bounds, *lengths;
  std::int64_t q_row, q_head, out_row, out_head;  // strides
  int S, N, NH, KH, HS, blocks, block_size, blocks_each, window;
  float scale;  // in units of ln 2

  // Finds the sequence of row n. With a query for each sequence it is the n-th.
  __device__ RowOfSequence row(int n) const {
    int low = 0, high = S;
    if (n < S && __ldg(bounds + n) <= n && n < __ldg(bounds + n + 1)) low = n, high = n + 1;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (__ldg(bounds + middle) <= n ? low : high) = middle;
    }
    const int begin = __ldg(bounds + low), end = __ldg(bounds + low + 1);
    if (n < begin || n >= end) return {-1, 0, 0};
    const int length = min(max(__ldg(lengths + low), 0), blocks_each * block_size);
    const int last = n - end + 1 + length;
    return {low, window > 0 ? max(last - window, 0) : 0, last};
  }
  // The first element of key or value j of a sequence. A block number outside the cache becomes 0.
  __device__ std::int64_t place(int sequence, int head, int j) const {
    const int block = __ldg(table + static_cast<std::int64_t>(sequence) * blocks_each + j / block_size);
    const std::int64_t inside = block >= 0 && block < blocks ? block : 0;
    return ((inside * block_size + j % block_size) * KH + head) * HS;
  }
};

template <class T>
Arguments<T> arguments_of(const CachedAttention& a) {
  constexpr float kLog2E = 1.44269504088896341f;
  const auto integers = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  return {static_cast<const T*>(a.q.data),
          static_cast<const T*>(a.key_cache.data),
          static_cast<const T*>(a.value_cache.data),
          static_cast<T*>(a.out.data),
          integers(a.block_table),
          integers(a.cu_seqlens),
          integers(a.lengths),
          a.q.strides[0],
          a.q.strides[1],
          a.out.strides[0],
          a.out.strides[1],
          static_cast<int>(a.block_table.shape[0]),
          static_cast<int>(a.q.shape[0]),
          static_cast<int>(a.q.shape[1]),
          static_cast<int>(a.key_cache.shape[2]),
          static_cast<int>(a.key_cache.shape[3]),
          static_cast<int>(a.key_cache.shape[0]),
          static_cast<int>(a.key_cache.shape[1]),
          static_cast<int>(a.block_table.shape[1]),
          static_cast<int>(a.window),
          a.scale * kLog2E};
}

}  // namespace warpwright::ops::cached
