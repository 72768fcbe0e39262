// dout·W on Hopper's tensor cores. The columns of the weight are the depth, so its tile is transposed. The
// derivative of the activation is a step of the epilogue.
#include "ops/matmul/cuda/wgmma.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"

namespace warpwright::ops::matmul::cuda {
namespace {

template <Activation activation>
struct EpilogueOf {
  using type = Epilogue<Differentiate<activation>>;
};
template <>
struct EpilogueOf<Activation::none> {
  using type = Epilogue<>;
};

template <Activation activation, Finish finish, Schedule schedule, DType dtype, class T>
void run(const Context& context, const MatmulDx& args, const Selection& selection) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  Product product{M,
                  K,
                  N,
                  dtype,
                  args.dx.dtype,
                  matrix_of(args.dout),
                  {args.weight.data, K},
                  matrix_of(args.dx),
                  matrix_of(args.preact)};
  using Out = std::conditional_t<finish == Finish::widened, float, T>;
  run_selected<Direction::dx, dtype, activation, finish, schedule, T, Out, false, true,
               typename EpilogueOf<activation>::type>(
      context, selection, product, [](Parameters&) {}, "matmul.dx on wgmma");
}

}  // namespace

void wgmma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection) {
  visit_schedule(schedule, [&](auto chosen) {
    const auto with = [&]<Activation activation, Finish finish = Finish::plain>() {
      if (args.dout.dtype == DType::bf16) {
        run<activation, finish, chosen, DType::bf16, __nv_bfloat16>(context, args, selection);
      } else {
        run<activation, finish, chosen, DType::f16, __half>(context, args, selection);
      }
    };
    if (args.dx.dtype == DType::f32) return with.template operator()<Activation::none, Finish::widened>();
    switch (args.activation) {
      case Activation::none:
        return with.template operator()<Activation::none>();
      case Activation::gelu_tanh:
        return with.template operator()<Activation::gelu_tanh>();
      case Activation::gelu_erf:
        return with.template operator()<Activation::gelu_erf>();
      default:
        return;  // refused before: select() offers nothing
    }
  });
}

}  // namespace warpwright::ops::matmul::cuda
