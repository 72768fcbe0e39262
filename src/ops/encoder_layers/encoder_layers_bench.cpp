#include "ops/encoder_layers/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void encoder_layers_bench(Bench& bench) {
  for (const auto& c : encoder_layers::bench_cases()) {
    bench.run(encoder_layers_forward_op(),
              [&](testing::Fixture& f) { return encoder_layers::make_forward(c, DType::f16, f); });
  }
}

}  // namespace warpwright::ops
