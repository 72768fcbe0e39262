// The oracle is layer normalization's, with a mean of 0.
#include "ops/rmsnorm/kernels.hpp"

namespace warpwright::ops::rmsnorm {

void forward_reference(const Context& context, const RMSNormForward& args) {
  layernorm::forward_reference(context, as_norm(args));
}

void backward_reference(const Context& context, const RMSNormBackward& args) {
  layernorm::backward_reference(context, as_norm(args));
}

}  // namespace warpwright::ops::rmsnorm
