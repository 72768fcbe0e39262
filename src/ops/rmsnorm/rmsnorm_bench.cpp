#include "ops/rmsnorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void rmsnorm_bench(Bench& bench) {
  auto cases = layernorm::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : layernorm::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    rmsnorm::Form form;
    form.dtype = dtype;
    for (const auto& c : cases) {
      bench.run(rmsnorm_forward_op(), [&](testing::Fixture& f) { return rmsnorm::make_forward(c, form, f); });
    }
    for (const auto& c : cases) {
      bench.run(rmsnorm_backward_op(),
                [&](testing::Fixture& f) { return rmsnorm::make_backward(c, form, f); });
    }
  }
}

}  // namespace warpwright::ops
