#include "ops/residual/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void residual_bench(Bench& bench) {
  auto cases = residual::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : residual::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      bench.run(residual_forward_op(),
                [&](testing::Fixture& f) { return residual::make_forward(c, dtype, f); });
      bench.run(residual_backward_op(),
                [&](testing::Fixture& f) { return residual::make_backward(c, dtype, f); });
    }
  }
}

}  // namespace warpwright::ops
