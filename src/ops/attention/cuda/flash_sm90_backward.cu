// bf16 and fp16 on Hopper, backward: as in flash.cuh, one kernel sums dq, one dk and dv. In both, groups of
// four warps have 64 rows each of the tile that stays (queries; keys), and tiles of 64 rows (keys and values;
// queries and dout) stream by. Three groups sum dq at head size 64; elsewhere there are registers for two.
#include "ops/attention/cuda/sm90.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
  BackwardParameters p;
  unsigned *next_query_tile, *next_key_tile;
};

// Where a sequence's statistics start in a head's row of them: 16-byte aligned, for copies of kBox of them.
__host__ __device__ inline std::int64_t statistics_stride(const Sequences& s) {
  return (static_cast<std::int64_t>(s.Nq) + s.count + kBox + 2) / 2 * 2;
}
__device__ inline RowStatistics* statistics_of(const BackwardParameters& p, const Tile& tile) {
  return p.statistics + tile.head * statistics_stride(p.sequences) + (tile.q0 + tile.sequence + 1) / 2 * 2;
}

template <class TypeT, int kHeadSizeT, int kGroupsT>
struct BackwardShape {
  using T = TypeT;
  static constexpr int kHeadSize = kHeadSizeT, kGroups = kGroupsT, kStages = 4,
                       kPlaces = kHeadSize == 64 ? kJobs : 1;
  static constexpr int kRows = kGroups * kBox, kThreads = (kGroups + 1) * kGroupThreads;
  // The copying warps' group gives registers back, which the others take: 128 and 168 are what a thread
  // begins with.
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : kHeadSize == 64 ? 40 : 24;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : kHeadSize == 64 ? 232 : 240;
  using LeftTile = Slabs<kRows, kHeadSize>;
  using RightTile = Slabs<kBox, kHeadSize>;
  static constexpr int kPlaceBytes = 2 * LeftTile::kBytes, kStageBytes = 2 * RightTile::kBytes;
  static constexpr int kStatisticsBytes = kBox * static_cast<int>(sizeof(RowStatistics));
  struct Channels {
    Jobs jobs;
    Ring<kStages> ring;
  };
  static constexpr std::size_t kShared =
      1024 + kPlaces * kPlaceBytes + kStages * (kStageBytes + kStatisticsBytes) + sizeof(Channels);
};

// A block's shared memory. A place has q and dout, or k and v; a stage k and v, or q and dout.
template <class S>
struct BackwardMemory {
  std::byte *places, *stages;
  RowStatistics* statistics;  // kBox a stage
  typename S::Channels& channels;
  __device__ explicit BackwardMemory(std::byte* shared)
      : places(shared),
        stages(places + S::kPlaces * S::kPlaceBytes),
        statistics(reinterpret_cast<RowStatistics*>(stages + S::kStages * S::kStageBytes)),
        channels(*reinterpret_cast<typename S::Channels*>(statistics + S::kStages * kBox)) {}
  // Of all threads, before the first use. So many of a group free a stage.
  __device__ void initialize(int freeing) const {
    if (threadIdx.x == 0) {
      channels.jobs.initialize_all(S::kGroups);
      channels.ring.initialize_all(freeing * S::kGroups);
      fence_initialized_barriers();
    }
    __syncthreads();
  }
};

// By the two copying warps: each job's left tiles of two tensors, and stream(tile).
template <class S, bool kOfKeys, class Stream>
__device__ void copy_backward(const Sequences& sequences, const BackwardMemory<S>& memory, unsigned* next,
                              const CUtensorMap& first, const CUtensorMap& second, Stream&& stream) {
  const int warp = static_cast<int>(threadIdx.x / 32) - S::kGroups * kGroupWarps;
  if (warp == 0) {
    post_jobs<S::kPlaces>(
        memory.channels.jobs, next,
        [&](unsigned index) {
          if constexpr (kOfKeys) return find_tile<true, S::kRows>(sequences, index);
          return find_queries<S::kRows>(sequences, index);
        },
        [&](const Tile& tile, int place, Barrier* full) {
          const int row = (kOfKeys ? tile.k0 : tile.q0) + tile.first;
          std::byte* const to = memory.places + place * S::kPlaceBytes;
          arrive_expecting(full, S::kPlaceBytes);
          copy_tile<S::kRows, S::kHeadSize>(to, first, full, tile.head, row);
          copy_tile<S::kRows, S::kHeadSize>(to + S::LeftTile::kBytes, second, full, tile.head, row);
        });
  } else if (warp == 1 && threadIdx.x % 32 == 0) {
    stream_jobs(memory.channels.jobs, stream);
  }
}

