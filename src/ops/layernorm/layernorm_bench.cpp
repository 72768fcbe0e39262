#include "ops/layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void layernorm_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : layernorm::bench_cases()) {
      bench.run(layernorm_forward_op(),
                [&](testing::Fixture& f) { return layernorm::make_forward(c, dtype, true, f); });
    }
    for (const auto& c : layernorm::bench_cases()) {
      bench.run(layernorm_backward_op(),
                [&](testing::Fixture& f) { return layernorm::make_backward(c, dtype, Store::assign, f); });
    }
  }
}

}  // namespace warpwright::ops
