// Where the rows of a (sequence, head) stand, what a causal mask hides of a tile, and how a call is cut into
// tasks. Included by the ISA files only, hence internal linkage.
#pragma once

#include "ops/attention/kernels.hpp"

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

// One head of a (N, NH, HS) tensor from some row on.
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

struct Sequence {
  std::int64_t index, first_query, queries, first_key, keys;
  bool causal;
};

// Which keys of a tile's nk its queries see: query i the first clamp(first + slope · i, 0, nk).
struct Band {
  std::int64_t first, slope, nk;

  std::int64_t keys_seen(std::int64_t i) const { return at_most(nk, at_least(0, first + slope * i)); }
  // The first query that sees key j.
  std::int64_t first_query(std::int64_t j) const { return slope == 0 ? 0 : at_least(0, j - first + 1); }
  bool masks() const { return first < nk; }
};

// The tile of keys [k0, k0 + nk) under the queries from q0 on.
inline Band band_of(const Sequence& s, std::int64_t q0, std::int64_t k0, std::int64_t nk) {
  if (!s.causal) return {nk, 0, nk};
  return {q0 + s.keys - s.queries + 1 - k0, 1, nk};
}

// Keys that any of the queries before q1 sees.
inline std::int64_t keys_seen_before(const Sequence& s, std::int64_t q1) {
  return s.causal ? at_least(0, q1 + s.keys - s.queries) : s.keys;
}

struct Sequences {
  const std::int32_t *q, *k;
  std::int64_t count;
  bool causal;

  template <class Args>
  explicit Sequences(const Args& args)
      : q(static_cast<const std::int32_t*>(args.cu_seqlens_q.data)),
        k(static_cast<const std::int32_t*>(args.cu_seqlens_k.data)),
        count(args.cu_seqlens_q.shape[0] - 1),
        causal(args.mask == Mask::causal) {}

  Sequence operator[](std::int64_t s) const {
    return {s, q[s], q[s + 1] - q[s], k[s], k[s + 1] - k[s], causal};
  }
  // Sequences have their blocks of queries in slots, [slot(s), slot(s + 1)) being enough for those of s
  // wherever it starts; so a slot's sequence is found without a table.
  std::int64_t slot(std::int64_t s) const { return q[s] / kBlock + s; }
  std::int64_t find(
      std::int64_t wanted) const {  // the last s whose first slot is at or before the wanted one
    std::int64_t low = 0, high = count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (slot(middle) <= wanted ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace
}  // namespace warpwright::ops::attention
