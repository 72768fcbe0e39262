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
  const Request request = request_of(args.problem());
  visit_product(schedule, request.dtype, request.activation, request.finish,
                [&]<Activation activation, Finish finish, Schedule known, DType dtype, class T>() {
                  run<activation, finish, known, dtype, T>(context, args, selection);
                });
}

}  // namespace warpwright::ops::matmul::cuda
