// The weights that the oracles of AdamW and Muon update.
#pragma once

#include "ops/adamw/master.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::adamw_kernels {

// A parameter's elements, or its masters if it has a remainder. The oracle of a test runs on an fp64 copy of
// a bf16 parameter, which begins at the masters and gets no new remainder.
class OracleWeights {
 public:
  OracleWeights(const Tensor& parameter, const Tensor& remainder)
      : parameter_(parameter), remainder_(remainder), elements_(parameter) {}

  double operator[](std::int64_t i) const {
    if (!remainder_) return elements_[i];
    return master_of(bf16(static_cast<float>(elements_[i])).bits, remainder_.as<std::int16_t>()[i]);
  }
  void set(std::int64_t i, double weight) const {
    if (parameter_.dtype != DType::bf16 || !remainder_) return elements_.set(i, weight);
    const auto master = static_cast<float>(weight);
    const bf16 rounded(master);
    parameter_.as<bf16>()[i] = rounded;
    remainder_.as<std::int16_t>()[i] = remainder_of(master, rounded.bits);
  }

 private:
  Tensor parameter_, remainder_;
  Elements elements_;
};

}  // namespace warpwright::ops::adamw_kernels
