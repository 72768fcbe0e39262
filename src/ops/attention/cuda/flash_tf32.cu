// Attention in fp32 whose products round their factors to tf32, on the tensor cores of sm_80 and later. FLOPs
// per visible pair and head element: forward 4, backward 14.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/cuda/refuse.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

template <int kHeadSize>
using Engine = MmaEngine<float, kHeadSize, 1, 32, 2>;

std::size_t forward_bytes(std::int64_t HS) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) { bytes = forward_shared<Engine<decltype(size)::value>>(); });
  return bytes;
}

std::size_t backward_bytes(std::int64_t HS) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) { bytes = backward_shared<Engine<decltype(size)::value>>(); });
  return bytes;
}

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo& device) {
  if (Refusal refusal = refuse_tiles(p)) return refusal;
  return refuse_shared(forward_bytes(p.HS), p.HS, device);
}
Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  if (Refusal refusal = refuse_tiles(p)) return refusal;
  return refuse_shared(backward_bytes(p.HS), p.HS, device);
}

void flash_tf32_forward(const Context& context, const AttentionForward& a) {
  visit_head_size(a.q.shape[2], [&](auto size) {
    launch_forward<Engine<decltype(size)::value>>(context, a, "attention.forward cuda.flash_tf32");
  });
}

void flash_tf32_backward(const Context& context, const AttentionBackward& a) {
  visit_head_size(a.q.shape[2], [&](auto size) {
    using E = Engine<decltype(size)::value>;
    launch_backward<E, E>(context, a, "attention.backward cuda.flash_tf32");
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_tf32"_kernel) = {.needs = Needs::tf32,
                                                                 .dtypes = DType::f32,
                                                                 .run = attention::cuda::flash_tf32_forward,
                                                                 .refuse = attention::cuda::refuse_forward};
WARPWRIGHT_KERNEL(AttentionBackward, "cuda.flash_tf32"_kernel) = {
    .needs = Needs::tf32,
    .dtypes = DType::f32,
    .run = attention::cuda::flash_tf32_backward,
    .refuse = attention::cuda::refuse_backward,
    .workspace = attention::cuda::statistics_bytes};

}  // namespace warpwright::ops
