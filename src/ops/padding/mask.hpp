// The rule for masks, for every caller and every kernel.
//   shape   (B, S) says which places hold tokens, in any pattern; (B, 1, S, S) says for each pair whether the
//           query sees the key
//   value   0 or 1 of any dtype. More than 0.5 means one. Any other value, NaN included, is odd: kernels
//           report the first one.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/tensor.hpp"

namespace warpwright::ops {

enum class MaskForm : std::uint8_t { tokens, pairs };

// Throws Error if a mask of B sequences of S places has neither shape. `where` names the caller's argument.
MaskForm mask_form(std::string_view where, const Shape& shape, std::int64_t B, std::int64_t S);

// Throws Error unless `odd` is −1. Otherwise it is the index of an odd value among the mask's elements.
void require_no_odd(std::string_view where, const Shape& shape, std::int64_t odd);

// The bytes 0 and 1 of a mask in the host's memory, which is contiguous. Throws Error for an odd value.
std::vector<std::uint8_t> read_mask(std::string_view where, const Tensor& mask);

namespace padding {

// Calls f with a value of the mask's dtype.
template <class F>
void visit_mask(DType dtype, F&& f) {
  switch (dtype) {
    case DType::u8:
      return f(std::uint8_t{});
    case DType::i32:
      return f(std::int32_t{});
    case DType::i64:
      return f(std::int64_t{});
    default:
      return visit_dtype(dtype, [&](auto tag) { f(typename decltype(tag)::type{}); });
  }
}

// A mask's element on the host as a type that the rule takes: bf16 and fp16 convert only to fp32.
template <class T>
auto value_of(T x) {
  if constexpr (std::integral<T> || sizeof(T) > 2) {
    return x;
  } else {
    return static_cast<float>(x);
  }
}

template <class T>
constexpr bool is_one(T x) {
  if constexpr (std::integral<T>) {
    return x > 0;
  } else {
    return x > T(0.5);
  }
}
template <class T>
constexpr bool is_odd(T x) {
  return !(x == T(0) || x == T(1));
}

}  // namespace padding

}  // namespace warpwright::ops
