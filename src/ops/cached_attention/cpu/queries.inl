// Attention to a cache on a CPU: each task has one key head of one sequence and all queries that see it. Keys
// and values are read in place, a span of keys at a time for all query heads of the group.
//
// Memory-bound with one query: 2 · HS elements and 4 · HS · NH / KH FLOP per key. On a Granite Rapids, steps
// of 64 sequences of GPT-2 124M run at 0.39 to 0.48 of the read bandwidth.
//
// A row is read in pairs of vectors. Those of bf16 come with their even and odd elements apart, which saves a
// shuffle for each vector; the query and the sums of values have the same order. A last pair that is not
// whole keeps its order. Scores are computed for a whole vector of keys, and a transposition sums them.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/cached_attention/kernels.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/online_softmax.hpp"
#include "ops/cpu/prefetch.hpp"

namespace warpwright::ops::cached {
namespace {

using namespace simd;

// Calls f(d, whole) for each pair of vectors of a row. Only the last pair can be partial.
template <class F>
void for_each_pair(std::int64_t HS, const F& f) {
  std::int64_t d = 0;
  for (; d + 2 * kLanes <= HS; d += 2 * kLanes) f(d, std::true_type());
  if (d < HS) f(d, std::false_type());
}
inline void load_whole(const float* p, vec& a, vec& b) {
  a = load(p);
  b = load(p + kLanes);
}
inline void load_whole(const bf16* p, vec& even, vec& odd) {
  load_apart(p, even, odd);
}
inline void store_whole(float* p, vec a, vec b) {
  store(p, a);
  store(p + kLanes, b);
}
inline void store_whole(bf16* p, vec even, vec odd) {
  store_apart(p, even, odd);
}
// n: the elements of a partial pair.
template <class T, bool whole>
void load_pair(const T* p, std::int64_t n, vec& a, vec& b, std::bool_constant<whole>) {
  if constexpr (whole) return load_whole(p, a, b);
  a = load_lanes(p, static_cast<int>(std::min<std::int64_t>(n, kLanes)));
  b = n > kLanes ? load_lanes(p + kLanes, static_cast<int>(n - kLanes)) : zero();
}
template <class T, bool whole>
void store_pair(T* p, std::int64_t n, vec a, vec b, std::bool_constant<whole>) {
  if constexpr (whole) return store_whole(p, a, b);
  store_lanes(p, a, static_cast<int>(std::min<std::int64_t>(n, kLanes)));
  if (n > kLanes) store_lanes(p + kLanes, b, static_cast<int>(n - kLanes));
}

// One key head of one sequence.
template <class T>
struct Head {
  T *keys, *values;           // of that head, in the first place of the cache
  const std::int32_t* table;  // the sequence's row
  std::int64_t block_size, block_stride, HS;

  T* row(T* cache, std::int64_t j) const {
    return cache + table[j / block_size] * block_stride + j % block_size * HS;
  }
  // Calls f(row) for the rows of keys, or values, [first, last).
  template <class F>
  void for_each_row(T* cache, std::int64_t first, std::int64_t last, const F& f) const {
    for (std::int64_t j = first; j < last;) {
      const std::int64_t end = std::min(last, (j / block_size + 1) * block_size);
      for (const T* at = row(cache, j); j < end; ++j, at += HS) f(at);
    }
  }
  // A head's rows of a block are too few for the processor to see which follow.
  void prefetch(T* cache, std::int64_t first, std::int64_t last) const {
    for_each_row(cache, first, last, [&](const T* at) { prefetch_row(at, HS); });
  }
};

// The keys and values of a span.
template <class T>
struct Span {
  std::int64_t keys = 0;
  const T *key[kSpan], *value[kSpan];

  Span(const Head<T>& head, std::int64_t first, std::int64_t last) {
    static_assert(kSpan % kLanes == 0);
    head.for_each_row(head.keys, first, last, [&](const T* row) { key[keys++] = row; });
    std::int64_t values = 0;
    head.for_each_row(head.values, first, last, [&](const T* row) { value[values++] = row; });
    // Scores are computed for whole vectors of keys.
    for (std::int64_t j = keys; j % kLanes != 0; ++j) key[j] = key[0];
  }
};

// The state of one query head, in the scratch of its thread. ld: HS padded to whole vectors.
template <class T>
struct Query {
  float *query, *sums;  // ld floats each; the query is in units of ln 2
  Softmax& softmax;
  std::int64_t HS;

  Query(float* scratch, std::int64_t g, std::int64_t group, std::int64_t ld, std::int64_t head_size)
      : query(scratch + kSpan + 2 * g * ld),
        sums(query + ld),
        softmax(reinterpret_cast<Softmax*>(scratch + kSpan + 2 * group * ld)[g]),
        HS(head_size) {}

