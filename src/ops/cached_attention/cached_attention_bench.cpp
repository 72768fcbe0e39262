#include "ops/cached_attention/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void cached_attention_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cached::bench_cases()) {
      bench.run(cached_attention_op(),
                [&](testing::Fixture& f) { return cached::make_attention(c, dtype, f, true); });
    }
    bench.run(cache_append_op(),
              [&](testing::Fixture& f) { return cached::make_append(512, 12, 64, dtype, f); });
  }
}

}  // namespace warpwright::ops
