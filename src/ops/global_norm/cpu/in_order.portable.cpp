// The norm on a CPU, from one sum in fp64 for each block of gradients. They are few.
#include "ops/global_norm/kernels.hpp"
#include "runtime/context.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

void in_order(const Context&, const GlobalNorm& args) {
  const double* sums = args.sums.as<double>();
  double sum = 0;
  for (std::int64_t block = 0; block < args.sums.elements(); ++block) sum += sums[block];
  finish(args, sum);
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GlobalNorm, "cpu.in_order"_kernel) = {
    .needs = Needs::cpu, .dtypes = DTypes{DType::f32}, .run = global_norm_kernels::in_order};

}  // namespace warpwright::ops
