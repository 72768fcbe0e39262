// doutᵀ·x on Hopper's tensor cores, in fp32. The columns of both factors are the depth, so both tiles are
// transposed. The copy engine adds to an existing gradient, once per element. The bias gradient is summed
// from dout's tiles in passing: a sum for each slab of 64 rows, then the slabs in order.
#include "ops/matmul/cuda/wgmma.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"

namespace warpwright::ops::matmul::cuda {
namespace {

template <Schedule schedule, DType dtype, class T>
void run(const Context& context, const MatmulDw& args, const Selection& selection) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  Product product{N, K, M, dtype, DType::f32, matrix_of(args.dout), matrix_of(args.x), {args.dweight.data, K},
                  {}};
  run_selected<Direction::dw, dtype, Activation::none, Finish::plain, schedule, T, float, true, true,
               Epilogue<SumRows>>(
      context, selection, product,
      [&](Parameters& p) {
        p.add = args.store == Store::add;
        if (args.dbias) {
          p.row_sums =
              reinterpret_cast<float*>(static_cast<std::byte*>(context.scratch()) + selection.partial_bytes);
        }
      },
      "matmul.dw on wgmma");
}

}  // namespace

void wgmma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection) {
  visit_schedule(schedule, [&](auto chosen) {
    if (args.x.dtype == DType::bf16) {
      run<chosen, DType::bf16, __nv_bfloat16>(context, args, selection);
    } else {
      run<chosen, DType::f16, __half>(context, args, selection);
    }
  });
}

}  // namespace warpwright::ops::matmul::cuda
