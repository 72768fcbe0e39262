#include "ops/pooling/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void pooling_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : pooling::bench_cases()) {
      bench.run(pooling_forward_op(), [&](testing::Fixture& f) {
        return pooling::make_forward(c, dtype, DType::f32, Pooling::mean, true, f);
      });
    }
  }
}

}  // namespace warpwright::ops
