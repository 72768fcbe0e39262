// Checks of the tensors that copy() and clear() get, and the host's clock, for builds with and without CUDA.
#pragma once

#include <chrono>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace warpwright {

inline double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void require_contiguous_for_copy(const Tensor& tensor) {
  if (!tensor.contiguous()) {
    throw Error("the tensor " + tensor.shape.to_string() + " is not contiguous", "copy or clear",
                "copy its rows one by one");
  }
}

inline void require_copyable(const Tensor& to, const Tensor& from) {
  require_contiguous_for_copy(to);
  require_contiguous_for_copy(from);
  if (to.dtype != from.dtype || to.elements() != from.elements()) {
    throw Error("from " + from.shape.to_string() + " to " + to.shape.to_string(), "copy",
                "copy between tensors of one dtype and one number of elements");
  }
}

}  // namespace warpwright
