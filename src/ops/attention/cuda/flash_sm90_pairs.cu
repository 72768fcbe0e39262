// Attention forward in bf16 and fp16 on Hopper, with a bias, a mask for each sequence, or both. FLOPs: 4 per
// visible pair and head element.
//
// The tiles are those of flash_sm90 and flash_packed, with blocks of 64 keys. The boxes of the bias and of
// the mask come with the keys. They pass from the second-level cache to shared memory once for each tile of
// queries and each head: 2 bytes for a pair's bias, 1 byte for its mask.
#include "ops/attention/cuda/sm90/forward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// Long sequences with heads of 64: four groups share the keys of a block. Other heads of 64: a block has one
// group, and three blocks share a multiprocessor. Heads of 32: two blocks of a group for each of two heads.
// Heads of 128: there are registers for two groups.
template <class TypeT, int kHeadSizeT, bool kLong>
struct PairShape {
  using T = TypeT;
  static constexpr bool kPacked = false, kPairs = true;
  static constexpr int kHeadSize = kHeadSizeT, kHeads = kHeadSize == 32 ? 2 : 1, kShares = 1, kKeys = 64;
  static constexpr int kGroups = kHeadSize != 64 ? 2 : kLong ? 4 : 1, kStages = kLong ? 3 : 2;
  static constexpr int kPlaces = kJobs, kResident = kHeadSize == 64 && !kLong ? 3 : kHeads;
  static constexpr int kRows = kGroups / kHeads * kBox, kThreads = (kGroups + 1) * kGroupThreads;
  // A thread begins with 96 (four groups), 80 (two heads, one group) or 168 (heads of 128).
  static constexpr int kCopyRegisters = kGroups == 1 ? 32 : 24;
  static constexpr int kGroupRegisters = kLong ? 112 : kHeadSize == 64 ? 128 : kHeadSize == 32 ? 96 : 240;
  using QueryTile = Slabs<kRows, kHeads * kHeadSize>;
  using KeyTile = Slabs<kKeys, kHeads * kHeadSize>;
  struct Channels {
    Jobs jobs;
    Ring<kStages> keys, values, pairs;
  };
  static constexpr std::size_t kMostChannels = 1024;
  static constexpr std::size_t kPairsBegin =
      kPlaces * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes + kMostChannels;
  static_assert(sizeof(Channels) <= kMostChannels);
  static std::size_t shared_bytes(bool bias, bool visible) {
    return 1024 + kPairsBegin + kStages * PairTiles<PairShape>::stage_bytes(bias, visible);
  }
};

// Maps boxes of kBox rows and 64 columns of a bias or a mask. An axis that is missing, or shared by a stride
// of 0, has one element.
inline CUtensorMap map_of_pairs(const Tensor& t, const PairPlaces& places) {
  if (!t) return {};
  const auto axis = [&](std::int64_t stride, int from_last) {
    return stride == 0 ? std::int64_t{1} : t.shape[t.shape.rank() - from_last];
  };
  const auto stride_of = [&](std::int64_t stride) { return stride == 0 ? places.row : stride; };
  return map_boxes<4>(t.data, t.dtype,
                      {places.Lk, places.Lq, axis(places.head, 3), axis(places.sequence, t.shape.rank())},
                      {places.row, stride_of(places.head), stride_of(places.sequence)}, {64, kBox, 1, 1},
                      64 * static_cast<int>(size_of(t.dtype)));
}

}  // namespace sm90
namespace {

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (!p.bias && !p.visible) return "there is neither a bias nor a mask for each sequence";
  if (p.HS != 32 && p.HS != 64 && p.HS != 128) return "head size is not 32, 64 or 128";
  if (p.HS == 32 && !p.layout.adjacent) return "the heads of a row are not contiguous";
  if (!p.pairs_aligned) return "a row of bias or visible does not begin at a multiple of 16 bytes";
  if (!p.pairs_distinct) return "bias or visible has no elements, or a stride that is not positive";
  AttentionForwardProblem without = p;
  without.bias = without.visible = false;
  return refuse_boxes(without);
}

std::size_t forward_workspace(const AttentionForwardProblem&, const DeviceInfo&) {
  return sm90::kCounterBytes;
}

// True if sequences are long enough for tiles of 256 queries. There is no shared memory for both a bias and a
// mask of such tiles.
bool takes_long_tiles(const AttentionForwardProblem& p) {
  constexpr std::int64_t kMiddle = 384;
  return p.HS == 64 && !p.batch_invariant && !(p.bias && p.visible) && !shorter_than(p, kMiddle);
}

std::string pairs_configuration(const AttentionForwardProblem& p, const DeviceInfo&) {
  return "tiles of " + std::to_string(takes_long_tiles(p) ? 256 : p.HS == 128 ? 128 : 64) + " queries";
}

void flash_sm90_pairs_forward(const Context& context, const AttentionForward& a) {
  using namespace sm90;
  const ForwardMaps maps{map_of_packed(a.q),
                         map_of_packed(a.k),
                         map_of_packed(a.v),
                         ForwardParameters(a),
                         a.mask == Mask::causal ? counters(context, context.scratch()) : nullptr,
                         map_of_pairs(a.bias, places_of_bias(a.bias)),
                         map_of_pairs(a.visible, places_of_visible(a.visible))};
  const auto run_shape = [&]<class S>() {
    const Sequences& sequences = maps.p.sequences;
    const unsigned tiles =
        sequences.blocks(sequences.Nq, S::kRows) / sequences.heads * head_tiles_of<S>(sequences);
    const unsigned blocks = resident(context, tiles, S::kResident);
    if (blocks == 0) return;
    const std::size_t shared = S::shared_bytes(static_cast<bool>(a.bias), static_cast<bool>(a.visible));
    gpu::allow_shared(forward_sm90<S>, shared);
    gpu::launch_overlapped(context, forward_sm90<S>, blocks, S::kThreads, shared,
                           "attention.forward cuda.flash_sm90_pairs", maps);
  };
  const auto run = [&]<class T>() {
    const std::int64_t HS = a.q.shape[2];
    if (HS == 32) return run_shape.template operator()<PairShape<T, 32, false>>();
    if (HS == 128) return run_shape.template operator()<PairShape<T, 128, false>>();
    takes_long_tiles(a.problem()) ? run_shape.template operator()<PairShape<T, 64, true>>()
                                  : run_shape.template operator()<PairShape<T, 64, false>>();
  };
  a.q.dtype == DType::bf16 ? run.template operator()<__nv_bfloat16>() : run.template operator()<__half>();
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_sm90_pairs"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = attention::cuda::flash_sm90_pairs_forward,
    .refuse = attention::cuda::refuse_forward,
    .workspace = attention::cuda::forward_workspace,
    .configuration = attention::cuda::pairs_configuration};

}  // namespace warpwright::ops
