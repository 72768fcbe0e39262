#include "ops/rope/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void rope_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const RopeLayout layout : kRopeLayouts) {
      for (const auto& c : bench.on_gpu() ? rope::gpu_bench_cases() : rope::bench_cases()) {
        bench.run(rope_forward_op(),
                  [&](testing::Fixture& f) { return rope::make_forward(c, dtype, layout, f); });
        bench.run(rope_backward_op(),
                  [&](testing::Fixture& f) { return rope::make_backward(c, dtype, layout, f); });
      }
    }
  }
}

}  // namespace warpwright::ops
