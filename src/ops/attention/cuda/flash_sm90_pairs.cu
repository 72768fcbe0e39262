// Attention forward in bf16 and fp16 on Hopper, with a bias, a mask for each sequence, or both. FLOPs: 4 per
// visible pair and head element.
//
// The tiles are those of flash_sm90 and flash_packed, with blocks of 64 keys. The boxes of the bias come with
// the keys: they pass from the second-level cache to shared memory once for each tile of queries and each
// head. A bit for each pair of the mask passes to registers.
#include "ops/attention/cuda/sm90/forward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// Long sequences with heads of 64: four groups share the keys of a block. Other heads of 64: a block has one
// group, and three blocks share a multiprocessor. Heads of 32: two blocks of a group for each of two heads.
// Heads of 128: there are registers for two groups.
template <class TypeT, int kHeadSizeT, bool kLong>
struct PairShape {
  using T = TypeT;
  static constexpr bool kPacked = false, kPairs = true, kWindow = false;
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
    Ring<kStages> keys, values, bias;
  };
  static constexpr std::size_t kMostChannels = 1024;
  static constexpr std::size_t kBiasBegin =
      kPlaces * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes + kMostChannels;
  static_assert(sizeof(Channels) <= kMostChannels);
  static std::size_t shared_bytes(bool bias) {
    return 1024 + kBiasBegin + (bias ? kStages * BiasTiles<PairShape>::kStageBytes : 0);
  }
};

// Maps boxes of kBox rows and 64 columns of a bias. An axis that is missing, or shared by a stride of 0, has
// one element.
inline CUtensorMap map_of_bias(const Tensor& t) {
  if (!t) return {};
  const PairPlaces places = places_of_bias(t);
  const auto axis = [&](std::int64_t stride, int from_last) {
    return stride == 0 ? std::int64_t{1} : t.shape[t.shape.rank() - from_last];
  };
  const auto stride_of = [&](std::int64_t stride) { return stride == 0 ? places.row : stride; };
  return map_boxes<4>(t.data, t.dtype,
                      {places.Lk, places.Lq, axis(places.head, 3), axis(places.sequence, t.shape.rank())},
                      {places.row, stride_of(places.head), stride_of(places.sequence)}, {64, kBox, 1, 1},
                      64 * static_cast<int>(size_of(t.dtype)));
}

// Bit i tells whether byte i is not 0.
__device__ inline std::uint32_t bits_of(const uint4& bytes) {
  const auto of_four = [](std::uint32_t four) {
    const std::uint32_t high = (((four & 0x7f7f7f7f) + 0x7f7f7f7f) | four) & 0x80808080;  // of each byte
    return (high >> 7) * 0x10204080 >> 28;
  };
  return of_four(bytes.x) | of_four(bytes.y) << 4 | of_four(bytes.z) << 8 | of_four(bytes.w) << 12;
}

// A block makes the words of one tile. Two threads read a row of the tile, 32 keys each. Rows begin at
// multiples of 16 bytes.
__global__ void __launch_bounds__(kGroupThreads) pack_mask(const PairTensor visible, const MaskWords words) {
  gpu::let_next_kernel_begin();
  gpu::wait_for_kernels_before();
  const Lane lane;
  const int key_tile = static_cast<int>(blockIdx.x % words.key_tiles);
  const int query_tile = static_cast<int>(blockIdx.x / words.key_tiles % words.query_tiles);
  const std::int64_t sequence = blockIdx.x / words.key_tiles / words.query_tiles;
  const PairPlaces& places = visible.places;
  const int query = query_tile * kBox + lane.thread / 2, first = key_tile * kBox + lane.thread % 2 * 32;
  const auto* row = reinterpret_cast<const std::uint8_t*>(visible.data) + places.at(sequence, 0, query, 0);
  std::uint32_t seen = ~0u;
  for (int key = first; query < places.Lq && key < min(first + 32, static_cast<int>(places.Lk)); key += 16) {
    std::uint32_t bits = 0xffff;
    if (key + 16 <= places.Lk) {
      bits = bits_of(*reinterpret_cast<const uint4*>(row + key));
    } else {
      for (int i = 0; key + i < places.Lk; ++i) bits &= row[key + i] != 0 ? ~0u : ~(1u << i);
    }
    seen &= ~((~bits & 0xffff) << (key - first));
  }
  // The two rows of a thread's scores are in its own warp's hands.
  std::uint32_t word = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int reader = lane.thread % 32 / 4 * 2 + r * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t mine = __shfl_sync(~0u, seen, reader + half) >> lane.column();
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= (mine >> 8 * i & 3) << (16 * half + 4 * i + 2 * r);
    }
  }
  words.data[words.at(sequence, query_tile, key_tile) + lane.thread] = word;
}

}  // namespace sm90
namespace {

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (!p.bias && !p.visible) return "there is neither a bias nor a mask for each sequence";
  if (p.HS != 32 && p.HS != 64 && p.HS != 128) return "head size is not 32, 64 or 128";
  if (p.HS == 32 && !p.layout.adjacent) return "the heads of a row are not contiguous";
  if (Refusal refusal = refuse_groups(p)) return refusal;
  if (Refusal refusal = refuse_window(p)) return refusal;
  if (!p.pairs_aligned) return "a row of bias or visible does not begin at a multiple of 16 bytes";
  if (!p.pairs_distinct) return "bias or visible has no elements, or a stride that is not positive";
  AttentionForwardProblem without = p;
  without.bias = without.visible = false;
  return refuse_boxes(without);
}

int tiles_of(std::int64_t rows) {
  return static_cast<int>((rows + sm90::kBox - 1) / sm90::kBox);
}

std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo&) {
  const sm90::MaskWords words{nullptr, tiles_of(p.visible_rows), tiles_of(p.visible_cols)};
  return sm90::kCounterBytes + sizeof(std::uint32_t) * static_cast<std::size_t>(words.at(p.sequences, 0, 0));
}

// Packs the mask into words. They follow the counters in the scratch memory.
sm90::MaskWords packed_mask(const Context& context, const AttentionForward& a) {
  if (!a.visible) return {};
  const sm90::MaskWords words{
      reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(context.scratch()) + sm90::kCounterBytes),
      tiles_of(a.visible.shape[1]), tiles_of(a.visible.shape[2])};
  const std::int64_t tiles = words.at(a.visible.shape[0], 0, 0) / sm90::kGroupThreads;
  gpu::launch_overlapped(context, sm90::pack_mask, static_cast<unsigned>(tiles), sm90::kGroupThreads, 0,
                         "attention.forward cuda.flash_sm90_pairs, mask",
                         PairTensor(a.visible, places_of_visible(a.visible)), words);
  return words;
}

// True if sequences are long enough for tiles of 256 queries.
bool takes_long_tiles(const AttentionForwardProblem& p) {
  constexpr std::int64_t kMiddle = 384;
  return p.HS == 64 && !p.batch_invariant && !shorter_than(p, kMiddle);
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
                         map_of_bias(a.bias),
                         packed_mask(context, a)};
  const auto run_shape = [&]<class S>() {
    const Sequences& sequences = maps.p.sequences;
    const unsigned tiles =
        sequences.blocks(sequences.Nq, S::kRows) / sequences.heads * head_tiles_of<S>(sequences);
    const unsigned blocks = resident(context, tiles, S::kResident);
    if (blocks == 0) return;
    const std::size_t shared = S::shared_bytes(static_cast<bool>(a.bias));
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
