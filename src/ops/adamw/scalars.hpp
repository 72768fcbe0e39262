// The numbers of AdamW that change between steps. One tensor on the device holds them, so that a captured
// step is replayed as it is. The host uploads all but the last before each update; global_norm writes the
// gradient scale.
#pragma once

#include "ops/element.hpp"

namespace warpwright::ops {

template <class T>
struct AdamWScalars {
  T learning_rate;
  T bias_correction1, bias_correction2;  // 1 − β1^step, 1 − β2^step
  T gradient_scale;
};

// Views of a tensor of scalars.
inline Tensor host_scalars_of(const Tensor& scalars) {  // (3): all but the gradient scale
  return scalars.slice(0, 0, 3);
}
inline Tensor gradient_scale_of(const Tensor& scalars) {  // (1)
  return scalars.slice(0, 3, 1);
}

// On the host, in any floating dtype, for the update number `step`. Throws Error if step < 1: both bias
// corrections of step 0 are 0, and the update would divide by them.
void store_host_scalars(const Tensor& host_scalars, double learning_rate, double beta1, double beta2,
                        std::int64_t step);
inline AdamWScalars<double> load_scalars(const Tensor& scalars) {
  const Elements s(scalars);
  return {.learning_rate = s[0], .bias_correction1 = s[1], .bias_correction2 = s[2], .gradient_scale = s[3]};
}

}  // namespace warpwright::ops
