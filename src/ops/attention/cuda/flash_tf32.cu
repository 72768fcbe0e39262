// fp32 whose products round their factors to tf32, on the tensor cores of sm_80 and later.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {
namespace {

template <int kHeadSize>
using Engine = MmaEngine<float, kHeadSize, 1, 32, 2>;

}  // namespace

std::size_t flash_tf32_shared_bytes(std::int64_t HS, bool backward) {
  std::size_t bytes = 0;
  visit_head_size(HS, [&](auto size) {
    using E = Engine<decltype(size)::value>;
    bytes = backward ? backward_shared<E>() : forward_shared<E>();
  });
  return bytes;
}

void flash_tf32_forward(const Context& context, const AttentionForward& a) {
  if (!suits_tiles(a)) return flash_fma_forward(context, a);
  visit_head_size(a.q.shape[2], [&](auto size) {
    launch_forward<Engine<decltype(size)::value>>(context, a, "attention.forward cuda.flash_tf32");
  });
}

void flash_tf32_backward(const Context& context, const AttentionBackward& a) {
  if (!suits_tiles(a)) return flash_fma_backward(context, a);
  visit_head_size(a.q.shape[2], [&](auto size) {
    using E = Engine<decltype(size)::value>;
    launch_backward<E, E>(context, a, "attention.backward cuda.flash_tf32");
  });
}

}  // namespace warpwright::ops::attention::cuda
