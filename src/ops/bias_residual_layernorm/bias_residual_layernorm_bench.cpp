#include "ops/bias_residual_layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void bias_residual_layernorm_bench(Bench& bench) {
  auto cases = layernorm::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : layernorm::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const auto& c : cases) {
      bench.run(bias_residual_layernorm_forward_op(),
                [&](testing::Fixture& f) { return bias_residual_layernorm::make_forward(c, dtype, {}, f); });
    }
  }
}

}  // namespace warpwright::ops
