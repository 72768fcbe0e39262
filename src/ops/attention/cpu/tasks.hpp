// The rows of a (sequence, head), the part of a tile that its queries see, and the division of a call into
// tasks. Only the ISA files include this header; it has internal linkage for that reason.
#pragma once

#include <omp.h>

#include "ops/attention/kernels.hpp"
#include "ops/cpu/prefetch.hpp"

namespace warpwright::ops::attention {
namespace {

inline std::int64_t at_most(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t at_least(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The rows of one head of a (N, NH, HS) tensor, from some row on.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  T* operator[](std::int64_t row) const { return data + row * stride; }
  Rows from(std::int64_t row) const { return {data + row * stride, stride}; }
};

template <class T>
inline Rows<T> rows_of(const Tensor& tensor, std::int64_t head, std::int64_t first_row) {
  return {static_cast<T*>(tensor.data) + head * tensor.strides[1] + first_row * tensor.strides[0],
          tensor.strides[0]};
}

// Prefetches n rows that will be read soon. The rows of one head are too far apart for the hardware to
// predict.
template <class T>
inline void prefetch(Rows<const T> rows, std::int64_t n, std::int64_t HS) {
  for (std::int64_t row = 0; row < n; ++row) simd::prefetch_row(rows[row], HS);
}

// [begin, end), or nothing if end ≤ begin.
struct Range {
  std::int64_t begin, end;

  std::int64_t size() const { return end - begin; }
  // Both ends at multiples.
  Range widened(std::int64_t multiple) const {
    if (end <= begin) return {0, 0};
    return {begin / multiple * multiple, round_up(end, multiple)};
  }
};

// Tiles of keys begin at multiples of kBlock.
inline std::int64_t first_tile(Range keys) {
  return keys.begin / kBlock * kBlock;
}

constexpr std::int64_t kNoWindow = std::int64_t{1} << 32;  // longer than any sequence

struct Sequence {
  std::int64_t index, first_query, queries, first_key, keys;
  bool causal;
  std::int64_t window;

  // The keys that some of the n queries from query i on see.
  Range keys_seen(std::int64_t i, std::int64_t n) const {
    if (!causal) return {0, keys};
    const std::int64_t end = i + keys - queries + 1;  // of the keys that query i sees
    return {at_least(0, end - window), at_least(0, end + n - 1)};
  }
};

// A tile of scores. Query i sees keys [begin(i), end(i)) of its nk. Both ends move by slope with every query.
struct Band {
  std::int64_t queries, nk, first_end, slope, window;

  std::int64_t clamp(std::int64_t key) const { return at_most(nk, at_least(0, key)); }
  std::int64_t begin(std::int64_t i) const { return clamp(first_end + slope * i - window); }
  std::int64_t end(std::int64_t i) const { return clamp(first_end + slope * i); }
  // The keys that some of the n queries from query i on see.
  Range keys_seen(std::int64_t i, std::int64_t n) const { return {begin(i), end(i + n - 1)}; }
  // The queries that see some of the n keys from key j on.
  Range queries_seeing(std::int64_t j, std::int64_t n) const {
    const std::int64_t last = at_most(j + n, nk) - 1;
    return {slope == 0 ? 0 : at_least(0, j - first_end + 1), at_most(queries, last - first_end + window + 1)};
  }
  bool empty() const { return begin(0) >= nk; }
  bool masks() const { return begin(queries - 1) > 0 || end(0) < nk; }
};

// The tile of the queries from q0 on and the keys from k0 on, without those after the last key that is seen.
inline Band band_of(const Sequence& s, std::int64_t q0, std::int64_t queries, std::int64_t k0) {
  const std::int64_t nk = at_most(kBlock, s.keys_seen(q0, queries).end - k0);
  if (!s.causal) return {queries, nk, nk, 0, kNoWindow};
  return {queries, nk, q0 + s.keys - s.queries + 1 - k0, 1, s.window};
}

struct Sequences {
  const std::int32_t *q, *k;
  std::int64_t count, block;  // queries per task
  bool causal;
  std::int64_t window;

  template <class Args>
  Sequences(const Args& args, std::int64_t queries_of_a_task)
      : q(static_cast<const std::int32_t*>(args.cu_seqlens_q.data)),
        k(static_cast<const std::int32_t*>(args.cu_seqlens_k.data)),
        count(args.cu_seqlens_q.shape[0] - 1),
        block(queries_of_a_task),
        causal(args.mask == Mask::causal),
        window(args.window > 0 ? args.window : kNoWindow) {}

  Sequence operator[](std::int64_t s) const {
    return {s, q[s], q[s + 1] - q[s], k[s], k[s + 1] - k[s], causal, window};
  }
  // The blocks of queries of a sequence have slots. [slot(s), slot(s + 1)) suffices for the blocks of s
  // wherever s begins. A slot's sequence is thus found without a table.
  std::int64_t slot(std::int64_t s) const { return q[s] / block + s; }
  // Returns the last s whose first slot is not after the wanted one.
  std::int64_t find(std::int64_t wanted) const {
    std::int64_t low = 0, high = count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (slot(middle) <= wanted ? low : high) = middle;
    }
    return low;
  }
};

// The bias and the mask of one head of one sequence, by query and key. Both count from the sequence's first.
template <class T>
struct Pairs {
  const T* bias = nullptr;  // may be null
  const std::uint8_t* visible = nullptr;
  std::int64_t ld_bias = 0, ld_visible = 0;

