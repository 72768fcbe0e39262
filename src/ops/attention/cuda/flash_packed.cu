// Attention forward in bf16 and fp16 on Hopper, for packed texts as in an encoder. FLOPs: 4 per visible pair
// and head element.
//
// Blocks have 64 queries. Two or three blocks share a multiprocessor, so that the waiting of one overlaps
// with the products of the others. Two heads of 32 columns that are contiguous share a tile, so that its rows
// have 128 bytes, too.
//
// If texts are long enough to fill their own tiles, blocks take the tiles in turn. Otherwise they take runs
// of packed rows. If there are few tiles, three groups share each tile instead of one.
#include "ops/attention/cuda/sm90/forward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

template <class TypeT, int kHeadSizeT, bool kRuns>
struct PackedShape {
  using T = TypeT;
  static constexpr bool kPacked = kRuns, kPairs = false, kWindow = false;
  static constexpr int kHeadSize = kHeadSizeT, kHeads = 64 / kHeadSize, kShares = 1, kKeys = 64;
  static constexpr int kGroups = kHeads, kStages = kHeads == 1 ? 3 : 4, kPlaces = kJobs;
  static constexpr int kRows = kBox, kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kShort = 32, kResident = kHeads == 1 ? 3 : 2;
  // A thread begins with 80.
  static constexpr int kCopyRegisters = 32, kGroupRegisters = kHeads == 1 ? 128 : 96;
  using QueryTile = Slabs<kRows, 64>;
  using KeyTile = Slabs<kKeys, 64>;
  struct Channels {
    Jobs jobs;
    Ring<kStages> keys, values;
  };
  static constexpr std::size_t kShared =
      1024 + kPlaces * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes + sizeof(Channels);
};

// For heads of 64, if there are no more tiles than multiprocessors. Three groups share a tile's queries, and
// the keys of a text take a third of the steps.
template <class TypeT>
struct FewTilesShape {
  using T = TypeT;
  static constexpr bool kPacked = false, kPairs = false, kWindow = false;
  static constexpr int kHeadSize = 64, kHeads = 1, kShares = 3, kKeys = 64;
  static constexpr int kGroups = kShares, kStages = 2, kPlaces = kJobs;
  static constexpr int kRows = kBox, kThreads = (kGroups + 1) * kGroupThreads, kResident = 1;
  static constexpr int kCopyRegisters = 32, kGroupRegisters = 160;  // a thread begins with 128
  using QueryTile = Slabs<kRows, kHeadSize>;
  using KeyTile = Slabs<kShares * kKeys, kHeadSize>;
  struct Channels {
    Jobs jobs;
    Ring<kStages> keys, values;
    Barrier sums_full, sums_empty;
  };
  static constexpr std::size_t kShared = 1024 + kPlaces * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes +
                                         shared_sums_bytes(kShares, kHeadSize) + sizeof(Channels);
};

}  // namespace sm90
namespace {

Refusal refuse_packed(const AttentionForwardProblem& p, const DeviceInfo&) {
  if (p.HS != 32 && p.HS != 64) return "head size is neither 32 nor 64";
  if (p.HS == 32 && !p.layout.adjacent) return "the heads of a row are not contiguous";
  if (Refusal refusal = refuse_groups(p)) return refusal;
  if (Refusal refusal = refuse_window(p)) return refusal;
  return refuse_boxes(p);
}

// Negative if this kernel is preferred. Heads of 32: if there are many queries. Heads of 64: for short texts,
// if these fill enough of a tile; for a few long texts, which would give less than one tile of flash_sm90 to
// each multiprocessor; and if flash_sm90's last round of tiles would leave much of the GPU idle.
double packed_cost(const AttentionForwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kWorthATile = 32, kLong = 128, kMiddle = 384;
  constexpr std::int64_t kSomeQueries = 32, kManyQueries = 450;  // per multiprocessor
  if (p.batch_invariant) return -2;
  const std::int64_t queries = queries_each(p, device);
  if (p.HS == 32) return queries >= kManyQueries ? -2 : 1;
  if (queries < kLargeTile) return shorter_than(p, queries < kSomeQueries ? kLong : kWorthATile) ? 1 : -2;
  if (shorter_than(p, kMiddle)) return -2;
  const std::int64_t blocks = std::max(device.gpu.multiprocessors, 1);
  const std::int64_t S = std::max<std::int64_t>(p.sequences, 1);
  const std::int64_t tiles = S * ((p.Nq / S + kLargeTile - 1) / kLargeTile) * p.NH;
  const std::int64_t rounds = (tiles + blocks - 1) / blocks;
  return 10 * rounds * blocks > 13 * tiles ? -2 : 1;
}

// The units of work that blocks take. Runs and tiles give different bits for texts that a run leaves to
// single warps. Few and many tiles give different bits for texts whose keys belong to more than one group.
enum class Pieces { runs, few_tiles, tiles };

Pieces pieces_of(const AttentionForwardProblem& p, const DeviceInfo& device) {
  const bool wide = p.HS == 64;
  if (p.batch_invariant || std::max(p.Nq, p.Nk) < (wide ? 32 : 48) * p.sequences) return Pieces::runs;
  const std::int64_t tiles = (p.Nq / sm90::kBox + p.sequences) * p.NH;
  return wide && tiles <= device.gpu.multiprocessors ? Pieces::few_tiles : Pieces::tiles;
}

std::string packed_configuration(const AttentionForwardProblem& p, const DeviceInfo& device) {
  switch (pieces_of(p, device)) {
    case Pieces::runs:
      return "runs of 64 rows";
    case Pieces::few_tiles:
      return "tiles of 64 queries, three groups for each";
    default:
      return "tiles of 64 queries";
  }
}

void flash_packed_forward(const Context& context, const AttentionForward& a) {
  using namespace sm90;
  const ForwardMaps maps{map_of_packed(a.q), map_of_packed(a.k), map_of_packed(a.v), ForwardParameters(a),
                         nullptr};
  const Sequences& sequences = maps.p.sequences;
  const Pieces pieces = pieces_of(a.problem(), context.device());
  const auto run_shape = [&]<class S>() {
    const unsigned count =
        S::kPacked ? runs_of<S>(sequences)
                   : sequences.blocks(sequences.Nq, S::kRows) / sequences.heads * head_tiles_of<S>(sequences);
    const unsigned blocks = resident(context, count, S::kResident);
    if (blocks == 0) return;
    gpu::allow_shared(forward_sm90<S>, S::kShared);
    gpu::launch_overlapped(context, forward_sm90<S>, blocks, S::kThreads, S::kShared,
                           "attention.forward cuda.flash_packed", maps);
  };
  const auto run = [&]<class T, int kHeadSize>() {
    if constexpr (kHeadSize == 64) {
      if (pieces == Pieces::few_tiles) return run_shape.template operator()<FewTilesShape<T>>();
    }
    pieces == Pieces::runs ? run_shape.template operator()<PackedShape<T, kHeadSize, true>>()
                           : run_shape.template operator()<PackedShape<T, kHeadSize, false>>();
  };
  const bool wide = a.q.shape[2] == 64;
  if (a.q.dtype == DType::bf16) {
    wide ? run.template operator()<__nv_bfloat16, 64>() : run.template operator()<__nv_bfloat16, 32>();
  } else {
    wide ? run.template operator()<__half, 64>() : run.template operator()<__half, 32>();
  }
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_packed"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = attention::cuda::flash_packed_forward,
    .refuse = attention::cuda::refuse_packed,
    .cost = attention::cuda::packed_cost,
    .configuration = attention::cuda::packed_configuration};

}  // namespace warpwright::ops
