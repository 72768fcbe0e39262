// Tensors from the bytes of model files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor.hpp"

namespace warpwright {

// Fills the first `rows` rows of a parameter, a matrix or a vector (one row), on whatever device it is, from
// elements of `from_dtype`: bit-exact if dtypes agree, else rounded to nearest even.
// transposed: the file has the transpose of those rows. `from` may be unaligned.
void fill(const Tensor& parameter, std::int64_t rows, std::span<const std::byte> from, DType from_dtype,
          bool transposed);

}  // namespace warpwright
