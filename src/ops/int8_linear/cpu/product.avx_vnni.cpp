// Products of int8 with AVX-VNNI, for processors without AVX-512: 2 × 4 vectors of sums. A quad of the depth
// has 8 products for 6 loads.
#include "ops/int8_linear/cpu/dot.hpp"

namespace warpwright::ops {
namespace this_isa = int8::avx_vnni;

WARPWRIGHT_KERNEL(Int8Linear, kCpu) = {.needs = kThisCpu,
                                       .dtypes = kCpuDTypes,
                                       .run = this_isa::run<this_isa::Dot>,
                                       .workspace = int8::workspace};

}  // namespace warpwright::ops
