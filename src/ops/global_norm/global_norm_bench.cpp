#include "ops/global_norm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void global_norm_bench(Bench& bench) {
  for (const auto& c : global_norm_kernels::bench_cases()) {
    bench.run(global_norm_op(),
              [&](testing::Fixture& f) { return global_norm_kernels::make(c, DType::f32, f); });
  }
}

}  // namespace warpwright::ops
