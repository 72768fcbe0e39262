#include "ops/gated_linear/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void gated_linear_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : bench.on_gpu() ? gated_linear::gpu_bench_cases() : gated_linear::bench_cases()) {
      constexpr GateActivation kSilu = GateActivation::silu;
      bench.run(gated_forward_op(),
                [&](testing::Fixture& f) { return gated_linear::make_forward(c, dtype, kSilu, f); });
      for (const bool out : {false, true}) {
        bench.run(gated_dx_op(),
                  [&](testing::Fixture& f) { return gated_linear::make_dx(c, dtype, kSilu, f, out); });
      }
    }
  }
}

}  // namespace warpwright::ops
