// bf16 and fp16 on the tensor cores of sm_80 and later, by mma.sync.
// flash_short's tiles are of 64 queries: up to so many tokens a sequence's q, k, v and scores stay on the
// chip from one product to the next, in one pass, and four blocks share a multiprocessor; longer ones stream.
// FLOPs: forward 4, backward 14 per visible pair and head element (10 of them are the problem's).
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

// Two row tiles a warp halve what it reads from shared memory; heads above 64 leave no registers for them
// beside two sums.
template <class T, int kHeadSize>
using Forward = MmaEngine<T, kHeadSize, 2, 64, 2>;
template <class T, int kHeadSize>
using ShortForward = MmaEngine<T, kHeadSize, 1, 64, kHeadSize <= 64 ? 4 : 2>;
template <class T, int kHeadSize>
using Queries = MmaEngine<T, kHeadSize, 2, kHeadSize <= 64 ? 64 : 32, 2>;
template <class T, int kHeadSize>
using Keys = MmaEngine<T, kHeadSize, kHeadSize <= 64 ? 2 : 1, kHeadSize <= 64 ? 32 : 64, 2>;

}  // namespace

std::size_t flash_shared_bytes(std::int64_t HS, bool backward) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    bytes = backward
                ? std::max(backward_shared<Queries<__half, kSize>>(), backward_shared<Keys<__half, kSize>>())
                : forward_shared<Forward<__half, kSize>>();
  });
  return bytes;
}

void flash_forward(const Context& context, const AttentionForward& a) {
  if (!suits_tiles(a)) return flash_fma_forward(context, a);
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16
        ? launch_forward<Forward<__nv_bfloat16, kSize>>(context, a, "attention.forward cuda.flash")
        : launch_forward<Forward<__half, kSize>>(context, a, "attention.forward cuda.flash");
  });
}

std::size_t flash_short_shared_bytes(std::int64_t HS, bool) {
  std::size_t bytes = 0;
  visit_head_size(HS,
                  [&](auto size) { bytes = forward_shared<ShortForward<__half, decltype(size)::value>>(); });
  return bytes;
}

void flash_short_forward(const Context& context, const AttentionForward& a) {
  if (!suits_tiles(a)) return flash_fma_forward(context, a);
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16
        ? launch_forward<ShortForward<__nv_bfloat16, kSize>>(context, a, "attention.forward cuda.flash_short")
        : launch_forward<ShortForward<__half, kSize>>(context, a, "attention.forward cuda.flash_short");
  });
}

void flash_backward(const Context& context, const AttentionBackward& a) {
  if (!suits_tiles(a)) return flash_fma_backward(context, a);
  const auto run = [&]<class T, int kSize>() {
    launch_backward<Queries<T, kSize>, Keys<T, kSize>>(context, a, "attention.backward cuda.flash");
  };
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16 ? run.template operator()<__nv_bfloat16, kSize>()
                             : run.template operator()<__half, kSize>();
  });
}

}  // namespace warpwright::ops::attention::cuda
