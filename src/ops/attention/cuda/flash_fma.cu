// Attention in fp32, bf16 and fp16 by fp32 multiply-adds, for every head size up to 256, any strides, any
// scale and fewer key heads than query heads. It runs fp32 if tf32 is not allowed, and every call that the
// tensor-core kernels refuse. FLOPs per visible pair and head element: forward 4, backward 14.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/fma_engine.cuh"
#include "ops/attention/cuda/refuse.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

template <class F>
void visit_engine(std::int64_t HS, F&& f) {
  if (HS <= 64) {
    f(FmaEngine<64, 64, 64>{});
  } else if (HS <= 128) {
    f(FmaEngine<128, 64, 32>{});
  } else {
    f(FmaEngine<256, 32, 32>{});
  }
}

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo& device) {
  std::size_t bytes = 0;
  if (p.HS <= kMaxHeadSize) {
    visit_engine(p.HS, [&](auto engine) { bytes = forward_shared<decltype(engine)>(); });
  }
  return refuse_shared(bytes, p.HS, device);
}
Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  std::size_t bytes = 0;
  if (p.HS <= kMaxHeadSize) {
    visit_engine(p.HS, [&](auto engine) { bytes = backward_shared<decltype(engine)>(); });
  }
  return refuse_shared(bytes, p.HS, device);
}

void flash_fma_forward(const Context& context, const AttentionForward& a) {
  constexpr std::string_view kWhat = "attention.forward cuda.flash_fma";
  visit_engine(a.q.shape[2], [&](auto engine) {
    using E = decltype(engine);
    a.bias || a.visible ? launch_forward<E, ReadPairs<E>>(context, a, kWhat)
                        : launch_forward<E>(context, a, kWhat);
  });
}

void flash_fma_backward(const Context& context, const AttentionBackward& a) {
  visit_engine(a.q.shape[2], [&](auto engine) {
    using E = decltype(engine);
    launch_backward<E, E>(context, a, "attention.backward cuda.flash_fma");
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_fma"_kernel) = {.needs = Needs::gpu,
                                                                .dtypes = kGpuDTypes,
                                                                .run = attention::cuda::flash_fma_forward,
                                                                .refuse = attention::cuda::refuse_forward};
WARPWRIGHT_KERNEL(AttentionBackward, "cuda.flash_fma"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = attention::cuda::flash_fma_backward,
    .refuse = attention::cuda::refuse_backward,
    .workspace = attention::cuda::statistics_bytes};

}  // namespace warpwright::ops
