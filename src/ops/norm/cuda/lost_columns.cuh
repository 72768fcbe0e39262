// Lost columns (ops/norm/lost_columns.hpp) on a GPU: finds them, keeps their x, and looks up their places.
#pragma once

#include <cstdint>

#include "ops/norm/kernels.hpp"
#include "ops/norm/lost_columns.hpp"

namespace warpwright::ops::norm::cuda {

template <class X>
struct KeptColumns {
  const std::int32_t* columns;  // (1 + capacity), or null if there are none
  const X* values;              // (N, capacity)
  std::int64_t capacity;

  __device__ int places() const {
    if (!columns) return 0;
    return columns[0] < capacity ? columns[0] : static_cast<int>(capacity);
  }
  // Returns the place in which the column is kept, or −1. It uses bisection.
  __device__ int place(int column, int places) const {
    int low = 0, high = places;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (columns[1 + middle] < column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < places && columns[1 + low] == column ? low : -1;
  }
};

template <class X>
KeptColumns<X> kept_columns_of(const LostColumns& lost) {
  return {static_cast<const std::int32_t*>(lost.columns.data), static_cast<const X*>(lost.x.data),
          lost.places()};
}

// If the caller asks for lost columns, finds them and keeps their x.
void keep_lost_columns(const Context& context, const NormForward& args);

// In the fp32 parts (count, 2, C), replaces dweight of the kept columns by Σ dout·x̂, computed from x itself.
void put_kept_sums(const Context& context, const NormBackward& args, float* parts, int count);

}  // namespace warpwright::ops::norm::cuda
