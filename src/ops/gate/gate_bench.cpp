#include "ops/gate/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void gate_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GateActivation form : kGateActivations) {
      for (const auto& c : bench.on_gpu() ? gate::gpu_bench_cases() : gate::bench_cases()) {
        bench.run(gate_forward_op(),
                  [&](testing::Fixture& f) { return gate::make_forward(c, dtype, form, f); });
        for (const bool out : {false, true}) {
          bench.run(gate_backward_op(),
                    [&](testing::Fixture& f) { return gate::make_backward(c, dtype, form, f, out); });
        }
      }
    }
  }
}

}  // namespace warpwright::ops
