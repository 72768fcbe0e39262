#include "ops/gradient_sum/cases.hpp"
#include "ops/testing/bench.hpp"
#include "ops/testing/gpt2_sizes.hpp"

namespace warpwright::ops {

void gradient_sum_bench(Bench& bench) {
  auto cases = gradient_sum_kernels::bench_cases();
  if (bench.on_gpu()) cases.push_back({testing::gpt2_124m_sizes()});
  for (const auto& c : cases) {
    bench.run(gradient_sum_op(),
              [&](testing::Fixture& f) { return gradient_sum_kernels::make(c, DType::f32, f); });
  }
}

}  // namespace warpwright::ops