  explicit operator bool() const { return bias || visible; }
};

template <class T>
Pairs<T> pairs_of(const AttentionForward& a, std::int64_t sequence, std::int64_t head) {
  Pairs<T> pairs;
  if (a.bias) {
    const PairPlaces places = places_of_bias(a.bias);
    pairs.ld_bias = places.row;
    pairs.bias = static_cast<const T*>(a.bias.data) + places.at(sequence, head, 0, 0);
  }
  if (a.visible) {
    const PairPlaces places = places_of_visible(a.visible);
    pairs.ld_visible = places.row;
    pairs.visible = static_cast<const std::uint8_t*>(a.visible.data) + places.at(sequence, head, 0, 0);
  }
  return pairs;
}

// One query head of one sequence, and the key head that it sees. The rows begin with the sequence's first.
template <class T>
struct ForwardHead {
  Sequence sequence;
  std::int64_t HS;
  float scale;
  Rows<const T> q, k, v;
  Rows<T> out;
  float* lse;  // may be null
  Pairs<T> pairs;
};

// Calls f(head, first query, thread) for each block of queries of each head, on several threads.
template <class T, class F>
void for_each_query_block(const Context& context, const AttentionForward& a, std::int64_t block, const F& f) {
  const std::int64_t Nq = a.q.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  const std::int64_t group = NH / a.k.shape[1];
  const Sequences sequences(a, block);
  const std::int64_t tasks = sequences.count > 0 ? sequences.slot(sequences.count) * NH : 0;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads())
  for (std::int64_t task = 0; task < tasks; ++task) {
    // The tasks of a sequence are ordered by head. Heads that share keys are thus processed at about the same
    // time. Within a head the tasks go from the last block, which sees the most keys, to the first.
    const std::int64_t index = sequences.find(task / NH);
    const std::int64_t slots = sequences.slot(index + 1) - sequences.slot(index);
    const std::int64_t within = task - sequences.slot(index) * NH, head = within / slots;
    const Sequence s = sequences[index];
    const std::int64_t q0 = (slots - 1 - within % slots) * block;
    if (q0 >= s.queries) continue;
    f(ForwardHead<T>{s, HS, a.scale, rows_of<const T>(a.q, head, s.first_query),
                     rows_of<const T>(a.k, head / group, s.first_key),
                     rows_of<const T>(a.v, head / group, s.first_key), rows_of<T>(a.out, head, s.first_query),
                     a.lse ? static_cast<float*>(a.lse.data) + head * Nq + s.first_query : nullptr,
                     pairs_of<T>(a, index, head)},
      q0, omp_get_thread_num());
  }
}

// One query head of one sequence, and the key head that it sees.
template <class T>
struct BackwardHead {
  Sequence sequence;
  std::int64_t HS;
  float scale;
  Rows<const T> q, k, v, out, dout;
  Rows<T> dq, dk, dv;
  const float* lse;
  float* sums;  // fp32 sums of dk, then of dv, over the query heads: gradient_sums() floats

  std::int64_t sum_rows() const { return round_up(sequence.keys, kSumRows); }
};

// One key head of one sequence.
template <class T>
struct KeyHead {
  const AttentionBackward& args;
  Sequence sequence;
  std::int64_t head, group;  // group: number of query heads that see it
  float* sums;

  // Returns the group's i-th query head.
  BackwardHead<T> query_head(std::int64_t i) const {
    const AttentionBackward& a = args;
    const Sequence& s = sequence;
    const std::int64_t h = head * group + i, Nq = a.q.shape[0];
    return {s,
            a.q.shape[2],
            a.scale,
            rows_of<const T>(a.q, h, s.first_query),
            rows_of<const T>(a.k, head, s.first_key),
            rows_of<const T>(a.v, head, s.first_key),
            rows_of<const T>(a.out, h, s.first_query),
            rows_of<const T>(a.dout, h, s.first_query),
            rows_of<T>(a.dq, h, s.first_query),
            rows_of<T>(a.dk, head, s.first_key),
            rows_of<T>(a.dv, head, s.first_key),
            static_cast<const float*>(a.lse.data) + h * Nq + s.first_query,
            sums};
  }
};

// Calls f(key head, thread) for each key head of each sequence, on several threads.
template <class T, class F>
void for_each_key_head(const Context& context, const AttentionBackward& a, float* sums, const F& f) {
  const std::int64_t Nk = a.k.shape[0], KH = a.k.shape[1], HS = a.k.shape[2];
  const std::int64_t group = a.q.shape[1] / KH;
  const Sequences sequences(a, kBlock);
  const int threads = context.threads();
  const std::int64_t per_owner = gradient_sums(Nk, sequences.count, HS);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t task = 0; task < sequences.count * KH; ++task) {
    const std::int64_t head = task % KH;
    const Sequence s = sequences[task / KH];
    // The sums of a head's sequences do not overlap. Sums that belong to a thread stay in its cache.
    float* own = threads <= KH ? sums + omp_get_thread_num() * per_owner
                               : sums + head * per_owner + gradient_sums(s.first_key, s.index, HS);
    f(KeyHead<T>{a, s, head, group, own}, omp_get_thread_num());
  }
}

}  // namespace
}  // namespace warpwright::ops::attention
