// The sums of squares on a CPU. Memory-bound: 4 bytes and 2 FLOP (in fp64) per element.
#include "ops/cpu/elementwise.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

using namespace simd;

static_assert(kSquaresBlock == kElementwiseBlock);

double sum_of_squares(const float* g, std::int64_t begin, std::int64_t end) {
  constexpr int kSums = 8;  // so that the additions do not wait for each other
  dvec sums[kSums];
  for (dvec& s : sums) s = dvec{};
  std::int64_t i = begin;
  for (; i + kSums * kDoubles <= end; i += kSums * kDoubles) {
    for (int s = 0; s < kSums; ++s) {
      const dvec x = load_double(g + i + s * kDoubles);
      sums[s] = fma(x, x, sums[s]);
    }
  }
  double tail = 0;
  for (; i < end; ++i) tail += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  const dvec low = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const dvec high = (sums[4] + sums[5]) + (sums[6] + sums[7]);
  return sum(low + high) + tail;
}

void run(const Context& context, const Squares& args) {
  const auto tensors = static_cast<std::int64_t>(args.gradients.size());
  const Tensor* gradients = args.gradients.data();
  auto* sums = static_cast<double*>(args.sums.data);
  for_each_block_parallel(
      tensors, [=](std::int64_t i) { return count_elements(gradients[i]); }, context.threads(),
      [=](std::int64_t i, std::int64_t block, std::int64_t begin, std::int64_t end) {
        const auto* g = static_cast<const float*>(gradients[i].data);
        sums[block] = sum_of_squares(g, begin, end);
      });
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Squares, kCpu) = {
    .needs = kThisCpu, .dtypes = DTypes{DType::f32}, .run = global_norm_kernels::run};

}  // namespace warpwright::ops
