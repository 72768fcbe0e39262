#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "layernorm.forward";
constexpr std::string_view kBackward = "layernorm.backward";

NormForwardProblem layernorm_forward_problem(const LayerNormForward& a) {
  return layernorm::forward_problem(kForward, {a, true});
}
NormBackwardProblem layernorm_backward_problem(const LayerNormBackward& a) {
  return layernorm::backward_problem(kBackward, {a, true});
}

template <auto kernel>
void run_forward(const Context& context, const LayerNormForward& args) {
  kernel(context, {args, true});
}
template <auto kernel>
void run_backward(const Context& context, const LayerNormBackward& args) {
  kernel(context, {args, true});
}

using Forward = Variant<NormForwardProblem, LayerNormForward>;
using Backward = Variant<NormBackwardProblem, LayerNormBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", layernorm::cuda::refuse_warp_row_forward,
          run_forward<layernorm::cuda::warp_row_forward>},
      Forward{"cuda.warp_loop", layernorm::cuda::refuse_any, run_forward<layernorm::cuda::warp_loop_forward>},
#endif
      Forward{"cpu.avx512", layernorm::refuse_avx512_rows, run_forward<layernorm::avx512::forward>},
      Forward{"cpu.avx2", layernorm::refuse_avx2_rows, run_forward<layernorm::avx2::forward>},
      Forward{"cpu.portable", refuse_other_devices, run_forward<layernorm::portable::forward>},
      Forward{kReference, refuse_other_devices, run_forward<layernorm::forward_reference>},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.warp_row", layernorm::cuda::refuse_warp_row_backward,
           run_backward<layernorm::cuda::warp_row_backward>, layernorm::cuda::warp_row_workspace},
      Backward{"cuda.two_pass", layernorm::cuda::refuse_any, run_backward<layernorm::cuda::two_pass_backward>,
               layernorm::cuda::two_pass_workspace},
#endif
      Backward{"cpu.avx512", layernorm::refuse_avx512_rows, run_backward<layernorm::avx512::backward>,
               layernorm::cpu_backward_workspace},
      Backward{"cpu.avx2", layernorm::refuse_avx2_rows, run_backward<layernorm::avx2::backward>,
               layernorm::cpu_backward_workspace},
      Backward{"cpu.portable", refuse_other_devices, run_backward<layernorm::portable::backward>,
               layernorm::cpu_backward_workspace},
      Backward{kReference, refuse_other_devices, run_backward<layernorm::backward_reference>},
};

}  // namespace

const Op<NormForwardProblem, LayerNormForward>& layernorm_forward_op() {
  static const Op<NormForwardProblem, LayerNormForward> op{kForward, kForwardVariants,
                                                           layernorm_forward_problem};
  return op;
}

const Op<NormBackwardProblem, LayerNormBackward>& layernorm_backward_op() {
  static const Op<NormBackwardProblem, LayerNormBackward> op{kBackward, kBackwardVariants,
                                                             layernorm_backward_problem};
  return op;
}

}  // namespace warpwright::ops