// A group's 64 rows of a left tile, for products with rows of right tiles: in shared memory, or in registers,
// which halves what the products read of it.
template <class S, bool kInRegisters>
struct LeftRows {
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize, kSlabBytes = S::LeftTile::kSlabBytes;
  std::uint32_t rows, fragments[kInRegisters ? kHeadSize / 16 : 1][4];

  __device__ LeftRows(const std::byte* tile, const Lane& lane)
      : rows(__shfl_sync(~0u, describe_lower(tile), 0)) {  // the same for a whole warp
    if constexpr (kInRegisters) {
      const int row = lane.thread / 32 * 16 + lane.thread % 16;
#pragma unroll
      for (int step = 0; step < kHeadSize / 16; ++step) {
        const int chunk = step * 2 + lane.thread % 32 / 16;
        load_matrices(fragments[step],
                      shared_address(tile + chunk / 8 * kSlabBytes + row * 128 + (chunk % 8 ^ row % 8) * 16));
      }
    }
  }
  // sum = rows · right tileᵀ
  __device__ void multiply(float (&sum)[32], std::uint32_t right) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int step = 0; step < kHeadSize / 16; ++step) {
        const std::uint32_t at = right + step / 4 * described(kBoxBytes) + step % 4 * 2;
        multiply_registers<T, 64, false>(sum, fragments[step], describe_with(at), step > 0);
      }
    } else {
      multiply_rows<T, kHeadSize, 64>(sum, rows, kSlabBytes, right, kBoxBytes);
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    backward_query_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kRight = S::RightTile::kBytes;
  extern __shared__ uint4 shared[];
  const BackwardMemory<S> memory(align_shared(shared));
  typename S::Channels& channels = memory.channels;
  const BackwardParameters& p = maps.p;
  const bool causal = p.sequences.causal;
  const auto blocks_until = [&](const Tile& tile, int query) {
    return (tile.visible_keys(query, causal) + kBox - 1) / kBox;
  };
  memory.initialize(kGroupWarps);

  Cursor<S::kStages> cursor;
  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_backward<S, false>(
        p.sequences, memory, maps.next_query_tile, maps.q, maps.dout, [&](const Tile& tile) {
          const int blocks = blocks_until(tile, tile.first + tile.rows - 1);
#pragma unroll 1
          for (int block = blocks - 1; block >= 0; --block) {
            wait(channels.ring.empty + cursor.stage, cursor.phase ^ 1);
            Barrier* const full = channels.ring.full + cursor.stage;
            std::byte* const to = memory.stages + cursor.stage * S::kStageBytes;
            arrive_expecting(full, S::kStageBytes);
            copy_tile<kBox, kHeadSize>(to, maps.k, full, tile.head, tile.k0 + block * kBox);
            copy_tile<kBox, kHeadSize>(to + kRight, maps.v, full, tile.head, tile.k0 + block * kBox);
            cursor.advance();
          }
        });
    return;
  }

  take_registers<S::kGroupRegisters>();
  const Lane lane;
  const float scale2 = p.scale * kLog2e;
  const std::uint32_t stages = describe_lower(memory.stages),
                      key_columns = describe_lower(memory.stages, kBoxBytes);
  for (JobCursor job;; job.advance()) {
    wait(channels.jobs.full + job.stage, job.phase);
    const Tile tile = posted_tile(channels.jobs, job);
    if (tile.rows <= 0) return;
    const int blocks = blocks_until(tile, tile.first + tile.rows - 1);
    const int first = tile.first + lane.group * kBox, query = tile.q0 + first;  // of the group
    const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
    const int mine = rows > 0 ? blocks_until(tile, first + rows - 1) : 0;
    const int common = tile.visible_keys(first, causal);
    std::byte* const q_rows =
        memory.places + (S::kPlaces == 1 ? 0 : job.stage) * S::kPlaceBytes + lane.group * kBoxBytes;

    // D of each query: the four lanes that hold a row's scores sum its product, and keep it.
    float lse2[2] = {INFINITY, INFINITY}, D[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane.row(r);
      if (row < rows) {
        const T* dout = reinterpret_cast<const T*>(p.dout.at(query + row, tile.head));
        const T* out = reinterpret_cast<const T*>(p.out.at(query + row, tile.head));
#pragma unroll
        for (int chunk = 0; chunk < kHeadSize / 32; ++chunk) {
          const int at = (chunk * 4 + lane.thread % 4) * 8;
          alignas(16) T x[8], y[8];
          *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(dout + at);
          if (p.out.aligned) {
            *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(out + at);
          } else {
            for (int i = 0; i < 8; ++i) y[i] = out[at + i];
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) D[r] += static_cast<float>(x[i]) * static_cast<float>(y[i]);
        }
        const float lse = p.lse[static_cast<std::int64_t>(tile.head) * p.sequences.Nq + query + row];
        lse2[r] = lse == -INFINITY ? INFINITY : lse * kLog2e;
      }
      D[r] += __shfl_xor_sync(~0u, D[r], 1);
      D[r] += __shfl_xor_sync(~0u, D[r], 2);
      if (row < rows && lane.column() == 0) statistics_of(p, tile)[first + row] = {lse2[r], D[r]};
    }

    float dq[kHeadSize / 2] = {};
    pin(dq);
    for (int i = mine; i < blocks; ++i) {  // what only the other group sees
      wait(channels.ring.full + cursor.stage, cursor.phase);
      release(channels.ring.empty + cursor.stage, lane);
      cursor.advance();
    }
    if (mine > 0) {
      const LeftRows<S, S::kGroups == 2> q(q_rows, lane);
      const LeftRows<S, kHeadSize == 64 && S::kGroups == 2> dout(q_rows + S::LeftTile::kBytes, lane);
      float s[32], dp[32];
      std::uint32_t factor[4][4];
      const auto multiply_block = [&] {
        const std::uint32_t k_tile = stages + cursor.stage * described(S::kStageBytes);
        wait(channels.ring.full + cursor.stage, cursor.phase);
        begin_products();
        q.multiply(s, k_tile);
        commit_products();
        dout.multiply(dp, k_tile + described(kRight));
        commit_products();
      };
      const auto exponentiate = [&] {
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = exp2_fast(fmaf(s[i], scale2, -lse2[i / 2 % 2]));
      };
      const auto differentiate = [&](int key) {
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] *= dp[i] - D[i / 2 % 2];
        if (key + kBox > common) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int end = tile.visible_keys(first + lane.row(r), causal) - key - lane.column();
#pragma unroll
            for (int i = 0; i < 32; ++i) {
              if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 < end ? s[i] : 0.0f;
            }
          }
        }
      };
      const auto add_block = [&](int stage) {
        add_product<T, kHeadSize, kBox>(dq, factor, key_columns + stage * described(S::kStageBytes));
        commit_products();
      };

      int key = (mine - 1) * kBox;
      if (key + kBox > tile.Lk) {
        wait(channels.ring.full + cursor.stage, cursor.phase);
        clear_rows<kBox, kHeadSize>(memory.stages + cursor.stage * S::kStageBytes, tile.Lk - key, lane);
      }
      multiply_block();
      wait_for_products<0>();
      pin(s), pin(dp);
      exponentiate();
      differentiate(key);
      pack_factor<T, kBox>(factor, s);
      // While the scores of one block become gradients, those of the block before are multiplied.
      for (int i = 1; i < mine; ++i) {
        const int before = cursor.stage;
        cursor.advance();
        key -= kBox;
        multiply_block();
        add_block(before);
        wait_for_products<2>();
        pin(s);
        exponentiate();
        wait_for_products<1>();
        pin(dp);
        differentiate(key);
        wait_for_products<0>();
        pin(dq);
        release(channels.ring.empty + before, lane);
        pack_factor<T, kBox>(factor, s);
      }
      begin_products();
      add_block(cursor.stage);
      wait_for_products<0>();
      pin(dq);
      release(channels.ring.empty + cursor.stage, lane);
      cursor.advance();
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) dq[i] *= p.scale;
    store_rows<T, kHeadSize>(p.dq, query, tile.head, rows, dq, q_rows, S::LeftTile::kSlabBytes, lane);
    fence_stores_to_shared();  // before the copy of a later job
    release(channels.jobs.empty + job.stage, lane);
  }
