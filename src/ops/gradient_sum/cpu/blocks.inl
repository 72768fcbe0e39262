// The sum of two sets of gradients on a CPU. Memory-bound: 12 bytes and 1 FLOP per element.
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright::ops {
namespace {

using namespace simd;

void run(const Context& context, const GradientSum& args) {
  const auto tensors = static_cast<std::int64_t>(args.sums.size());
  const Tensor *sums = args.sums.data(), *firsts = args.firsts.data(), *addends = args.addends.data();
  const auto elements = [=](std::int64_t i) { return count_elements(sums[i]); };
  for_each_block_parallel(tensors, elements, context.threads(),
                          [=](std::int64_t t, std::int64_t, std::int64_t begin, std::int64_t end) {
                            auto* sum = static_cast<float*>(sums[t].data);
                            const auto* first = static_cast<const float*>(firsts[t].data);
                            const auto* addend = static_cast<const float*>(addends[t].data);
                            for_each_vector(begin, end, [=](std::int64_t i, int n) {
                              store_lanes(sum + i, load_lanes(first + i, n) + load_lanes(addend + i, n), n);
                            });
                          });
}

}  // namespace

WARPWRIGHT_KERNEL(GradientSum, kCpu) = {.needs = kThisCpu, .dtypes = DTypes{DType::f32}, .run = run};

}  // namespace warpwright::ops
