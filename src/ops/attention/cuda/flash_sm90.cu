// Attention forward in bf16 and fp16 on Hopper, for long sequences. One thread block runs on each
// multiprocessor. At head size 64 it has three groups: exponentials take as long as products there, and the
// softmax of one group overlaps with the products of the others. At head size 128 there are registers for two
// groups.
#include "ops/attention/cuda/sm90/forward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

template <class TypeT, int kHeadSizeT, bool kHasWindow>
struct ForwardShape {
  using T = TypeT;
  static constexpr bool kPacked = false, kPairs = false, kWindow = kHasWindow;
  static constexpr int kHeadSize = kHeadSizeT, kHeads = 1, kShares = 1, kKeys = 128;
  static constexpr int kResident = 1;
  static constexpr int kGroups = kHeadSize == 64 ? 3 : 2, kStages = kHeadSize == 64 ? 4 : 2, kPlaces = kJobs;
  static constexpr int kRows = kGroups * kBox, kThreads = (kGroups + 1) * kGroupThreads;
  // The copying warps' group gives registers to the others. A thread begins with 128 or 168.
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : 24, kGroupRegisters = kGroups == 3 ? 160 : 240;
  using QueryTile = Slabs<kRows, kHeadSize>;
  using KeyTile = Slabs<kKeys, kHeadSize>;
  struct Channels {
    Jobs jobs;
    Ring<kStages> keys, values;
  };
  static constexpr std::size_t kShared =
      1024 + kPlaces * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes + sizeof(Channels);
};

}  // namespace sm90

namespace {

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (p.HS != 64 && p.HS != 128) return "head size is neither 64 nor 128";
  return refuse_boxes(p);
}

std::size_t forward_workspace(const AttentionForwardProblem&, const DeviceInfo&) {
  return sm90::kCounterBytes;
}

void flash_sm90_forward(const Context& context, const AttentionForward& a) {
  using namespace sm90;
  // Without a causal mask all tiles of a sequence take the same time.
  const ForwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), ForwardParameters(a),
                         a.mask == Mask::causal ? counters(context, context.scratch()) : nullptr};
  const Sequences& sequences = maps.p.sequences;
  visit_shape(a, [&]<class T, int kHeadSize, bool kWindow>() {
    using S = ForwardShape<T, kHeadSize, kWindow>;
    const unsigned blocks = resident(context, sequences.blocks(sequences.Nq, S::kRows));
    if (blocks == 0) return;
    gpu::allow_shared(forward_sm90<S>, S::kShared);
    gpu::launch_overlapped(context, forward_sm90<S>, blocks, S::kThreads, S::kShared,
                           "attention.forward cuda.flash_sm90", maps);
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_sm90"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = attention::cuda::flash_sm90_forward,
    .refuse = attention::cuda::refuse_forward,
    .workspace = attention::cuda::forward_workspace};

}  // namespace warpwright::ops
