#include "ops/matmul/cases.hpp"
#include "ops/matmul/packed.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::ops {
namespace {

MatmulForward make_packed(const matmul::Case& c, DType dtype, testing::Fixture& f) {
  const Context context({}, Device{});
  MatmulForward a = matmul::make_forward(c, dtype, true, Activation::none, f);
  a.packed = f.output(DType::u8, {packed_bytes(c.N, c.K, dtype, context.device())});
  if (f.with_data()) pack_weight(context, a.weight, a.packed);
  return a;
}

}  // namespace

void matmul_bench(Bench& bench) {
  std::vector<std::int64_t> tokens{1, 4, 16, 64, 256, 1024, 4096};
  const bool gpu = bench.device().device.kind == DeviceKind::cuda;
  if (gpu) tokens.push_back(16384);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t M : tokens) {
      for (const auto& c : matmul::bench_cases(M)) {
        bench.run(matmul_forward_op(), [&](testing::Fixture& f) {
          return matmul::make_forward(c, dtype, true, Activation::none, f);
        });
        if (M <= 256 && !packed_layout(dtype, bench.device()).empty()) {
          bench.run(matmul_forward_op(), [&](testing::Fixture& f) { return make_packed(c, dtype, f); });
        }
        if (M <= 64) continue;
        bench.run(matmul_dx_op(),
                  [&](testing::Fixture& f) { return matmul::make_dx(c, dtype, Activation::none, f); });
        bench.run(matmul_dw_op(),
                  [&](testing::Fixture& f) { return matmul::make_dw(c, dtype, true, Store::add, f); });
        // The feed-forward layers with GELU behind or before them, as in a training step.
        if (gpu && c.N == 4 * c.K) {
          bench.run(matmul_forward_op(), [&](testing::Fixture& f) {
            return matmul::make_forward(c, dtype, true, Activation::gelu_tanh, f);
          });
        }
        if (gpu && c.K == 4 * c.N) {
          bench.run(matmul_dx_op(),
                    [&](testing::Fixture& f) { return matmul::make_dx(c, dtype, Activation::gelu_tanh, f); });
        }
      }
    }
  }
}

}  // namespace warpwright::ops
