// bf16 and fp16 on the tensor cores of sm_80 and later, forward, of short sequences: tiles are of 64 queries.
// Up to so many tokens a sequence's q, k, v and scores stay on the chip from one product to the next, in one
// pass, and four blocks share a multiprocessor; longer sequences stream.
// FLOPs: 4 per visible pair and head element.
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

// Ahead of the others, whose cost is 0, where a sequence is one or two of its tiles. On Hopper for heads of
// 32 as well, and for heads of 64 only where there is less to do than a tile of flash_sm90 for each
// multiprocessor.
double short_cost(const AttentionForwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kTile = 64;
  const bool hopper = device.gpu.major == 9;
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
