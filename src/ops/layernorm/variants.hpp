// The variants of ops/layernorm and ops/rmsnorm, which have their kernels in common: `as_norm` gives an
// operation's arguments as these take them.
#pragma once

#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/refuse.hpp"

namespace warpwright::ops::layernorm {

template <class Args, NormForward (*as_norm)(const Args&), void (*reference)(const Context&, const Args&)>
struct ForwardVariants {
  using Forward = Variant<NormForwardProblem, Args>;

  template <auto kernel>
  static void run(const Context& context, const Args& args) {
    kernel(context, as_norm(args));
  }

  static constexpr std::array list {
#if WARPWRIGHT_CUDA
    Forward{"cuda.warp_row", cuda::refuse_warp_row_forward, run<cuda::warp_row_forward>},
        Forward{"cuda.warp_loop", cuda::refuse_any, run<cuda::warp_loop_forward>},
#endif
        Forward{"cpu.avx512", refuse_avx512_rows, run<avx512::forward>},
        Forward{"cpu.avx2", refuse_avx2_rows, run<avx2::forward>},
        Forward{"cpu.portable", refuse_other_devices, run<portable::forward>},
        Forward{kReference, refuse_other_devices, reference},
  };
};

template <class Args, NormBackward (*as_norm)(const Args&), void (*reference)(const Context&, const Args&)>
struct BackwardVariants {
  using Backward = Variant<NormBackwardProblem, Args>;

  template <auto kernel>
  static void run(const Context& context, const Args& args) {
    kernel(context, as_norm(args));
  }

  static constexpr std::array list {
#if WARPWRIGHT_CUDA
    Backward{"cuda.warp_row", cuda::refuse_warp_row_backward, run<cuda::warp_row_backward>,
             cuda::warp_row_workspace},
        Backward{"cuda.two_pass", cuda::refuse_any, run<cuda::two_pass_backward>, cuda::two_pass_workspace},
#endif
        Backward{"cpu.avx512", refuse_avx512_rows, run<avx512::backward>, cpu_backward_workspace},
        Backward{"cpu.avx2", refuse_avx2_rows, run<avx2::backward>, cpu_backward_workspace},
        Backward{"cpu.portable", refuse_other_devices, run<portable::backward>, cpu_backward_workspace},
        Backward{kReference, refuse_other_devices, reference},
  };
};

}  // namespace warpwright::ops::layernorm
