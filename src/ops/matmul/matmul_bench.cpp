#include "ops/matmul/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void matmul_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t tokens : {1, 4, 16, 256, 1024, 4096}) {
      for (const auto& c : matmul::bench_cases(tokens)) {
        bench.run(matmul_forward_op(), [&](testing::Fixture& f) {
          return matmul::make_forward(c, dtype, true, Activation::none, f);
        });
        if (tokens <= 16) continue;
        bench.run(matmul_dx_op(),
                  [&](testing::Fixture& f) { return matmul::make_dx(c, dtype, Activation::none, f); });
        bench.run(matmul_dw_op(),
                  [&](testing::Fixture& f) { return matmul::make_dw(c, dtype, true, Store::add, f); });
      }
    }
  }
}

}  // namespace warpwright::ops
