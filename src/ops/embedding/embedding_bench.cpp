#include "ops/embedding/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void embedding_bench(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : embedding::bench_cases()) {
      bench.run(embedding_forward_op(),
                [&](testing::Fixture& f) { return embedding::make_forward(c, dtype, f); });
      for (const Store store : {Store::assign, Store::add}) {
        bench.run(embedding_backward_op(),
                  [&](testing::Fixture& f) { return embedding::make_backward(c, dtype, store, f); });
      }
    }
  }
}

}  // namespace warpwright::ops
