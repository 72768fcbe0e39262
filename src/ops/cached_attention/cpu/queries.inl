// Attention to a cache on a CPU: each task has one key head of one sequence and all queries that see it. Keys
// and values are read in place, a span of keys at a time for all query heads of the group. Memory-bound with
// one query: 2 · HS elements and 4 · HS · NH / KH FLOP per key.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/cached_attention/kernels.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/online_softmax.hpp"

namespace warpwright::ops::cached {
namespace {

using namespace simd;

// One key head of one sequence.
template <class T>
struct Head {
  T *keys, *values;           // of that head, in the first place of the cache
  const std::int32_t* table;  // the sequence's row
  std::int64_t block_size, block_stride, HS;

  // The rows of keys or values in the block that has key j, from key j on.
  struct Rows {
    T* first;
    std::int64_t stride;
    const T* operator[](std::int64_t j) const { return first + j * stride; }
  };
  Rows rows(T* cache, std::int64_t j) const {
    return {cache + table[j / block_size] * block_stride + j % block_size * HS, HS};
  }
  // Calls f(first key, keys) for each piece of [first, last) that is within one block.
  template <class F>
  void for_each_piece(std::int64_t first, std::int64_t last, const F& f) const {
    for (std::int64_t j = first; j < last;) {
      const std::int64_t count = std::min(block_size - j % block_size, last - j);
      f(j, count);
      j += count;
    }
  }
};

// A query head under way, in the scratch of its thread. ld: HS padded to whole vectors.
struct Query {
  float *query, *sums;  // ld floats each; the query is in units of ln 2
  Softmax& softmax;

  Query(float* scratch, std::int64_t g, std::int64_t group, std::int64_t ld)
      : query(scratch + kSpan + 2 * g * ld),
        sums(query + ld),
        softmax(reinterpret_cast<Softmax*>(scratch + kSpan + 2 * group * ld)[g]) {}

  template <class T>
  void begin(const T* row, std::int64_t HS, float scale) {
    for_each_vector(0, HS, [&](std::int64_t d, int n) {
      store(query + d, load_lanes(row + d, n) * set1(scale * kLog2E));
      store(sums + d, zero());
    });
    softmax = {};
  }
  template <class T>
  void attend(const Head<T>& head, std::int64_t first, std::int64_t last, float* scores) {
    head.for_each_piece(first, last, [&](std::int64_t j, std::int64_t count) {
      const auto keys = head.rows(head.keys, j);
      for (std::int64_t i = 0; i < count; ++i) scores[j - first + i] = dot(query, keys[i], head.HS);
    });
    float factor = softmax.update(scores, last - first);
    head.for_each_piece(first, last, [&](std::int64_t j, std::int64_t count) {
      add_values(sums, std::exchange(factor, 1.0f), scores + (j - first), head.rows(head.values, j), count,
                 head.HS);
    });
  }
  template <class T>
  void end(T* out, std::int64_t HS, bool has_keys) const {
    const vec inverse = set1(has_keys ? 1 / softmax.sum : 0);
    for_each_vector(0, HS, [&](std::int64_t d, int n) { store_lanes(out + d, load(sums + d) * inverse, n); });
  }
};

template <class T>
Head<T> head_of(const CachedAttention& a, std::int64_t s, std::int64_t h) {
  const std::int64_t KH = a.key_cache.shape[1], block_size = a.key_cache.shape[2], HS = a.key_cache.shape[3];
  return {.keys = static_cast<T*>(a.key_cache.data) + h * block_size * HS,
          .values = static_cast<T*>(a.value_cache.data) + h * block_size * HS,
          .table = static_cast<const std::int32_t*>(a.block_table.data) + s * a.block_table.shape[1],
          .block_size = block_size,
          .block_stride = KH * block_size * HS,
          .HS = HS};
}

// Stores the rows of the sequence's own queries as its last keys, or values, of head h.
template <class T>
void append(const Head<T>& head, const Tensor& rows, std::int64_t first_row, std::int64_t h, T* cache,
            std::int64_t first, std::int64_t last) {
  for (std::int64_t j = first; j < last; ++j) {
    const T* from =
        static_cast<const T*>(rows.data) + (first_row + j - first) * rows.strides[0] + h * rows.strides[1];
    std::memcpy(head.rows(cache, j).first, from, static_cast<std::size_t>(head.HS) * sizeof(T));
  }
}

// The task of sequence s and key head h. scratch: scratch_floats() of the problem.
template <class T>
void run_head(const CachedAttention& a, std::int64_t s, std::int64_t h, float* scratch) {
  const Head<T> head = head_of<T>(a, s, h);
  const std::int64_t group = a.q.shape[1] / a.key_cache.shape[1], ld = padded_head(head.HS);
  const auto* bounds = static_cast<const std::int32_t*>(a.cu_seqlens.data);
  const std::int64_t queries = bounds[s + 1] - bounds[s];
  const std::int64_t keys = static_cast<const std::int32_t*>(a.lengths.data)[s];
  if (a.k) {
    append(head, a.k, bounds[s], h, head.keys, keys - queries, keys);
    append(head, a.v, bounds[s], h, head.values, keys - queries, keys);
  }
  const auto for_each_query_head = [&](const auto& f) {
    for (std::int64_t g = 0; g < group; ++g) f(Query(scratch, g, group, ld), h * group + g);
  };
  for (std::int64_t i = 0; i < queries; ++i) {
    const auto row = [&](const Tensor& t, std::int64_t query_head) {
      return static_cast<T*>(t.data) + (bounds[s] + i) * t.strides[0] + query_head * t.strides[1];
    };
    const Seen seen = keys_seen(i, queries, keys, a.window);
    for_each_query_head([&](Query q, std::int64_t at) { q.begin(row(a.q, at), head.HS, a.scale); });
    for (std::int64_t first = seen.first; first < seen.last; first += kSpan) {
      const std::int64_t last = std::min(first + kSpan, seen.last);
      for_each_query_head([&](Query q, std::int64_t) { q.attend(head, first, last, scratch); });
    }
    for_each_query_head(
        [&](Query q, std::int64_t at) { q.end(row(a.out, at), head.HS, seen.last > seen.first); });
  }
}

template <class T>
void run(const Context& context, const CachedAttention& a) {
  const std::int64_t S = a.block_table.shape[0], KH = a.key_cache.shape[1];
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t per_thread = scratch_floats(a.q.shape[1] / KH, a.q.shape[2]);
#pragma omp parallel for schedule(dynamic) num_threads(context.threads())
  for (std::int64_t task = 0; task < S * KH; ++task) {
    run_head<T>(a, task / KH, task % KH, scratch + omp_get_thread_num() * per_thread);
  }
}

void forward(const Context& context, const CachedAttention& args) {
  check_sequences(args);
  args.q.dtype == DType::f32 ? run<float>(context, args) : run<bf16>(context, args);
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CachedAttention, kCpu) = {
    .needs = kThisCpu, .dtypes = kCpuDTypes, .run = cached::forward, .workspace = cached::workspace};

}  // namespace warpwright::ops
