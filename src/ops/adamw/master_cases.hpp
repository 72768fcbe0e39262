// Masters for the tests and benches of AdamW and Muon.
#pragma once

#include "core/tensor.hpp"
#include "ops/adamw/master.hpp"
#include "ops/element.hpp"
#include "ops/testing/fixture.hpp"
#include "runtime/philox.hpp"

namespace warpwright::ops::adamw_kernels {

inline Tensor random_remainders(const Shape& shape, testing::Fixture& f) {
  const Tensor remainders = f.output(DType::i16, shape);
  const PhiloxStream stream(11, 3);
#pragma omp parallel for
  for (std::int64_t i = 0; i < (f.with_data() ? remainders.elements() : 0); ++i) {
    const std::uint32_t bits = stream.block(static_cast<std::uint64_t>(i))[0];
    remainders.as<std::int16_t>()[i] = static_cast<std::int16_t>(bits);
  }
  return remainders;
}

// An fp32 tensor with the values of a bf16 one: masters, if there are remainders.
inline Tensor widened(const Tensor& narrow, const Tensor& remainders, testing::Fixture& f) {
  const Tensor wide = f.output(DType::f32, narrow.shape);
  for (std::int64_t i = 0; i < narrow.elements(); ++i) {
    const bf16 upper = narrow.as<bf16>()[i];
    wide.as<float>()[i] =
        remainders ? master_of(upper.bits, remainders.as<std::int16_t>()[i]) : static_cast<float>(upper);
  }
  return wide;
}

// The elements of a bf16 parameter and its remainder that are not those of a master.
inline std::int64_t differing_elements(const Tensor& masters, const Tensor& parameter,
                                       const Tensor& remainder) {
  std::int64_t differing = 0;
  for (std::int64_t i = 0; i < masters.elements(); ++i) {
    const float master = masters.as<float>()[i];
    const std::uint16_t upper = bf16(master).bits;
    differing += parameter.as<bf16>()[i].bits != upper ||
                 remainder.as<std::int16_t>()[i] != remainder_of(master, upper);
  }
  return differing;
}

}  // namespace warpwright::ops::adamw_kernels
