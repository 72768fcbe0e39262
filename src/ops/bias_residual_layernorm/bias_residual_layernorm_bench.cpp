#include "ops/bias_residual_layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void bias_residual_layernorm_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const auto& c : bias_residual_layernorm::bench_cases()) {
      bench.run(bias_residual_layernorm_forward_op(),
                [&](testing::Fixture& f) { return bias_residual_layernorm::make_forward(c, dtype, {}, f); });
    }
  }
}

}  // namespace warpwright::ops
