#include "ops/residual_layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void residual_layernorm_bench(Bench& bench) {
  auto cases = residual_layernorm::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : residual_layernorm::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      bench.run(residual_layernorm_forward_op(),
                [&](testing::Fixture& f) { return residual_layernorm::make_forward(c, dtype, true, f); });
    }
  }
}

}  // namespace warpwright::ops