  void begin(const T* row, float scale) {
    for_each_pair(HS, [&](std::int64_t d, auto whole) {
      vec a, b;
      load_pair(row + d, HS - d, a, b, whole);
      store_floats(query, d, a * set1(scale * kLog2E), b * set1(scale * kLog2E));
      store_floats(sums, d, zero(), zero());
    });
    softmax = {};
  }
  void attend(const Span<T>& span, float* scores) {
    for (std::int64_t j = 0; j < span.keys; j += kLanes) score(span.key + j, scores + j);
    add(softmax.update(scores, span.keys), span, scores);
  }
  void end(T* out, bool has_keys) const {
    const vec inverse = set1(has_keys ? 1 / softmax.sum : 0);
    for_each_pair(HS, [&](std::int64_t d, auto whole) {
      vec a, b;
      load_floats(sums, d, a, b);
      store_pair(out + d, HS - d, a * inverse, b * inverse, whole);
    });
  }

 private:
  // A pair of floats; the arrays may have no second vector at their end.
  void store_floats(float* to, std::int64_t d, vec a, vec b) const {
    store(to + d, a);
    if (d + kLanes < HS) store(to + d + kLanes, b);
  }
  void load_floats(const float* from, std::int64_t d, vec& a, vec& b) const {
    a = load(from + d);
    b = d + kLanes < HS ? load(from + d + kLanes) : zero();
  }

  // The scores of kLanes keys.
  void score(const T* const* keys, float* scores) const {
    vec sums_of_key[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      vec even = zero(), odd = zero();
      for_each_pair(HS, [&](std::int64_t d, auto whole) {
        vec q_even, q_odd, k_even, k_odd;
        load_floats(query, d, q_even, q_odd);
        load_pair(keys[i] + d, HS - d, k_even, k_odd, whole);
        even = fma(q_even, k_even, even);
        odd = fma(q_odd, k_odd, odd);
      });
      sums_of_key[i] = even + odd;
    }
    transpose(sums_of_key);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) sums_of_key[i] = sums_of_key[i] + sums_of_key[i + width];
    }
    store(scores, sums_of_key[0]);
  }
  // sums = factor · sums + Σ_j p[j] · values[j]
  void add(float factor, const Span<T>& span, const float* p) {
    for_each_pair(HS, [&](std::int64_t d, auto whole) {
      vec even, odd, more_even = zero(), more_odd = zero();
      load_floats(sums, d, even, odd);
      even = even * set1(factor);
      odd = odd * set1(factor);
      std::int64_t j = 0;
      for (; j + 1 < span.keys; j += 2) {
        vec a, b;
        load_pair(span.value[j] + d, HS - d, a, b, whole);
        even = fma(set1(p[j]), a, even);
        odd = fma(set1(p[j]), b, odd);
        load_pair(span.value[j + 1] + d, HS - d, a, b, whole);
        more_even = fma(set1(p[j + 1]), a, more_even);
        more_odd = fma(set1(p[j + 1]), b, more_odd);
      }
      if (j < span.keys) {
        vec a, b;
        load_pair(span.value[j] + d, HS - d, a, b, whole);
        even = fma(set1(p[j]), a, even);
        odd = fma(set1(p[j]), b, odd);
      }
      store_floats(sums, d, even + more_even, odd + more_odd);
    });
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
    std::memcpy(head.row(cache, j), from, static_cast<std::size_t>(head.HS) * sizeof(T));
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
    for (std::int64_t g = 0; g < group; ++g) f(Query<T>(scratch, g, group, ld, head.HS), h * group + g);
  };
  for (std::int64_t i = 0; i < queries; ++i) {
    const auto row = [&](const Tensor& t, std::int64_t query_head) {
      return static_cast<T*>(t.data) + (bounds[s] + i) * t.strides[0] + query_head * t.strides[1];
    };
    const Seen seen = keys_seen(i, queries, keys, a.window);
    for_each_query_head([&](Query<T> q, std::int64_t at) { q.begin(row(a.q, at), a.scale); });
    for (std::int64_t first = seen.first; first < seen.last; first += kSpan) {
      const std::int64_t last = std::min(first + kSpan, seen.last);
      const Span<T> span(head, first, last);
      if (i == 0) {  // later queries usually find them in the processor's caches
        head.prefetch(head.values, first, last);
        head.prefetch(head.keys, last, std::min(last + kSpan, seen.last));
      }
      for_each_query_head([&](Query<T> q, std::int64_t) { q.attend(span, scratch); });
    }
    for_each_query_head([&](Query<T> q, std::int64_t at) { q.end(row(a.out, at), seen.last > seen.first); });
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
