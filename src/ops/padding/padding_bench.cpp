#include "ops/padding/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {

void padding_bench(Bench& bench) {
  for (const auto& c : padding::bench_cases()) {
    bench.run(padding_lengths_op(),
              [&](testing::Fixture& f) { return padding::make_lengths(c, DType::i32, f); });
    bench.run(padding_pairs_op(), [&](testing::Fixture& f) {
      return padding::make_pairs(static_cast<std::int64_t>(c.lengths.size()), c.S, c.S, 0, DType::bf16, f);
    });
    bench.run(padding_pack_op(), [&](testing::Fixture& f) { return padding::make_pack(c, DType::bf16, f); });
    bench.run(padding_unpack_op(),
              [&](testing::Fixture& f) { return padding::make_unpack(c, DType::bf16, f); });
  }
}

}  // namespace warpwright::ops
