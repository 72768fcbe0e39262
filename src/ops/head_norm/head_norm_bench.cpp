#include "ops/head_norm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void head_norm_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : bench.on_gpu() ? head_norm::gpu_bench_cases() : head_norm::bench_cases()) {
      bench.run(head_norm_forward_op(),
                [&](testing::Fixture& f) { return head_norm::make_forward(c, dtype, f); });
      bench.run(head_norm_backward_op(),
                [&](testing::Fixture& f) { return head_norm::make_backward(c, dtype, f); });
    }
  }
}

}  // namespace warpwright::ops