#endif
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    backward_key_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kRight = S::RightTile::kBytes;
  extern __shared__ uint4 shared[];
  const BackwardMemory<S> memory(align_shared(shared));
  typename S::Channels& channels = memory.channels;
  const BackwardParameters& p = maps.p;
  const bool causal = p.sequences.causal;
  // Key j is seen by the queries from j − offset on; blocks of queries are counted from the sequence's first.
  const auto query_blocks = [](const Tile& tile) { return (tile.Lq + kBox - 1) / kBox; };
  const auto first_block = [&](const Tile& tile, int key) {
    return min(causal ? max(key - tile.offset(), 0) / kBox : 0, query_blocks(tile));
  };
  memory.initialize(kGroupThreads);

  Cursor<S::kStages> cursor;
  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_backward<S, true>(p.sequences, memory, maps.next_key_tile, maps.k, maps.v, [&](const Tile& tile) {
      const int begin = first_block(tile, tile.first);
#pragma unroll 1
      for (int block = query_blocks(tile) - 1; block >= begin; --block) {
        wait(channels.ring.empty + cursor.stage, cursor.phase ^ 1);
        Barrier* const full = channels.ring.full + cursor.stage;
        std::byte* const to = memory.stages + cursor.stage * S::kStageBytes;
        arrive_expecting(full, S::kStageBytes + S::kStatisticsBytes);
        copy_tile<kBox, kHeadSize>(to, maps.q, full, tile.head, tile.q0 + block * kBox);
        copy_bytes(memory.statistics + cursor.stage * kBox, statistics_of(p, tile) + block * kBox,
                   S::kStatisticsBytes, full);
        copy_tile<kBox, kHeadSize>(to + kRight, maps.dout, full, tile.head, tile.q0 + block * kBox);
        cursor.advance();
      }
    });
    return;
  }

  take_registers<S::kGroupRegisters>();
  const Lane lane;
  const float scale2 = p.scale * kLog2e;
  const std::uint32_t stages = describe_lower(memory.stages),
                      query_columns = describe_lower(memory.stages, kBoxBytes);
  for (JobCursor job;; job.advance()) {
    wait(channels.jobs.full + job.stage, job.phase);
    const Tile tile = posted_tile(channels.jobs, job);
    if (tile.rows <= 0) return;
    const int begin = first_block(tile, tile.first), end = query_blocks(tile);
    const int first = tile.first + lane.group * kBox;  // of the group
    const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
    const int mine = rows > 0 ? first_block(tile, first) : end;
    std::byte* const k_rows =
        memory.places + (S::kPlaces == 1 ? 0 : job.stage) * S::kPlaceBytes + lane.group * kBoxBytes;
    std::byte* const v_rows = k_rows + S::LeftTile::kBytes;

    float dk[kHeadSize / 2] = {}, dv[kHeadSize / 2] = {};
    pin(dk), pin(dv);
    if (mine < end) {
      const LeftRows<S, kHeadSize == 64> k(k_rows, lane), v(v_rows, lane);
      // Scores and their gradients, transposed: a row for each key.
      float s[32], dp[32];
      std::uint32_t probabilities[4][4], gradients[4][4];
      const auto multiply_block = [&] {
        const std::uint32_t q_tile = stages + cursor.stage * described(S::kStageBytes);
        wait(channels.ring.full + cursor.stage, cursor.phase);
        begin_products();
        k.multiply(s, q_tile);
        commit_products();
        v.multiply(dp, q_tile + described(kRight));
        commit_products();
      };
      const auto add_values = [&](int stage) {
        add_product<T, kHeadSize, kBox>(
            dv, probabilities, query_columns + stage * described(S::kStageBytes) + described(kRight));
      };
      const auto add_keys = [&](int stage) {
        add_product<T, kHeadSize, kBox>(dk, gradients, query_columns + stage * described(S::kStageBytes));
      };
      // Zeros where a key is not seen, whatever stands there.
      const auto mask = [&](float(&x)[32], int query) {
        if ((!causal || first + rows - 1 <= query + tile.offset()) && query + kBox <= tile.Lq) return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int from = causal ? first + lane.row(r) - tile.offset() - query - lane.column() : -kBox;
          const int until = tile.Lq - query - lane.column();
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            const int column = i / 4 * 8 + i % 2;
            if (i / 2 % 2 == r) x[i] = column >= from && column < until ? x[i] : 0.0f;
          }
        }
      };
      const auto exponentiate = [&](int query) {
        const RowStatistics* const of = memory.statistics + cursor.stage * kBox + lane.column();
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
          const float4 pair = *reinterpret_cast<const float4*>(of + i / 4 * 8);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[i + e] = exp2_fast(fmaf(s[i + e], scale2, e % 2 ? -pair.z : -pair.x));
        }
        mask(s, query);
      };
      const auto differentiate = [&](int query) {
        const RowStatistics* const of = memory.statistics + cursor.stage * kBox + lane.column();
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
          const float4 pair = *reinterpret_cast<const float4*>(of + i / 4 * 8);
#pragma unroll
          for (int e = 0; e < 4; ++e) dp[i + e] = s[i + e] * (dp[i + e] - (e % 2 ? pair.w : pair.y));
        }
        mask(dp, query);
      };

      int query = (end - 1) * kBox;
      if (query + kBox > tile.Lq) {
        std::byte* const q_tile = memory.stages + cursor.stage * S::kStageBytes;
        wait(channels.ring.full + cursor.stage, cursor.phase);
        clear_rows<kBox, kHeadSize>(q_tile, tile.Lq - query, lane);
        clear_rows<kBox, kHeadSize>(q_tile + kRight, tile.Lq - query, lane);
      }
      if constexpr (kHeadSize == 64) {
        multiply_block();
        wait_for_products<0>();
        pin(s), pin(dp);
        exponentiate(query);
        differentiate(query);
        pack_factor<T, kBox>(probabilities, s);
        pack_factor<T, kBox>(gradients, dp);
        // While the scores of one block become gradients, those of the block before are multiplied.
        for (int i = mine + 1; i < end; ++i) {
          const int before = cursor.stage;
          cursor.advance();
          query -= kBox;
          multiply_block();
          add_values(before);
          add_keys(before);
          commit_products();
          wait_for_products<2>();
          pin(s);
          exponentiate(query);
          wait_for_products<1>();
          pin(dp);
          differentiate(query);
          wait_for_products<0>();
          pin(dk), pin(dv);
          arrive(channels.ring.empty + before);
          pack_factor<T, kBox>(probabilities, s);
          pack_factor<T, kBox>(gradients, dp);
        }
        begin_products();
        add_values(cursor.stage);
        add_keys(cursor.stage);
        commit_products();
        wait_for_products<0>();
        pin(dk), pin(dv);
        arrive(channels.ring.empty + cursor.stage);
        cursor.advance();
      } else {
        // Beside two sums of 128 columns there are registers for the scores of one block or their gradients,
        // not for both: the next scores are multiplied and exponentiated beside the keys' sum.
        const auto multiply_scores = [&] {
          wait(channels.ring.full + cursor.stage, cursor.phase);
          begin_products();
          k.multiply(s, stages + cursor.stage * described(S::kStageBytes));
          commit_products();
        };
        const auto add_values_and_differentiate = [&] {
          begin_products();
          v.multiply(dp, stages + cursor.stage * described(S::kStageBytes) + described(kRight));
          commit_products();
          add_values(cursor.stage);
          commit_products();
          wait_for_products<1>();
          pin(dp);
          differentiate(query);
          pack_factor<T, kBox>(gradients, dp);
          wait_for_products<0>();
          pin(dv);
        };
        multiply_scores();
        wait_for_products<0>();
        pin(s);
        exponentiate(query);
        pack_factor<T, kBox>(probabilities, s);
        add_values_and_differentiate();
        for (int i = mine + 1; i < end; ++i) {
          const int before = cursor.stage;
          cursor.advance();
          query -= kBox;
          multiply_scores();
          add_keys(before);
          commit_products();
          wait_for_products<1>();
          pin(s);
          exponentiate(query);
          pack_factor<T, kBox>(probabilities, s);
          wait_for_products<0>();
          pin(dk);
          arrive(channels.ring.empty + before);
          add_values_and_differentiate();
        }
        begin_products();
        add_keys(cursor.stage);
        commit_products();
        wait_for_products<0>();
        pin(dk);
        arrive(channels.ring.empty + cursor.stage);
        cursor.advance();
      }
    }
    for (int i = begin; i < mine; ++i) {  // what only other groups are seen by
      wait(channels.ring.full + cursor.stage, cursor.phase);
      arrive(channels.ring.empty + cursor.stage);
      cursor.advance();
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) dk[i] *= p.scale;
    store_rows<T, kHeadSize>(p.dk, tile.k0 + first, tile.head, rows, dk, k_rows, S::LeftTile::kSlabBytes,
                             lane);
    store_rows<T, kHeadSize>(p.dv, tile.k0 + first, tile.head, rows, dv, v_rows, S::LeftTile::kSlabBytes,
                             lane);
    fence_stores_to_shared();  // before the copy of a later job
    release(channels.jobs.empty + job.stage, lane);
  }
