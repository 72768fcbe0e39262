#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/encoder_layers/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "encoder_layers.forward";

EncoderLayersProblem forward_problem(const EncoderLayersForward& a) {
  require(!a.layers.empty(), kForward, "there must be a layer");
  require(a.hidden.shape.rank() == 2 && a.hidden.shape[1] > 0, kForward, "hidden must be (N, H) with H ≥ 1");
  const std::int64_t N = a.hidden.shape[0], H = a.hidden.shape[1];
  const DType dtype = a.hidden.dtype;
  require(a.heads > 0 && H % a.heads == 0, kForward, "heads must divide H");
  require(a.layers[0].fc_bias.shape.rank() == 1, kForward, "fc_bias must be (I)");
  const std::int64_t I = a.layers[0].fc_bias.shape[0];
  for (const EncoderLayer& l : a.layers) {
    const auto matrix = [&](std::string_view name, const Tensor& t, std::int64_t to, std::int64_t from) {
      require_tensor(kForward, name, t, dtype, {to, from});
    };
    const auto vector = [&](std::string_view name, const Tensor& t, std::int64_t to) {
      require_tensor(kForward, name, t, dtype, {to});
    };
    matrix("qkv_weight", l.qkv_weight, 3 * H, H);
    vector("qkv_bias", l.qkv_bias, 3 * H);
    matrix("proj_weight", l.proj_weight, H, H);
    vector("proj_bias", l.proj_bias, H);
    vector("attnorm_weight", l.attnorm_weight, H);
    vector("attnorm_bias", l.attnorm_bias, H);
    matrix("fc_weight", l.fc_weight, I, H);
    vector("fc_bias", l.fc_bias, I);
    matrix("fcproj_weight", l.fcproj_weight, H, I);
    vector("fcproj_bias", l.fcproj_bias, H);
    vector("outnorm_weight", l.outnorm_weight, H);
    vector("outnorm_bias", l.outnorm_bias, H);
  }
  require_tensor(kForward, "hidden", a.hidden, dtype, {N, H});
  require_tensor(kForward, "out", a.out, dtype, {N, H});
  require(a.cu_seqlens.shape.rank() == 1 && a.cu_seqlens.shape[0] > 0, kForward,
          "cu_seqlens must be (S + 1)");
  require_tensor(kForward, "cu_seqlens", a.cu_seqlens, DType::i32, {a.cu_seqlens.shape[0]});
  if (a.rows) require_tensor(kForward, "rows", a.rows, DType::i32, {1});
  return {N,     a.cu_seqlens.shape[0] - 1,
          H,     a.heads,
          I,     static_cast<std::int64_t>(a.layers.size()),
          dtype, a.activation};
}

using Forward = Variant<EncoderLayersProblem, EncoderLayersForward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.one_launch", encoder_layers::cuda::refuse_one_launch,
          encoder_layers::cuda::one_launch_forward, encoder_layers::cuda::one_launch_workspace},
#endif
      Forward{kReference, refuse_other_devices, encoder_layers::forward_reference},
};

double real(std::int64_t n) {
  return static_cast<double>(n);
}

}  // namespace

std::string EncoderLayersProblem::describe() const {
  return fmt::format("N={} S={} H={} heads={} I={} layers={} {} {}", N, S, H, heads, I, layers,
                     name_of(dtype), name_of(activation));
}
double EncoderLayersProblem::flops() const {
  const double products = 2 * real(4 * H + 2 * I) * real(H),
               length = real(N) / real(std::max<std::int64_t>(S, 1));
  return real(layers) * real(N) * (products + 4 * length * real(H));
}
double EncoderLayersProblem::bytes() const {
  const double weights = real(4 * H + 2 * I) * real(H) + real(9 * H + I);
  return (real(layers) * weights + 2 * real(N) * real(H)) * real(static_cast<std::int64_t>(size_of(dtype)));
}

const Op<EncoderLayersProblem, EncoderLayersForward>& encoder_layers_forward_op() {
  static const Op<EncoderLayersProblem, EncoderLayersForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

// Only where it is forced: the operations one by one are not slower yet.
bool encoder_layers_are_offered(const Context& context, const EncoderLayersProblem& problem) {
  const std::string_view forced = forced_variant(context.options(), kForward);
  return std::any_of(encoder_layers_forward_op().variants.begin(), encoder_layers_forward_op().variants.end(),
                     [&](const Forward& variant) {
                       return variant.name == forced && variant.refuse(problem, context.device()).empty();
                     });
}

}  // namespace warpwright::ops
