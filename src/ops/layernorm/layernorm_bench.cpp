#include "ops/layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void layernorm_bench(Bench& bench) {
  auto cases = layernorm::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : layernorm::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      bench.run(layernorm_forward_op(),
                [&](testing::Fixture& f) { return layernorm::make_forward(c, dtype, true, f); });
      bench.run(layernorm_backward_op(),
                [&](testing::Fixture& f) { return layernorm::make_backward(c, dtype, Store::assign, f); });
      bench.run(layernorm_backward_op(), [&](testing::Fixture& f) {
        LayerNormBackward a = layernorm::make_backward(c, dtype, Store::assign, f);
        a.bias = f.random(dtype, {c.C});
        std::swap(a.x, a.out);
        return a;
      });
    }
  }
}

}  // namespace warpwright::ops
