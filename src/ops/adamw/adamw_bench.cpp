#include "ops/adamw/cases.hpp"
#include "ops/testing/bench.hpp"
#include "ops/testing/gpt2_sizes.hpp"

namespace warpwright::ops {

void adamw_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : adamw_kernels::bench_cases()) {
      bench.run(adamw_op(), [&](testing::Fixture& f) { return adamw_kernels::make(c, dtype, 1, f); });
    }
    if (!bench.on_gpu()) continue;
    const adamw_kernels::Case model{testing::gpt2_124m_sizes()};
    bench.run(adamw_op(), [&](testing::Fixture& f) { return adamw_kernels::make(model, dtype, 1, f); });
  }
  auto alone = adamw_kernels::bench_cases();
  if (bench.on_gpu()) alone.push_back({testing::gpt2_124m_sizes()});
  for (auto& c : alone) {
    c.masters = false;
    bench.run(adamw_op(), [&](testing::Fixture& f) { return adamw_kernels::make(c, DType::bf16, 1, f); });
  }
}

}  // namespace warpwright::ops
