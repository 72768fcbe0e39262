// The opaque context of the C ABI: an operations' Context, with the variants chosen for the latest problems.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "capi/guard.hpp"
#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/residual_layernorm/residual_layernorm.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::capi {

// The choices for the latest kKept problems. Callers with batches of ever new sizes make no end of problems,
// so that they are not all remembered.
template <class P, class A>
class Choices {
 public:
  struct Choice {
    P problem;
    const ops::Variant<P, A>* variant = nullptr;
    std::size_t workspace = 0;
  };

  const Choice& of(const Context& context, const ops::Op<P, A>& op, const P& problem) {
    for (const Choice& made : made_) {
      if (made.variant && made.problem == problem) return made;
    }
    const ops::Variant<P, A>& variant = ops::choose(context, op, problem);
    const std::size_t bytes = variant.workspace ? variant.workspace(problem, context.device()) : 0;
    Choice& slot = made_[next_++ % kKept];
    slot = {problem, &variant, bytes > 0 ? bytes + kAlignment - 1 : 0};  // the caller's need not be aligned
    return slot;
  }

 private:
  static constexpr std::size_t kKept = 32;
  std::array<Choice, kKept> made_{};
  std::size_t next_ = 0;
};

}  // namespace warpwright::capi

// All members but the first begin empty.
struct warpwright_context {
  template <class P, class A>
  using Choices = warpwright::capi::Choices<P, A>;

  warpwright::Context context;
  Choices<warpwright::ops::NormForwardProblem, warpwright::ops::LayerNormForward> layernorm_forward{};
  Choices<warpwright::ops::NormBackwardProblem, warpwright::ops::LayerNormBackward> layernorm_backward{};
  Choices<warpwright::ops::NormForwardProblem, warpwright::ops::RMSNormForward> rmsnorm_forward{};
  Choices<warpwright::ops::NormBackwardProblem, warpwright::ops::RMSNormBackward> rmsnorm_backward{};
  Choices<warpwright::ops::ResidualLayerNormProblem, warpwright::ops::ResidualLayerNormForward>
      residual_layernorm_forward{};
  Choices<warpwright::ops::BiasResidualLayerNormProblem, warpwright::ops::BiasResidualLayerNormForward>
      bias_residual_layernorm_forward{};
};