#endif
}

}  // namespace sm90

namespace {

Refusal refuse_backward(const AttentionBackwardProblem& p, const DeviceInfo&) {
  if (p.HS != 64 && p.HS != 128) return "head size is neither 64 nor 128";
  return refuse_boxes(p);
}

std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return sm90::kCounterBytes +
         static_cast<std::size_t>(p.NH * (p.Nq + p.sequences + sm90::kBox + 2)) * sizeof(RowStatistics);
}

void flash_sm90_backward(const Context& context, const AttentionBackward& a) {
  using namespace sm90;
  constexpr std::string_view kWhat = "attention.backward cuda.flash_sm90";
  unsigned* const next = counters(context, context.scratch());
  const BackwardParameters p(a, static_cast<std::byte*>(context.scratch()) + kCounterBytes);
  const BackwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), map_of(a.dout), p, next, next + 1};
  const Sequences& sequences = p.sequences;
  visit_shape(a.q.dtype, a.q.shape[2], [&]<class T, int kHeadSize>() {
    using Queries = BackwardShape<T, kHeadSize, kHeadSize == 64 ? 3 : 2>;
    using Keys = BackwardShape<T, kHeadSize, 2>;
    launch(backward_query_sm90<Queries>, context, maps,
           resident(context, sequences.blocks(sequences.Nq, Queries::kRows)), Queries::kThreads,
           Queries::kShared, kWhat);
    launch(backward_key_sm90<Keys>, context, maps,
           resident(context, sequences.blocks(sequences.Nk, Keys::kRows)), Keys::kThreads, Keys::kShared,
           kWhat);
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionBackward, "cuda.flash_sm90"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = attention::cuda::flash_sm90_backward,
    .refuse = attention::cuda::refuse_backward,
    .workspace = attention::cuda::backward_workspace};

}  // namespace warpwright::ops
