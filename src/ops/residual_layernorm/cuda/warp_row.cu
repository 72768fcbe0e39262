// The residual connection and layer normalization on a GPU with every row in registers: layernorm's kernel
// (ops/layernorm/cuda/rows.cuh), which adds two rows as it reads them. Memory-bound: 4 passes of the tensor
// (x, y, residual, out).
#include "ops/layernorm/cuda/rows.cuh"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops::residual_layernorm::cuda {

void warp_row_forward(const Context& context, const ResidualLayerNormForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int C = static_cast<int>(args.x.shape[1]);
    const layernorm::cuda::ForwardRows<T> a{static_cast<const T*>(args.x.data),
                                            static_cast<const T*>(args.y.data),
                                            static_cast<const T*>(args.weight.data),
                                            static_cast<const T*>(args.bias.data),
                                            static_cast<T*>(args.residual.data),
                                            static_cast<T*>(args.out.data),
                                            static_cast<float*>(args.mean.data),
                                            static_cast<float*>(args.rstd.data),
                                            args.x.shape[0],
                                            C,
                                            static_cast<float>(args.eps)};
    if (!gpu::aligned16(a.x, a.y, a.weight, a.bias, a.residual, a.out))
      return composed_forward(context, args);
    layernorm::cuda::launch_forward<true>(a, layernorm::cuda::forward_shape(C, args.x.dtype), context,
                                          "residual_layernorm.forward cuda.warp_row");
  });
}

}  // namespace warpwright::ops::residual_layernorm::cuda
