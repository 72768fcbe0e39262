// Products of int8 with AVX512_VNNI: 8 × 2 vectors of sums. A quad of the depth has 16 products for 10 loads.
#include "ops/int8_linear/cpu/dot.hpp"

namespace warpwright::ops {
namespace this_isa = int8::avx512_vnni;

WARPWRIGHT_KERNEL(Int8Linear, kCpu) = {.needs = kThisCpu,
                                       .dtypes = kCpuDTypes,
                                       .run = this_isa::run<this_isa::Dot>,
                                       .workspace = int8::workspace};

}  // namespace warpwright::ops
