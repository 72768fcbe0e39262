#include "ops/padding/mask.hpp"

#include <fmt/format.h>

#include <string>

#include "core/error.hpp"

namespace warpwright::ops {

MaskForm mask_form(std::string_view where, const Shape& shape, std::int64_t B, std::int64_t S) {
  if (shape == Shape{B, S}) return MaskForm::tokens;
  if (shape == Shape{B, 1, S, S}) return MaskForm::pairs;
  throw Error(fmt::format("has shape {}", shape.to_string()), std::string(where),
              fmt::format("give ({0}, {1}) for the tokens or ({0}, 1, {1}, {1}) for pairs", B, S));
}

void require_no_odd(std::string_view where, const Shape& shape, std::int64_t odd) {
  if (odd < 0) return;
  Shape place = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    place[axis] = odd % shape[axis];
    odd /= shape[axis];
  }
  throw Error(fmt::format("has a value other than 0 and 1 at {}", place.to_string()), std::string(where),
              "use 1 for what is seen and 0 for what is not");
}

std::vector<std::uint8_t> read_mask(std::string_view where, const Tensor& mask) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(mask.elements()));
  padding::visit_mask(mask.dtype, [&]<class T>(T) {
    const T* from = mask.as<T>();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto value = padding::value_of(from[i]);
      if (padding::is_odd(value)) require_no_odd(where, mask.shape, static_cast<std::int64_t>(i));
      bytes[i] = padding::is_one(value);
    }
  });
  return bytes;
}

}  // namespace warpwright::ops
