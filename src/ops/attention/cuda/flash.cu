// Attention in bf16 and fp16 on the tensor cores of sm_80 and later, by mma.sync. FLOPs per visible pair and
// head element: forward 4, backward 14 (the problem has 10; flash.cuh explains the rest).
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/cuda/refuse.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

// With two row tiles, a warp reads half as much from shared memory. For heads above 64, the registers do not
// suffice for two row tiles and two sums.
template <class T, int kHeadSize>
using Forward = MmaEngine<T, kHeadSize, 2, 64, 2>;
template <class T, int kHeadSize>
using Queries = MmaEngine<T, kHeadSize, 2, kHeadSize <= 64 ? 64 : 32, 2>;
template <class T, int kHeadSize>
using Keys = MmaEngine<T, kHeadSize, kHeadSize <= 64 ? 2 : 1, kHeadSize <= 64 ? 32 : 64, 2>;

std::size_t forward_bytes(std::int64_t HS) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) { bytes = forward_shared<Forward<__half, decltype(size)::value>>(); });
  return bytes;
}

std::size_t backward_bytes(std::int64_t HS) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    bytes = std::max(backward_shared<Queries<__half, kSize>>(), backward_shared<Keys<__half, kSize>>());
  });
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

void flash_forward(const Context& context, const AttentionForward& a) {
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16
        ? launch_forward<Forward<__nv_bfloat16, kSize>>(context, a, "attention.forward cuda.flash")
        : launch_forward<Forward<__half, kSize>>(context, a, "attention.forward cuda.flash");
  });
}

void flash_backward(const Context& context, const AttentionBackward& a) {
  const auto run = [&]<class T, int kSize>() {
    launch_backward<Queries<T, kSize>, Keys<T, kSize>>(context, a, "attention.backward cuda.flash");
  };
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16 ? run.template operator()<__nv_bfloat16, kSize>()
                             : run.template operator()<__half, kSize>();
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = k16Bits,
                                                            .run = attention::cuda::flash_forward,
                                                            .refuse = attention::cuda::refuse_forward};
WARPWRIGHT_KERNEL(AttentionBackward, "cuda.flash"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = k16Bits,
                                                             .run = attention::cuda::flash_backward,
                                                             .refuse = attention::cuda::refuse_backward,
                                                             .workspace = attention::cuda::statistics_bytes};

}  // namespace warpwright::ops
