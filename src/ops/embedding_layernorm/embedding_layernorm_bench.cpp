#include "ops/embedding_layernorm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void embedding_layernorm_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : embedding_layernorm::bench_cases()) {
      bench.run(embedding_layernorm_forward_op(),
                [&](testing::Fixture& f) { return embedding_layernorm::make_forward(c, dtype, f); });
    }
  }
}

}  // namespace warpwright::ops
