// bf16 and fp16 on Hopper, forward. Tiles come through the tensor copy engine; groups of four warps multiply
// them (wgmma), 64 queries each: three groups at head size 64, where exponentials take as long as products
// and a group's softmax hides behind the others' products; two at head size 128, for want of registers.
// Scores stay in registers from one product to the next.
#include "ops/attention/cuda/sm90.cuh"
#include "ops/attention/kernels.hpp"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

struct ForwardMaps {
  CUtensorMap q, k, v;
  ForwardParameters p;
  unsigned* next_tile;
};

template <class TypeT, int kHeadSizeT>
struct ForwardShape {
  using T = TypeT;
  static constexpr int kHeadSize = kHeadSizeT, kKeys = 128;  // of a stage
  static constexpr int kGroups = kHeadSize == 64 ? 3 : 2, kStages = kHeadSize == 64 ? 4 : 2, kPlaces = kJobs;
  static constexpr int kRows = kGroups * kBox, kThreads = (kGroups + 1) * kGroupThreads;
  // The copying warps' group gives registers back, which the others take: 128 and 168 are what a thread
  // begins with.
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

// A block's shared memory.
template <class S>
struct ForwardMemory {
  std::byte *q, *k, *v;  // places; stages
  typename S::Channels& channels;
  __device__ explicit ForwardMemory(std::byte* shared)
      : q(shared),
        k(q + S::kPlaces * S::QueryTile::kBytes),
        v(k + S::kStages * S::KeyTile::kBytes),
        channels(*reinterpret_cast<typename S::Channels*>(v + S::kStages * S::KeyTile::kBytes)) {}
};

// Tile `index`, moved so that it is a sequence's first tile that is not full, not the last one, which sees
// the most keys.
template <int kRows>
__device__ Tile find_queries(const Sequences& sequences, unsigned index) {
  Tile tile = find_tile<false, kRows>(sequences, index);
  if (tile.rows > 0) {
    const int shift = (tile.Lq + kRows - 1) / kRows * kRows - (tile.Lq + kBox - 1) / kBox * kBox;
    const int end = min(tile.first + kRows - shift, tile.Lq);
    tile.first = max(tile.first - shift, 0);
    tile.rows = end - tile.first;
  }
  return tile;
}

template <int kKeys>
__device__ int key_blocks(const Tile& tile, int query, bool causal) {
  return (tile.visible_keys(query, causal) + kKeys - 1) / kKeys;
}

// By the two copying warps.
template <class S>
__device__ void copy_forward(const ForwardMaps& maps, const ForwardMemory<S>& memory, int warp) {
  constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys;
  const Sequences& sequences = maps.p.sequences;
  typename S::Channels& channels = memory.channels;
  if (warp == 0) {
    post_jobs<S::kPlaces>(
        channels.jobs, maps.next_tile,
        [&](unsigned index) { return find_queries<S::kRows>(sequences, index); },
        [&](const Tile& tile, int place, Barrier* full) {
          arrive_expecting(full, S::QueryTile::kBytes);
          copy_tile<S::kRows, kHeadSize>(memory.q + place * S::QueryTile::kBytes, maps.q, full, tile.head,
                                         tile.q0 + tile.first);
        });
  } else if (warp == 1 && threadIdx.x % 32 == 0) {
    Cursor<S::kStages> cursor;
    const auto copy = [&](std::byte* tiles, Ring<S::kStages>& ring, const CUtensorMap& map, int head,
                          int row) {
      wait(ring.empty + cursor.stage, cursor.phase ^ 1);
      arrive_expecting(ring.full + cursor.stage, S::KeyTile::kBytes);
      copy_tile<kKeys, kHeadSize>(tiles + cursor.stage * S::KeyTile::kBytes, map, ring.full + cursor.stage,
                                  head, row);
    };
    stream_jobs(channels.jobs, [&](const Tile& tile) {  // from the last keys that it sees to the first
      const int blocks = key_blocks<kKeys>(tile, tile.first + tile.rows - 1, sequences.causal);
#pragma unroll 1
      for (int block = blocks - 1; block >= 0; --block) {
        copy(memory.k, channels.keys, maps.k, tile.head, tile.k0 + block * kKeys);
        copy(memory.v, channels.values, maps.v, tile.head, tile.k0 + block * kKeys);
        cursor.advance();
      }
    });
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) forward_sm90(const __grid_constant__ ForwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys, kStages = S::kStages;
  constexpr int kKeyBytes = S::KeyTile::kBytes, kKeySlab = S::KeyTile::kSlabBytes,
                kQuerySlab = S::QueryTile::kSlabBytes;
  extern __shared__ uint4 shared[];
  const ForwardMemory<S> memory(align_shared(shared));
  typename S::Channels& channels = memory.channels;
  const ForwardParameters& p = maps.p;
  const bool causal = p.sequences.causal;
  if (threadIdx.x == 0) {
    channels.jobs.initialize_all(S::kGroups);
    channels.keys.initialize_all(S::kGroups);
    channels.values.initialize_all(S::kGroups);
    fence_initialized_barriers();
  }
  __syncthreads();

  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_forward<S>(maps, memory, static_cast<int>(threadIdx.x / 32) - S::kGroups * kGroupWarps);
    return;
  }

  take_registers<S::kGroupRegisters>();
  const Lane lane;
  const float scale2 = p.scale * kLog2e;
  const std::uint32_t k_tiles = describe_lower(memory.k), v_tiles = describe_lower(memory.v, kKeySlab);
  Cursor<kStages> cursor;
  for (JobCursor job;; job.advance()) {
    wait(channels.jobs.full + job.stage, job.phase);
    const Tile tile = channels.jobs.tiles[job.stage];
    if (tile.rows <= 0) return;
    const int blocks = key_blocks<kKeys>(tile, tile.first + tile.rows - 1, causal);
    const int first = tile.first + lane.group * kBox;  // of the group
    const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
    const int mine = rows > 0 ? key_blocks<kKeys>(tile, first + rows - 1, causal) : 0;
    const int common = tile.visible_keys(first, causal);
    std::byte* const q_rows =
        memory.q + (S::kPlaces == 1 ? 0 : job.stage) * S::QueryTile::kBytes + lane.group * kBoxBytes;
    const std::uint32_t q_tile = __shfl_sync(~0u, describe_lower(q_rows), 0);  // the same for a whole warp

    float o[kHeadSize / 2] = {};
    pin(o);
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int i = mine; i < blocks; ++i) {  // what only other groups see
      wait(channels.keys.full + cursor.stage, cursor.phase);
      release(channels.keys.empty + cursor.stage, lane);
      wait(channels.values.full + cursor.stage, cursor.phase);
      release(channels.values.empty + cursor.stage, lane);
      cursor.advance();
    }
    if (mine > 0) {
      float s[kKeys / 2];
      std::uint32_t factor[kKeys / 16][4];
      // Scores of a block to probabilities of the present maximum; what the sums so far shrink by.
      const auto exponentiate = [&](int key, float(&shrink)[2]) {
        if (key + kKeys > common) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int end = tile.visible_keys(first + lane.row(r), causal) - key - lane.column();
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) {
              if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 < end ? s[i] : -INFINITY;
            }
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float top = largest[r];
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i) {
            if (i / 2 % 2 == r) top = fmaxf(top, s[i]);
          }
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
          const float base = top == -INFINITY ? 0.0f : top * scale2;
          shrink[r] = exp2_fast(largest[r] * scale2 - base);
          largest[r] = top;
          float part = 0;
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i) {
            if (i / 2 % 2 == r) part += s[i] = exp2_fast(fmaf(s[i], scale2, -base));
          }
          sum[r] = sum[r] * shrink[r] + part;
        }
      };
      const auto multiply_keys = [&](int stage) {
        wait(channels.keys.full + stage, cursor.phase);
        begin_products();
        multiply_rows<T, kHeadSize, kKeys>(s, q_tile, kQuerySlab, k_tiles + stage * described(kKeyBytes),
                                           kKeySlab);
        commit_products();
      };
      const auto multiply_values = [&](int stage, int phase) {
        wait(channels.values.full + stage, phase);
        begin_products();
        add_product<T, kHeadSize, kKeys>(o, factor, v_tiles + stage * described(kKeyBytes));
        commit_products();
      };

      int key = (mine - 1) * kKeys;
      float shrink[2];
      multiply_keys(cursor.stage);
      wait_for_products<0>();
      pin(s);
      release(channels.keys.empty + cursor.stage, lane);
      exponentiate(key, shrink);
      pack_factor<T, kKeys>(factor, s);
      if (key + kKeys > tile.Lk) {
        wait(channels.values.full + cursor.stage, cursor.phase);
        clear_rows<kKeys, kHeadSize>(memory.v + cursor.stage * kKeyBytes, tile.Lk - key, lane);
      }
      // While the scores of one block are exponentiated, the values of the block before are multiplied.
      for (int i = 1; i < mine; ++i) {
        const Cursor<kStages> before = cursor;
        cursor.advance();
        multiply_keys(cursor.stage);
        multiply_values(before.stage, before.phase);
        key -= kKeys;
        wait_for_products<1>();
        pin(s);
        release(channels.keys.empty + cursor.stage, lane);
        exponentiate(key, shrink);
        wait_for_products<0>();
        pin(o);
        release(channels.values.empty + before.stage, lane);
#pragma unroll
        for (int i = 0; i < kHeadSize / 2; ++i) o[i] *= shrink[i / 2 % 2];
        pack_factor<T, kKeys>(factor, s);
      }
      multiply_values(cursor.stage, cursor.phase);
      wait_for_products<0>();
      pin(o);
      release(channels.values.empty + cursor.stage, lane);
      cursor.advance();
    }

    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      inverse[r] = sum[r] == 0 ? 0.0f : 1 / sum[r];
      if (p.lse && lane.column() == 0 && lane.row(r) < rows) {
        p.lse[static_cast<std::int64_t>(tile.head) * p.sequences.Nq + tile.q0 + first + lane.row(r)] =
            sum[r] == 0 ? -INFINITY : fmaf(largest[r], p.scale, logf(sum[r]));
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) o[i] *= inverse[i / 2 % 2];
    store_rows<T, kHeadSize>(p.out, tile.q0 + first, tile.head, rows, o, q_rows, kQuerySlab, lane);
    fence_stores_to_shared();  // before the copy of the job after next
    release(channels.jobs.empty + job.stage, lane);
  }
