#include "ops/global_norm/cases.hpp"
#include "ops/testing/bench.hpp"
#include "ops/testing/gpt2_sizes.hpp"

namespace warpwright::ops {

void global_norm_bench(Bench& bench) {
  auto cases = global_norm_kernels::bench_cases();
  if (bench.on_gpu()) cases.push_back({testing::gpt2_124m_sizes()});
  for (const auto& c : cases) {
    bench.run(squares_op(), [&](testing::Fixture& f) { return global_norm_kernels::make(c, DType::f32, f); });
  }
  std::int64_t blocks = 0;
  for (const std::int64_t size : testing::gpt2_124m_sizes()) {
    blocks += (size + kSquaresBlock - 1) / kSquaresBlock;
  }
  bench.run(global_norm_op(),
            [&](testing::Fixture& f) { return global_norm_kernels::make_norm(blocks, DType::f32, f); });
}

}  // namespace warpwright::ops
