#include "ops/element.hpp"

namespace warpwright::ops {

double load_element(const Tensor& tensor, std::int64_t offset) {
  return visit_dtype(tensor.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = static_cast<const T*>(tensor.data)[offset];
    if constexpr (sizeof(T) == 2) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}

void store_element(const Tensor& tensor, std::int64_t offset, double value) {
  visit_dtype(tensor.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(tensor.data)[offset] =
        T(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
  });
}

}  // namespace warpwright::ops
