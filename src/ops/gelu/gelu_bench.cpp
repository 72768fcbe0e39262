#include "ops/gelu/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void gelu_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto cases = gelu::bench_cases();
    if (bench.on_gpu()) {
      for (const auto& c : gelu::gpu_bench_cases()) cases.push_back(c);
    }
    for (const Activation form : {Activation::gelu_tanh, Activation::gelu_erf}) {
      for (const auto& c : cases) {
        bench.run(gelu_forward_op(),
                  [&](testing::Fixture& f) { return gelu::make_forward(c, dtype, form, f); });
        bench.run(gelu_backward_op(),
                  [&](testing::Fixture& f) { return gelu::make_backward(c, dtype, form, f); });
      }
    }
  }
}

}  // namespace warpwright::ops
