// fp32, bf16 and fp16 by fp32 multiply-adds: every head size up to 256, any strides, any scale. What fp32
// takes where tf32 is not allowed, and every call that the tensor-core kernels cannot take.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/fma_engine.cuh"
#include "ops/attention/kernels.hpp"

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

}  // namespace

std::size_t flash_fma_shared_bytes(std::int64_t HS, bool backward) {
  std::size_t bytes = 0;
  if (HS > kMaxHeadSize) return bytes;
  visit_engine(HS, [&](auto engine) {
    using E = decltype(engine);
    bytes = backward ? backward_shared<E>() : forward_shared<E>();
  });
  return bytes;
}

void flash_fma_forward(const Context& context, const AttentionForward& a) {
  visit_engine(a.q.shape[2], [&](auto engine) {
    launch_forward<decltype(engine)>(context, a, "attention.forward cuda.flash_fma");
  });
}

void flash_fma_backward(const Context& context, const AttentionBackward& a) {
  visit_engine(a.q.shape[2], [&](auto engine) {
    using E = decltype(engine);
    launch_backward<E, E>(context, a, "attention.backward cuda.flash_fma");
  });
}

}  // namespace warpwright::ops::attention::cuda
