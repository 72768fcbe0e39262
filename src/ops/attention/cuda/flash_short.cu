// Attention forward in bf16 and fp16 on the tensor cores of sm_80 and later, for short sequences, in tiles of
// 64 queries. Up to 64 tokens, a sequence's q, k, v and scores stay on the chip between the products, and
// there is a single pass. Four blocks share a multiprocessor. Longer sequences are streamed. FLOPs: 4 per
// visible pair and head element.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/cuda/refuse.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

template <class T, int kHeadSize>
using ShortForward = MmaEngine<T, kHeadSize, 1, 64, kHeadSize <= 64 ? 4 : 2>;

std::size_t short_bytes(std::int64_t HS) {
  std::size_t bytes = 0;
  visit_head_size(HS,
                  [&](auto size) { bytes = forward_shared<ShortForward<__half, decltype(size)::value>>(); });
  return bytes;
}

Refusal refuse_short(const AttentionForwardProblem& p, const DeviceInfo& device) {
  if (Refusal refusal = refuse_tiles(p)) return refusal;
  return refuse_shared(short_bytes(p.HS), p.HS, device);
}

// Negative, and thus preferred to the kernels without a cost, if a sequence has one or two tiles. On Hopper
// it is also preferred for heads of 32. For heads of 64 on Hopper it is preferred only if there is less work
// than one tile of flash_sm90 per multiprocessor.
double short_cost(const AttentionForwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kTile = 64;
  const bool hopper = device.gpu.runs_hopper_code();
  if (hopper && p.HS == 32) return -1;
  if (p.batch_invariant) return 1;
  const bool filled = hopper && p.HS == 64 && queries_each(p, device) >= kLargeTile;
  return !filled && shorter_than(p, kTile * 2) ? -1 : 1;
}

void flash_short_forward(const Context& context, const AttentionForward& a) {
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16
        ? launch_forward<ShortForward<__nv_bfloat16, kSize>>(context, a, "attention.forward cuda.flash_short")
        : launch_forward<ShortForward<__half, kSize>>(context, a, "attention.forward cuda.flash_short");
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_short"_kernel) = {.needs = Needs::gpu,
                                                                  .dtypes = k16Bits,
                                                                  .run = attention::cuda::flash_short_forward,
                                                                  .refuse = attention::cuda::refuse_short,
                                                                  .cost = attention::cuda::short_cost};

}  // namespace warpwright::ops
