#include "ops/embedding/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void embedding_bench(Bench& bench) {
  auto cases = embedding::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : embedding::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      const char* note = c.text ? ", as in text" : "";
      bench.run(
          embedding_forward_op(), [&](testing::Fixture& f) { return embedding::make_forward(c, dtype, f); },
          note);
      for (const Store store : {Store::assign, Store::add}) {
        bench.run(
            embedding_backward_op(),
            [&](testing::Fixture& f) { return embedding::make_backward(c, dtype, store, f); }, note);
      }
    }
  }
}

}  // namespace warpwright::ops
