#include "ops/rotated_attention/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void rotated_attention_bench(Bench& bench) {
  std::vector<rotated_attention::Case> cases;
  if (bench.on_gpu()) {
    cases = rotated_attention::gpu_bench_cases();
  } else {
    cases.push_back({attention::grouped(attention::self_attention({2048}, 14, 64), 2)});
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      bench.run(rotated_attention_backward_op(),
                [&](testing::Fixture& f) { return rotated_attention::make_backward(c, dtype, f); });
    }
  }
}

}  // namespace warpwright::ops
