#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/refuse.hpp"
#include "ops/rmsnorm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "rmsnorm.forward";
constexpr std::string_view kBackward = "rmsnorm.backward";

NormForwardProblem forward_problem(const RMSNormForward& a) {
  return layernorm::forward_problem(kForward, rmsnorm::as_norm(a));
}
NormBackwardProblem backward_problem(const RMSNormBackward& a) {
  return layernorm::backward_problem(kBackward, rmsnorm::as_norm(a));
}

template <auto kernel>
void run_forward(const Context& context, const RMSNormForward& args) {
  kernel(context, rmsnorm::as_norm(args));
}
template <auto kernel>
void run_backward(const Context& context, const RMSNormBackward& args) {
  kernel(context, rmsnorm::as_norm(args));
}

using Forward = Variant<NormForwardProblem, RMSNormForward>;
using Backward = Variant<NormBackwardProblem, RMSNormBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", layernorm::cuda::refuse_warp_row_forward,
          run_forward<layernorm::cuda::warp_row_forward>},
      Forward{"cuda.warp_loop", layernorm::cuda::refuse_any, run_forward<layernorm::cuda::warp_loop_forward>},
#endif
      Forward{"cpu.avx512", layernorm::refuse_avx512_rows, run_forward<layernorm::avx512::forward>},
      Forward{"cpu.avx2", layernorm::refuse_avx2_rows, run_forward<layernorm::avx2::forward>},
      Forward{"cpu.portable", refuse_other_devices, run_forward<layernorm::portable::forward>},
      Forward{kReference, refuse_other_devices, rmsnorm::forward_reference},
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
      Backward{kReference, refuse_other_devices, rmsnorm::backward_reference},
};

}  // namespace

const Op<NormForwardProblem, RMSNormForward>& rmsnorm_forward_op() {
  static const Op<NormForwardProblem, RMSNormForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<NormBackwardProblem, RMSNormBackward>& rmsnorm_backward_op() {
  static const Op<NormBackwardProblem, RMSNormBackward> op{kBackward, kBackwardVariants, backward_problem};
  return op;
}

}  // namespace warpwright::ops
