#include "ops/muon/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void muon_bench(Bench& bench) {
  for (const auto& c : muon::bench_cases()) {
    bench.run(muon_momentum_op(),
              [&](testing::Fixture& f) { return muon::make_momentum(c, DType::f32, 1, f); });
    for (const DType dtype : {DType::f32, DType::bf16}) {
      bench.run(muon_scale_op(), [&](testing::Fixture& f) { return muon::make_scale(c, dtype, true, f); });
      bench.run(muon_update_op(),
                [&](testing::Fixture& f) { return muon::make_update(c, dtype, true, 1, f); });
    }
    bench.run(muon_update_op(),
              [&](testing::Fixture& f) { return muon::make_update(c, DType::bf16, false, 1, f); });
  }
}

}  // namespace warpwright::ops
