// Element types: their names, sizes and conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace warpwright {

// bfloat16: the upper half of an fp32. Conversion rounds to nearest even and keeps a NaN a NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE 754 binary16, converted in software. It is a storage format only: no arithmetic uses it.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

enum class DType : std::uint8_t { f64, f32, bf16, f16, i32, i64, u8, i16 };

std::size_t size_of(DType dtype);
std::string_view name_of(DType dtype);  // for example "fp32": the name used on the command line
bool is_floating(DType dtype);
double epsilon_of(DType dtype);  // distance from 1 to the next value; floating types only

// The DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = [] { static_assert(sizeof(T) == 0, "no DType for this type"); };
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int16_t> = DType::i16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;

template <class T>
struct TypeTag {
  using type = T;
};

[[noreturn]] void throw_not_floating(DType dtype);

// Calls f(TypeTag<T>{}) with the C++ type of a floating dtype. Throws for any other dtype.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::bf16:
      return f(TypeTag<bf16>{});
    case DType::f16:
      return f(TypeTag<f16>{});
    default:
      throw_not_floating(dtype);
  }
}

}  // namespace warpwright
