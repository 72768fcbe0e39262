#include "ops/norm/cases.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {
namespace {

using norm::Case;
using norm::Form;

void forward_and_backward(Bench& bench, const Case& c, const Form& form) {
  bench.run(norm_forward_op(), [&](testing::Fixture& f) { return norm::make_forward(c, form, f); });
  bench.run(norm_backward_op(), [&](testing::Fixture& f) { return norm::make_backward(c, form, f); });
  if (!form.centered) return;
  bench.run(norm_backward_op(), [&](testing::Fixture& f) {  // from the output
    NormBackward a = norm::make_backward(c, form, f);
    a.bias = f.random(form.dtype, {c.C});
    std::swap(a.x, a.out);
    return a;
  });
}

}  // namespace

void norm_bench(Bench& bench) {
  auto cases = norm::bench_cases();
  if (bench.on_gpu()) {
    for (const auto& c : norm::gpu_bench_cases()) cases.push_back(c);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& c : cases) forward_and_backward(bench, c, {.dtype = dtype});
    for (const auto& c : norm::small_bench_cases()) forward_and_backward(bench, c, {.dtype = dtype});
    for (const auto& c : cases) forward_and_backward(bench, c, {.dtype = dtype, .centered = false});
    for (const auto& c : cases) {  // the residual of a pre-norm model
      const Form form{.dtype = dtype, .residual = true, .sum = true};
      bench.run(norm_forward_op(), [&](testing::Fixture& f) { return norm::make_forward(c, form, f); });
    }
  }
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const auto& c : cases) {  // the residual of a post-norm encoder
      const Form form{.dtype = dtype, .statistics = false, .residual = true, .x_bias = true};
      bench.run(norm_forward_op(), [&](testing::Fixture& f) { return norm::make_forward(c, form, f); });
    }
  }
}

}  // namespace warpwright::ops
