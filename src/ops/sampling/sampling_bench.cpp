#include "ops/sampling/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

// A single row is drawn without cuts; several take kChoices in turn.
void sampling_bench(Bench& bench) {
  for (const auto& c : sampling::bench_cases()) {
    bench.run(sampling_op(), [&](testing::Fixture& f) { return sampling::make(c, DType::bf16, 1, f); });
  }
}

}  // namespace warpwright::ops
