#include "ops/attention/cpu/bf16_backward.hpp"
#include "ops/attention/cpu/bf16_forward.hpp"
#include "ops/cpu/isa.hpp"

namespace warpwright::ops {
namespace this_isa = attention::WARPWRIGHT_ISA;

WARPWRIGHT_KERNEL(AttentionForward, kCpu) = {.needs = kThisCpu,
                                             .dtypes = DType::bf16,
                                             .run = this_isa::forward,
                                             .refuse = attention::refuse_tiles,
                                             .workspace = attention::tiles_forward_workspace};
WARPWRIGHT_KERNEL(AttentionBackward, kCpu) = {.needs = kThisCpu,
                                              .dtypes = DType::bf16,
                                              .run = this_isa::backward,
                                              .refuse = attention::refuse_tiles,
                                              .workspace = attention::tiles_backward_workspace};

}  // namespace warpwright::ops
