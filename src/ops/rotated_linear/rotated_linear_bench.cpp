#include "ops/rotated_linear/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void rotated_linear_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : rotated_linear::bench_cases(bench.on_gpu() ? 2048 : 0)) {
      bench.run(rotated_forward_op(), [&](testing::Fixture& f) {
        return rotated_linear::make_forward(c, dtype, RopeLayout::half, f);
      });
    }
  }
}

}  // namespace warpwright::ops
