// x·Wᵀ on Hopper's tensor cores. The rows of both factors are the depth. The steps of the epilogue are bias,
// activation and keeping the pre-activation, or bias, scale and residual.
#include "ops/matmul/cuda/wgmma.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"

namespace warpwright::ops::matmul::cuda {
namespace {

template <Activation activation, Finish finish>
struct EpilogueOf {
  using type = Epilogue<AddBias, Keep, Activate<activation>>;
};
template <>
struct EpilogueOf<Activation::none, Finish::plain> {
  using type = Epilogue<AddBias>;
};
template <Finish finish>
struct EpilogueOf<Activation::none, finish> {
  using type = Epilogue<AddBias, Scale, AddMatrix>;
};

template <Activation activation, Finish finish, Schedule schedule, DType dtype, class T>
void run(const Context& context, const MatmulForward& args, const Selection& selection) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  Product product{M,
                  N,
                  K,
                  dtype,
                  args.out.dtype,
                  matrix_of(args.x),
                  {args.weight.data, K},
                  matrix_of(args.out),
                  matrix_of(args.residual ? args.residual : args.preact)};
  using Out = std::conditional_t<finish == Finish::widened, float, T>;
  run_selected<Direction::forward, dtype, activation, finish, schedule, T, Out, false, false,
               typename EpilogueOf<activation, finish>::type>(
      context, selection, product,
      [&](Parameters& p) {
        p.bias = args.bias.data;
        p.keeps = static_cast<bool>(args.preact);
        p.adds_matrix = static_cast<bool>(args.residual);
        p.scale = args.scale;
        if (args.rows) p.work.rows_on_device = args.rows.as<std::int32_t>();
        p.overlaps = gpu::overlaps(context);
      },
      "matmul.forward on wgmma");
}

}  // namespace

void wgmma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                   const Selection& selection) {
  const Request request = request_of(args.problem());
  visit_product(schedule, request.dtype, request.activation, request.finish,
                [&]<Activation activation, Finish finish, Schedule known, DType dtype, class T>() {
                  run<activation, finish, known, dtype, T>(context, args, selection);
                });
}

}  // namespace warpwright::ops::matmul::cuda
