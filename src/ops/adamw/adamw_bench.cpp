#include "ops/adamw/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void adamw_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : adamw_kernels::bench_cases()) {
      bench.run(adamw_op(), [&](testing::Fixture& f) { return adamw_kernels::make(c, dtype, 1, f); });
    }
  }
}

}  // namespace warpwright::ops
