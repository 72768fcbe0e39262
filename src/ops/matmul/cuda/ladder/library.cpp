// The backward's products as llm.c's fp32 trainer runs them: the library's product alone, and the rest of the
// layer's backward in kernels of its own: GELU's derivative (cuda.ladder_coshf), and the bias gradient with
// 32 columns in a block of 1,024 threads.
#include "ops/matmul/cuda/plain_passes.hpp"
#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

const Kernel<MatmulDx>& library_dx() {
  return KernelOf<MatmulDx, "cuda.cublaslt_unfused"_kernel>::value;
}
const Kernel<MatmulDw>& library_dw() {
  return KernelOf<MatmulDw, "cuda.cublaslt"_kernel>::value;
}

void dx(const Context& context, const MatmulDx& args) {
  MatmulDx product = args;
  const bool is_plain = args.activation == Activation::gelu_tanh && suits_plain_passes(args.dx, args.preact);
  if (is_plain) {
    product.preact = {};
    product.activation = Activation::none;
  }
  library_dx().run(context, product);
  if (is_plain) {
    const GeluBackward gelu{args.dx, args.preact, args.dx, args.activation};
    KernelOf<GeluBackward, "cuda.ladder_coshf"_kernel>::value.run(context, gelu);
  }
}

void dw(const Context& context, const MatmulDw& args) {
  MatmulDw product = args;
  product.dbias = {};
  library_dw().run(context, product);
  if (args.dbias && args.dbias.elements() > 0) plain_column_sums(context, args.dout, args.dbias, args.store);
}

Refusal refuse(const MatmulDxProblem& p, const DeviceInfo& device) {
  return library_dx().refuse(p, device);
}
Refusal refuse(const MatmulDwProblem& p, const DeviceInfo& device) {
  return library_dw().refuse(p, device);
}
std::size_t workspace(const MatmulDxProblem& p, const DeviceInfo& device) {
  return library_dx().workspace(p, device);
}
std::size_t workspace(const MatmulDwProblem& p, const DeviceInfo& device) {
  return library_dw().workspace(p, device);
}

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulDx, "cuda.ladder_library"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = {DType::f32},
                                                             .run = matmul::cuda::dx,
                                                             .refuse = matmul::cuda::refuse,
                                                             .workspace = matmul::cuda::workspace,
                                                             .only_forced = true};
WARPWRIGHT_KERNEL(MatmulDw, "cuda.ladder_library"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = {DType::f32},
                                                             .run = matmul::cuda::dw,
                                                             .refuse = matmul::cuda::refuse,
                                                             .workspace = matmul::cuda::workspace,
                                                             .only_forced = true};

}  // namespace warpwright::ops
