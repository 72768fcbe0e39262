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
      // The last pair is that of a model whose classifier shares wte.
      struct Stores {
        Store wte, wpe;
      };
      for (const Stores stores : {Stores{Store::assign, Store::assign}, Stores{Store::add, Store::add},
                                  Stores{Store::add, Store::assign}}) {
        bench.run(
            embedding_backward_op(),
            [&](testing::Fixture& f) {
              EmbeddingBackward a = embedding::make_backward(c, dtype, stores.wte, f);
              a.dwpe_store = stores.wpe;
              return a;
            },
            note);
      }
    }
  }
}

}  // namespace warpwright::ops
