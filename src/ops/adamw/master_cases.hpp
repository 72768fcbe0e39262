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

// An fp32 parameter with the values of a bf16 one: its masters if it has a remainder, otherwise its own.
inline Tensor fp32_parameter(const Tensor& parameter, const Tensor& remainder, testing::Fixture& f) {
  const Tensor masters = f.output(DType::f32, parameter.shape);
  for (std::int64_t i = 0; i < parameter.elements(); ++i) {
    const bf16 upper = parameter.as<bf16>()[i];
    masters.as<float>()[i] =
        remainder ? master_of(upper.bits, remainder.as<std::int16_t>()[i]) : static_cast<float>(upper);
  }
  return masters;
}

// The elements of a bf16 parameter and its remainder that are not those of a master.
inline std::int64_t elements_unlike(const Tensor& masters, const Tensor& parameter, const Tensor& remainder) {
  std::int64_t unlike = 0;
  for (std::int64_t i = 0; i < masters.elements(); ++i) {
    const float master = masters.as<float>()[i];
    const std::uint16_t upper = bf16(master).bits;
    unlike += parameter.as<bf16>()[i].bits != upper ||
              remainder.as<std::int16_t>()[i] != remainder_of(master, upper);
  }
  return unlike;
}

}  // namespace warpwright::ops::adamw_kernels