#endif
}

}  // namespace sm90

bool flash_sm90_is_built() {
  static const bool built = [] {
    cudaFuncAttributes attributes{};
    const auto kernel = sm90::forward_sm90<sm90::ForwardShape<__nv_bfloat16, 64>>;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
      cudaGetLastError();
      return true;  // no GPU to ask for: the list of variants is about one that it imagines
    }
    warpwright::cuda::check(status, "looking for code for sm_90a");
    return attributes.ptxVersion == 90;
  }();
  return built;
}

std::size_t flash_sm90_forward_workspace() {
  return sm90::kCounterBytes;
}

void flash_sm90_forward(const Context& context, const AttentionForward& a) {
  using namespace sm90;
  if (!suits_tiles(a) || !suits_boxes(a.q) || !suits_boxes(a.k) || !suits_boxes(a.v)) {
    return flash_forward(context, a);
  }
  const ForwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), ForwardParameters(a),
                         counters(context, context.scratch())};
  const Sequences& sequences = maps.p.sequences;
  visit_shape(a.q.dtype, a.q.shape[2], [&]<class T, int kHeadSize>() {
    using S = ForwardShape<T, kHeadSize>;
    launch(forward_sm90<S>, context, maps, resident(context, sequences.blocks(sequences.Nq, S::kRows)),
           S::kThreads, S::kShared, "attention.forward cuda.flash_sm90");
  });
}

}  // namespace warpwright::ops::attention::cuda
