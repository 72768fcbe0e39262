#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/attention/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {
namespace {

// Uses the dtype in which encoders run.
void packed_bench(Bench& bench) {
  auto cases = attention::packed_bench_cases();
  for (auto& c : attention::pair_bench_cases()) cases.push_back(std::move(c));
  for (auto& c : cases) {
    c.padding = 0;
    const auto [least, most] = std::minmax_element(c.queries.begin(), c.queries.end());
    const std::string note = *least == *most ? "" : fmt::format(" lengths {} to {}", *least, *most);
    bench.run(
        attention_forward_op(),
        [&](testing::Fixture& f) { return attention::make_forward(c, DType::f16, false, f); }, note);
  }
}

// In fp32, as cuda.ladder_library needs it, and in fp16 without lse, as cuda.ladder_half2 does.
void one_length_bench(Bench& bench) {
  for (const auto& c : attention::one_length_bench_cases()) {
    bench.run(attention_forward_op(),
              [&](testing::Fixture& f) { return attention::make_forward(c, DType::f32, true, f); });
    bench.run(attention_backward_op(),
              [&](testing::Fixture& f) { return attention::make_backward(c, DType::f32, f); });
  }
  for (const auto& c : attention::one_length_text_cases()) {
    bench.run(attention_forward_op(),
              [&](testing::Fixture& f) { return attention::make_forward(c, DType::f16, false, f); });
  }
}

}  // namespace

void attention_bench(Bench& bench) {
  auto cases = attention::bench_cases();
  if (bench.on_gpu()) {
    for (auto& c : attention::gpu_bench_cases()) cases.push_back(std::move(c));
  }
  for (auto& c : cases) c.padding = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) {
      bench.run(attention_forward_op(),
                [&](testing::Fixture& f) { return attention::make_forward(c, dtype, true, f); });
    }
    for (const auto& c : cases) {
      if (c.queries != c.keys) continue;  // a cache serves generation, which has no backward
      bench.run(attention_backward_op(),
                [&](testing::Fixture& f) { return attention::make_backward(c, dtype, f); });
    }
  }
  if (!bench.on_gpu()) return;
  one_length_bench(bench);
  packed_bench(bench);
}

}  // namespace warpwright::ops
