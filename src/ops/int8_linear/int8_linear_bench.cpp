#include "ops/int8_linear/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void int8_linear_bench(Bench& bench) {
  if (bench.on_gpu()) return;
  const Context context{ContextOptions{}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : int8::bench_cases()) {
      bench.run(int8_linear_op(), [&](testing::Fixture& f) {
        return int8::with_packed(int8::make_args(c, dtype, f), context, f);
      });
    }
  }
}

}  // namespace warpwright::ops
