#include "ops/classifier/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void classifier_bench(Bench& bench) {
  // The calls work in place, so from the second call on the logits are gradients. This does not change the
  // time.
  for (const auto& c :
       bench.on_gpu() ? classifier_kernels::gpu_bench_cases() : std::vector<classifier_kernels::Case>{}) {
    bench.run(classifier_op(), [&](testing::Fixture& f) {
      return classifier_kernels::make(c, DType::bf16, {true, true, false}, f);
    });
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : classifier_kernels::bench_cases()) {
      for (const bool gradient : {true, false}) {
        bench.run(classifier_op(), [&](testing::Fixture& f) {
          return classifier_kernels::make(c, dtype, {gradient, true, false}, f);
        });
      }
    }
  }
}

}  // namespace warpwright::ops
