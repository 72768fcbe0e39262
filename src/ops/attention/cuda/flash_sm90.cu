// bf16 and fp16 on Hopper: one warp feeds tiles to shared memory through the tensor copy engine, two groups
// of four warps multiply them (wgmma), 64 rows each. Scores stay in registers from one product to the next,
// as in flash.cu, and the backward is the same pair of kernels: one sums dq, one dk and dv.
//
// A copy brings whole boxes of 64 rows, so the last tile of a sequence ends in rows of its neighbour: their
// scores are masked, and where such a row would be multiplied by a probability of 0 it is overwritten with
// zeros first, so that a NaN next door stays there.
#include <cuda.h>

#include <limits>

#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/kernels.hpp"
#include "ops/cuda/hopper/products.cuh"
#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/hopper/tensor_map.hpp"

namespace warpwright::ops::attention::cuda {
namespace sm90 {  // not unnamed: a pass for an older architecture sees none of it used

using namespace hopper;

inline constexpr int kGroups = 2, kGroupThreads = 128, kGroupWarps = 4,
                     kBox = 64;  // rows of a group and of a copy
inline constexpr int kTileRows = kGroups * kBox;
inline constexpr int kBoxBytes = kBox * 128;  // of 64 elements

struct ForwardMaps {
  CUtensorMap q, k, v;
  ForwardParameters p;
};
struct BackwardMaps {
  CUtensorMap q, k, v, dout;
  BackwardParameters p;
};

// Where a sequence's statistics start in a head's row of them: 16-byte aligned, for copies of kBox of them.
__host__ __device__ inline std::int64_t statistics_stride(const Sequences& s) {
  return (static_cast<std::int64_t>(s.Nq) + s.count + kBox + 2) / 2 * 2;
}
__device__ inline RowStatistics* statistics_of(const BackwardParameters& p, const Tile& tile) {
  return p.statistics + tile.head * statistics_stride(p.sequences) + (tile.q0 + tile.sequence + 1) / 2 * 2;
}

// Tiles in shared memory are slabs of 64 columns, each kRows rows of 128 bytes.
template <int kRows, int kHeadSize>
struct Slabs {
  static constexpr int kCount = kHeadSize / 64, kSlabBytes = kRows * 128, kBytes = kCount * kSlabBytes;
};

// The rings of tiles between the producer and the groups.
template <int kStages>
struct Ring {
  Barrier full[kStages], empty[kStages];
  __device__ void initialize_all() {
    for (int i = 0; i < kStages; ++i) initialize(full + i, 1), initialize(empty + i, kGroupWarps * kGroups);
  }
};
struct Cursor {
  int stage = 0, phase = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

template <int kRows, int kHeadSize>
__device__ void copy_tile(std::byte* to, const CUtensorMap& map, Barrier* barrier, int head, int row) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
#pragma unroll
    for (int box = 0; box < kRows / kBox; ++box) {
      copy_box(to + slab * Slabs<kRows, kHeadSize>::kSlabBytes + box * kBoxBytes, &map, barrier, slab * 64,
               head, row + box * kBox);
    }
  }
}

// Zeros in rows from `valid` on, by one group.
template <int kRows, int kHeadSize>
__device__ void clear_rows(std::byte* tile, int valid, int thread) {
  constexpr int kChunks = kHeadSize / 8;
  for (int index = thread; index < (kRows - valid) * kChunks; index += kGroupThreads) {
    const int row = valid + index / kChunks, chunk = index % kChunks;
    *reinterpret_cast<uint4*>(tile + chunk / 8 * Slabs<kRows, kHeadSize>::kSlabBytes + row * 128 +
                              chunk % 8 * 16) = uint4{};
  }
}

// sum = a·bᵀ: 64 rows of a tile, 64 rows of another.
template <class T, int kHeadSize>
__device__ void product_of_tiles(float (&sum)[32], const std::byte* a, int a_slab, const std::byte* b,
                                 int b_slab) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
    const std::uint64_t at_a = describe_tile(a + slab * a_slab), at_b = describe_tile(b + slab * b_slab);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_tiles<T, 64>(sum, at_a + step * 2, at_b + step * 2, slab + step > 0);
    }
  }
}

// sum += factor·b for 64 rows of b.
template <class T, int kHeadSize>
__device__ void add_product(float (&sum)[kHeadSize / 64][32], const std::uint32_t (&factor)[4][4],
                            const std::byte* b, int b_slab) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
    const std::uint64_t at = describe_tile(b + slab * b_slab);
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply_registers<T>(sum[slab], factor[step], at + step * 128, 1);
  }
}

template <class T>
__device__ void pack_factor(std::uint32_t (&factor)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) factor[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// A thread of a group has rows row(0) and row(1) = row(0) + 8 of its 64, and of each, columns
// 8·(i/4) + column() + i%2 as element i of a sum, where row i/2%2.
struct Lane {
  int group, thread;  // of the group
  __device__ Lane()
      : group(static_cast<int>(threadIdx.x) / kGroupThreads),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads) {}
  __device__ int row(int r) const { return thread / 32 * 16 + thread % 32 / 4 + 8 * r; }
  __device__ int column() const { return thread % 4 * 2; }
};

// Rows of a sum to memory, through the group's part of a tile that no product reads any more.
template <class T, int kHeadSize>
__device__ void store_rows(const Rows& to, int first, int head, int valid,
                           const float (&sum)[kHeadSize / 64][32], std::byte* tile, int slab_bytes,
                           const Lane& lane) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int row = lane.row(i / 2 % 2), chunk = i / 4;
      *reinterpret_cast<std::uint32_t*>(tile + slab * slab_bytes + row * 128 + (chunk ^ row % 8) * 16 +
                                        lane.column() * 2) = pack<T>(sum[slab][i], sum[slab][i + 1]);
    }
  }
  __syncwarp();
  constexpr int kChunks = kHeadSize / 8;
  for (int index = lane.thread % 32; index < 16 * kChunks; index += 32) {
    const int row = lane.thread / 32 * 16 + index / kChunks, chunk = index % kChunks;
    if (row >= valid) break;
    const std::byte* from = tile + chunk / 8 * slab_bytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
    T* at = reinterpret_cast<T*>(to.at(first + row, head)) + chunk * 8;
    if (to.aligned) {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8; ++i) at[i] = reinterpret_cast<const T*>(from)[i];
    }
  }
}

__device__ inline std::byte* align_shared(uint4* shared) {
  const std::uint32_t address = shared_address(shared);
  return reinterpret_cast<std::byte*>(shared) + ((1024 - address % 1024) % 1024);
}

// The producer's group needs few of the 168 registers that a thread starts with; the others take what it
// gives back.
inline constexpr int kThreads = (kGroups + 1) * kGroupThreads;
inline constexpr int kProducerRegisters = 24, kGroupRegisters = 240;

template <class TypeT, int kHeadSizeT, int kKeysT, int kStagesT>
struct ForwardShape {
  using T = TypeT;
  static constexpr int kHeadSize = kHeadSizeT, kKeys = kKeysT, kStages = kStagesT;
  using QueryTile = Slabs<kTileRows, kHeadSize>;
  using KeyTile = Slabs<kKeys, kHeadSize>;
  static constexpr std::size_t kShared =
      1024 + QueryTile::kBytes + 2 * kStages * KeyTile::kBytes + sizeof(Ring<kStages>) + sizeof(Barrier);
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1) forward_sm90(const __grid_constant__ ForwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys, kPieces = kKeys / 64;
  constexpr int kKeyBytes = S::KeyTile::kBytes, kKeySlab = S::KeyTile::kSlabBytes,
                kQuerySlab = S::QueryTile::kSlabBytes;
  extern __shared__ uint4 shared[];
  std::byte* const q_tile = align_shared(shared);
  std::byte* const kv_tiles = q_tile + S::QueryTile::kBytes;
  auto& ring = *reinterpret_cast<Ring<S::kStages>*>(kv_tiles + 2 * S::kStages * kKeyBytes);
  Barrier* const q_full = reinterpret_cast<Barrier*>(&ring + 1);
  const ForwardParameters& p = maps.p;

  const Tile tile = find_tile<false, kTileRows>(p.sequences, blockIdx.x);
  if (tile.rows <= 0) return;
  const bool causal = p.sequences.causal;
  const auto blocks_until = [&](int query) { return (tile.visible_keys(query, causal) + kKeys - 1) / kKeys; };
  const int blocks = blocks_until(tile.first + tile.rows - 1);
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(q_full, 1);
    fence_initialized_barriers();
  }
  __syncthreads();

  Cursor cursor;
  if (threadIdx.x >= kGroups * kGroupThreads) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x != kGroups * kGroupThreads || blocks == 0) return;
    arrive_expecting(q_full, S::QueryTile::kBytes);
    copy_tile<kTileRows, kHeadSize>(q_tile, maps.q, q_full, tile.head, tile.q0 + tile.first);
    for (int i = 0; i < blocks; ++i) {
      wait(ring.empty + cursor.stage, cursor.phase ^ 1);
      std::byte* to = kv_tiles + 2 * cursor.stage * kKeyBytes;
      const int row = tile.k0 + (blocks - 1 - i) * kKeys;
      arrive_expecting(ring.full + cursor.stage, 2 * kKeyBytes);
      copy_tile<kKeys, kHeadSize>(to, maps.k, ring.full + cursor.stage, tile.head, row);
      copy_tile<kKeys, kHeadSize>(to + kKeyBytes, maps.v, ring.full + cursor.stage, tile.head, row);
      cursor.advance<S::kStages>();
    }
    return;
  }

  take_registers<kGroupRegisters>();
  const Lane lane;
  const int first = tile.first + lane.group * kBox;  // of the group
  const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
  const int mine = rows > 0 ? blocks_until(first + rows - 1) : 0;
  const int common = tile.visible_keys(first, causal);
  const float scale2 = p.scale * kLog2e;
  std::byte* const q_rows = q_tile + lane.group * kBoxBytes;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane.thread % 32 == 0) arrive(ring.empty + stage);
  };

  float o[kHeadSize / 64][32] = {};
  pin(o);
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int i = mine; i < blocks; ++i) {  // what only the other group sees
    wait(ring.full + cursor.stage, cursor.phase);
    release(cursor.stage);
    cursor.advance<S::kStages>();
  }
  if (mine > 0) {
    float s[kPieces][32];
    std::uint32_t factor[kPieces][4][4];
    // Scores of a block to probabilities of the present maximum; what the sums so far shrink by.
    const auto exponentiate = [&](int key, float(&shrink)[2]) {
      if (key + kKeys > common) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int end = tile.visible_keys(first + lane.row(r), causal) - key - lane.column();
#pragma unroll
          for (int n = 0; n < kPieces; ++n) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
              if (i / 2 % 2 == r) s[n][i] = 64 * n + i / 4 * 8 + i % 2 < end ? s[n][i] : -INFINITY;
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = largest[r];
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            if (i / 2 % 2 == r) top = fmaxf(top, s[n][i]);
          }
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0.0f : top * scale2;
        shrink[r] = exp2_fast(largest[r] * scale2 - base);
        largest[r] = top;
        float part = 0;
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            if (i / 2 % 2 == r) part += s[n][i] = exp2_fast(fmaf(s[n][i], scale2, -base));
          }
        }
        sum[r] = sum[r] * shrink[r] + part;
      }
    };
    const auto multiply_keys = [&](const std::byte* k_tile) {
      begin_products();
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        product_of_tiles<T, kHeadSize>(s[n], q_rows, kQuerySlab, k_tile + n * kBoxBytes, kKeySlab);
      }
      commit_products();
    };
    const auto multiply_values = [&](const std::byte* v_tile) {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        add_product<T, kHeadSize>(o, factor[n], v_tile + n * kBoxBytes, kKeySlab);
      }
      commit_products();
    };
    const auto pack_all = [&] {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) pack_factor<T>(factor[n], s[n]);
    };

    wait(q_full, 0);
    wait(ring.full + cursor.stage, cursor.phase);
    const std::byte* k_tile = kv_tiles + 2 * cursor.stage * kKeyBytes;
    int key = (mine - 1) * kKeys;
    if (key + kKeys > tile.Lk) {
      clear_rows<kKeys, kHeadSize>(kv_tiles + (2 * cursor.stage + 1) * kKeyBytes, tile.Lk - key, lane.thread);
      fence_stores_to_shared();
      named_barrier(1 + lane.group, kGroupThreads);
    }
    multiply_keys(k_tile);
    wait_for_products<0>();
    pin(s);
    float shrink[2];
    exponentiate(key, shrink);
    pack_all();
    // While the scores of one block are exponentiated, the values of the block before are multiplied.
    for (int i = 1; i < mine; ++i) {
      const int before = cursor.stage;
      const std::byte* v_tile = k_tile + kKeyBytes;
      cursor.advance<S::kStages>();
      wait(ring.full + cursor.stage, cursor.phase);
      k_tile = kv_tiles + 2 * cursor.stage * kKeyBytes;
      key -= kKeys;
      multiply_keys(k_tile);
      multiply_values(v_tile);
      wait_for_products<1>();
      pin(s);
      exponentiate(key, shrink);
      wait_for_products<0>();
      pin(o);
      release(before);
#pragma unroll
      for (auto& part : o) {
#pragma unroll
        for (int j = 0; j < 32; ++j) part[j] *= shrink[j / 2 % 2];
      }
      pack_all();
    }
    begin_products();
    multiply_values(k_tile + kKeyBytes);
    wait_for_products<0>();
    pin(o);
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
  for (auto& part : o) {
#pragma unroll
    for (int j = 0; j < 32; ++j) part[j] *= inverse[j / 2 % 2];
  }
  if (blocks > 0)
    wait(q_full, 0);  // a group that sees nothing has not waited for the copy that it overwrites
  store_rows<T, kHeadSize>(p.out, tile.q0 + first, tile.head, rows, o, q_rows, kQuerySlab, lane);
#endif
}

template <class TypeT, int kHeadSizeT, int kStagesT>
struct BackwardShape {
  using T = TypeT;
  static constexpr int kHeadSize = kHeadSizeT, kStages = kStagesT;
  using LeftTile = Slabs<kTileRows, kHeadSize>;
  using RightTile = Slabs<kBox, kHeadSize>;
  static constexpr int kStatisticsBytes = kBox * static_cast<int>(sizeof(RowStatistics));
  static constexpr std::size_t kShared = 1024 + 2 * LeftTile::kBytes +
                                         kStages * (2 * RightTile::kBytes + kStatisticsBytes) +
                                         sizeof(Ring<kStages>) + sizeof(Barrier);
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    backward_query_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize;
  constexpr int kLeft = S::LeftTile::kBytes, kRight = S::RightTile::kBytes,
                kLeftSlab = S::LeftTile::kSlabBytes;
  extern __shared__ uint4 shared[];
  std::byte* const q_tile = align_shared(shared);
  std::byte* const dout_tile = q_tile + kLeft;
  std::byte* const kv_tiles = dout_tile + kLeft;
  auto* const statistics = reinterpret_cast<RowStatistics*>(kv_tiles + 2 * S::kStages * kRight);
  auto& ring = *reinterpret_cast<Ring<S::kStages>*>(reinterpret_cast<std::byte*>(statistics) +
                                                    S::kStages * S::kStatisticsBytes);
  Barrier* const left_full = reinterpret_cast<Barrier*>(&ring + 1);
  const BackwardParameters& p = maps.p;

  const Tile tile = find_tile<false, kTileRows>(p.sequences, blockIdx.x);
  if (tile.rows <= 0) return;
  const bool causal = p.sequences.causal;
  const auto blocks_until = [&](int query) { return (tile.visible_keys(query, causal) + kBox - 1) / kBox; };
  const int blocks = blocks_until(tile.first + tile.rows - 1);
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(left_full, 1);
    fence_initialized_barriers();
  }
  __syncthreads();

  Cursor cursor;
  if (threadIdx.x >= kGroups * kGroupThreads) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x != kGroups * kGroupThreads || blocks == 0) return;
    arrive_expecting(left_full, 2 * kLeft);
    copy_tile<kTileRows, kHeadSize>(q_tile, maps.q, left_full, tile.head, tile.q0 + tile.first);
    copy_tile<kTileRows, kHeadSize>(dout_tile, maps.dout, left_full, tile.head, tile.q0 + tile.first);
    for (int i = 0; i < blocks; ++i) {
      wait(ring.empty + cursor.stage, cursor.phase ^ 1);
      std::byte* to = kv_tiles + 2 * cursor.stage * kRight;
      arrive_expecting(ring.full + cursor.stage, 2 * kRight);
      copy_tile<kBox, kHeadSize>(to, maps.k, ring.full + cursor.stage, tile.head, tile.k0 + i * kBox);
      copy_tile<kBox, kHeadSize>(to + kRight, maps.v, ring.full + cursor.stage, tile.head,
                                 tile.k0 + i * kBox);
      cursor.advance<S::kStages>();
    }
    return;
  }

  take_registers<kGroupRegisters>();
  const Lane lane;
  const int first = tile.first + lane.group * kBox, query = tile.q0 + first;
  const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
  const int mine = rows > 0 ? blocks_until(first + rows - 1) : 0;
  const int common = tile.visible_keys(first, causal);
  const float scale2 = p.scale * kLog2e;
  std::byte* const q_rows = q_tile + lane.group * kBoxBytes;
  std::byte* const dout_rows = dout_tile + lane.group * kBoxBytes;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane.thread % 32 == 0) arrive(ring.empty + stage);
  };

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

  float dq[kHeadSize / 64][32] = {};
  pin(dq);
  if (mine > 0) {
    float s[32], dp[32];
    std::uint32_t factor[4][4];
    const auto await_block = [&](int i) {
      std::byte* const k_tile = kv_tiles + 2 * cursor.stage * kRight;
      wait(ring.full + cursor.stage, cursor.phase);
      if ((i + 1) * kBox > tile.Lk) {
        clear_rows<kBox, kHeadSize>(k_tile, tile.Lk - i * kBox, lane.thread);
        fence_stores_to_shared();
        named_barrier(1 + lane.group, kGroupThreads);
      }
      return k_tile;
    };
    const auto multiply_block = [&](const std::byte* k_tile) {
      begin_products();
      product_of_tiles<T, kHeadSize>(s, q_rows, kLeftSlab, k_tile, kBoxBytes);
      commit_products();
      product_of_tiles<T, kHeadSize>(dp, dout_rows, kLeftSlab, k_tile + kRight, kBoxBytes);
      commit_products();
    };
    const auto exponentiate = [&] {
#pragma unroll
      for (int j = 0; j < 32; ++j) s[j] = exp2_fast(fmaf(s[j], scale2, -lse2[j / 2 % 2]));
    };
    const auto differentiate = [&](int key) {
#pragma unroll
      for (int j = 0; j < 32; ++j) s[j] *= dp[j] - D[j / 2 % 2];
      if (key + kBox > common) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int end = tile.visible_keys(first + lane.row(r), causal) - key - lane.column();
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            if (j / 2 % 2 == r) s[j] = j / 4 * 8 + j % 2 < end ? s[j] : 0.0f;
          }
        }
      }
    };
    wait(left_full, 0);
    const std::byte* k_tile = await_block(0);
    multiply_block(k_tile);
    wait_for_products<0>();
    pin(s), pin(dp);
    exponentiate();
    differentiate(0);
    pack_factor<T>(factor, s);
    // While the scores of one block become gradients, those of the block before are multiplied.
    for (int i = 1; i < mine; ++i) {
      const int before = cursor.stage;
      const std::byte* const k_before = k_tile;
      cursor.advance<S::kStages>();
      k_tile = await_block(i);
      multiply_block(k_tile);
      add_product<T, kHeadSize>(dq, factor, k_before, kBoxBytes);
      commit_products();
      wait_for_products<2>();
      pin(s);
      exponentiate();
      wait_for_products<1>();
      pin(dp);
      differentiate(i * kBox);
      wait_for_products<0>();
      pin(dq);
      release(before);
      pack_factor<T>(factor, s);
    }
    begin_products();
    add_product<T, kHeadSize>(dq, factor, k_tile, kBoxBytes);
    commit_products();
    wait_for_products<0>();
    pin(dq);
    release(cursor.stage);
    cursor.advance<S::kStages>();
  }
  for (int i = mine; i < blocks; ++i) {
    wait(ring.full + cursor.stage, cursor.phase);
    release(cursor.stage);
    cursor.advance<S::kStages>();
  }
#pragma unroll
  for (auto& part : dq) {
#pragma unroll
    for (int j = 0; j < 32; ++j) part[j] *= p.scale;
  }
  if (blocks > 0) wait(left_full, 0);
  store_rows<T, kHeadSize>(p.dq, query, tile.head, rows, dq, q_rows, kLeftSlab, lane);
#endif
}

template <class S>
__global__ void __launch_bounds__(kThreads, 1) backward_key_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize;
  constexpr int kLeft = S::LeftTile::kBytes, kRight = S::RightTile::kBytes,
                kLeftSlab = S::LeftTile::kSlabBytes;
  extern __shared__ uint4 shared[];
  std::byte* const k_tile = align_shared(shared);
  std::byte* const v_tile = k_tile + kLeft;
  std::byte* const query_tiles = v_tile + kLeft;
  auto* const statistics = reinterpret_cast<RowStatistics*>(query_tiles + 2 * S::kStages * kRight);
  auto& ring = *reinterpret_cast<Ring<S::kStages>*>(reinterpret_cast<std::byte*>(statistics) +
                                                    S::kStages * S::kStatisticsBytes);
  Barrier* const left_full = reinterpret_cast<Barrier*>(&ring + 1);
  const BackwardParameters& p = maps.p;

  const Tile tile = find_tile<true, kTileRows>(p.sequences, blockIdx.x);
  if (tile.rows <= 0) return;
  const bool causal = p.sequences.causal;
  // Key j is seen by the queries from j − offset on; tiles of queries are counted from the sequence's first.
  const auto first_block = [&](int key) {
    return min(causal ? max(key - tile.offset(), 0) / kBox : 0, (tile.Lq + kBox - 1) / kBox);
  };
  const int begin = first_block(tile.first), end = (tile.Lq + kBox - 1) / kBox;
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(left_full, 1);
    fence_initialized_barriers();
  }
  __syncthreads();

  Cursor cursor;
  if (threadIdx.x >= kGroups * kGroupThreads) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x != kGroups * kGroupThreads || begin == end) return;
    arrive_expecting(left_full, 2 * kLeft);
    copy_tile<kTileRows, kHeadSize>(k_tile, maps.k, left_full, tile.head, tile.k0 + tile.first);
    copy_tile<kTileRows, kHeadSize>(v_tile, maps.v, left_full, tile.head, tile.k0 + tile.first);
    for (int i = begin; i < end; ++i) {
      wait(ring.empty + cursor.stage, cursor.phase ^ 1);
      Barrier* const full = ring.full + cursor.stage;
      std::byte* to = query_tiles + 2 * cursor.stage * kRight;
      arrive_expecting(full, 2 * kRight + S::kStatisticsBytes);
      copy_tile<kBox, kHeadSize>(to, maps.q, full, tile.head, tile.q0 + i * kBox);
      copy_bytes(statistics + cursor.stage * kBox, statistics_of(p, tile) + i * kBox, S::kStatisticsBytes,
                 full);
      copy_tile<kBox, kHeadSize>(to + kRight, maps.dout, full, tile.head, tile.q0 + i * kBox);
      cursor.advance<S::kStages>();
    }
    return;
  }

  take_registers<kGroupRegisters>();
  const Lane lane;
  const int first = tile.first + lane.group * kBox;
  const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
  const int mine = rows > 0 ? first_block(first) : end;
  const float scale2 = p.scale * kLog2e;
  std::byte* const k_rows = k_tile + lane.group * kBoxBytes;
  std::byte* const v_rows = v_tile + lane.group * kBoxBytes;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane.thread % 32 == 0) arrive(ring.empty + stage);
  };

  float dk[kHeadSize / 64][32] = {}, dv[kHeadSize / 64][32] = {};
  pin(dk), pin(dv);
  for (int i = begin; i < mine; ++i) {  // what only the other group is seen by
    wait(ring.full + cursor.stage, cursor.phase);
    release(cursor.stage);
    cursor.advance<S::kStages>();
  }
  if (mine < end) {
    // Scores and their gradients, transposed: a row for each key.
    float s[32], dp[32];
    std::uint32_t probabilities[4][4], gradients[4][4];
    const auto await_block = [&](int i) {
      std::byte* const q_tile = query_tiles + 2 * cursor.stage * kRight;
      wait(ring.full + cursor.stage, cursor.phase);
      if ((i + 1) * kBox > tile.Lq) {
        clear_rows<kBox, kHeadSize>(q_tile, tile.Lq - i * kBox, lane.thread);
        clear_rows<kBox, kHeadSize>(q_tile + kRight, tile.Lq - i * kBox, lane.thread);
        fence_stores_to_shared();
        named_barrier(1 + lane.group, kGroupThreads);
      }
      return q_tile;
    };
    const auto multiply_block = [&](const std::byte* q_tile) {
      begin_products();
      product_of_tiles<T, kHeadSize>(s, k_rows, kLeftSlab, q_tile, kBoxBytes);
      commit_products();
      product_of_tiles<T, kHeadSize>(dp, v_rows, kLeftSlab, q_tile + kRight, kBoxBytes);
      commit_products();
    };
    const auto exponentiate = [&](int query) {
      const RowStatistics* const of = statistics + cursor.stage * kBox + lane.column();
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        const float4 pair = *reinterpret_cast<const float4*>(of + j / 4 * 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j + e] = exp2_fast(fmaf(s[j + e], scale2, e % 2 ? -pair.z : -pair.x));
      }
      if ((causal && first + rows - 1 > query + tile.offset()) || query + kBox > tile.Lq) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int from = causal ? first + lane.row(r) - tile.offset() - query - lane.column() : -kBox;
          const int until = tile.Lq - query - lane.column();
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            const int column = j / 4 * 8 + j % 2;
            if (j / 2 % 2 == r) s[j] = column >= from && column < until ? s[j] : 0.0f;
          }
        }
      }
    };
    const auto differentiate = [&] {
      const RowStatistics* const of = statistics + cursor.stage * kBox + lane.column();
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        const float4 pair = *reinterpret_cast<const float4*>(of + j / 4 * 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          // A probability of 0 is a masked one: what stands in its place may be anything.
          dp[j + e] = s[j + e] == 0 ? 0.0f : s[j + e] * (dp[j + e] - (e % 2 ? pair.w : pair.y));
        }
      }
    };
    wait(left_full, 0);
    if constexpr (kHeadSize == 64) {
      const std::byte* q_tile = await_block(mine);
      multiply_block(q_tile);
      wait_for_products<0>();
      pin(s), pin(dp);
      exponentiate(mine * kBox);
      differentiate();
      pack_factor<T>(probabilities, s);
      pack_factor<T>(gradients, dp);
      // While the scores of one block become gradients, those of the block before are multiplied.
      for (int i = mine + 1; i < end; ++i) {
        const int before = cursor.stage;
        const std::byte* const q_before = q_tile;
        cursor.advance<S::kStages>();
        q_tile = await_block(i);
        multiply_block(q_tile);
        add_product<T, kHeadSize>(dv, probabilities, q_before + kRight, kBoxBytes);
        add_product<T, kHeadSize>(dk, gradients, q_before, kBoxBytes);
        commit_products();
        wait_for_products<2>();
        pin(s);
        exponentiate(i * kBox);
        wait_for_products<1>();
        pin(dp);
        differentiate();
        wait_for_products<0>();
        pin(dk), pin(dv);
        release(before);
        pack_factor<T>(probabilities, s);
        pack_factor<T>(gradients, dp);
      }
      begin_products();
      add_product<T, kHeadSize>(dv, probabilities, q_tile + kRight, kBoxBytes);
      add_product<T, kHeadSize>(dk, gradients, q_tile, kBoxBytes);
      commit_products();
      wait_for_products<0>();
      pin(dk), pin(dv);
    } else {
      // Two sums of 128 columns leave no registers to hold one block's factors over the next one's scores.
      for (int i = mine; i < end; ++i) {
        const std::byte* const q_tile = await_block(i);
        multiply_block(q_tile);
        wait_for_products<1>();
        pin(s);
        exponentiate(i * kBox);
        pack_factor<T>(probabilities, s);
        wait_for_products<0>();
        pin(dp);
        begin_products();
        add_product<T, kHeadSize>(dv, probabilities, q_tile + kRight, kBoxBytes);
        commit_products();
        differentiate();
        pack_factor<T>(gradients, dp);
        begin_products();
        add_product<T, kHeadSize>(dk, gradients, q_tile, kBoxBytes);
        commit_products();
        wait_for_products<0>();
        pin(dk), pin(dv);
        release(cursor.stage);
        cursor.advance<S::kStages>();
      }
    }
  }
#pragma unroll
  for (auto& part : dk) {
#pragma unroll
    for (int j = 0; j < 32; ++j) part[j] *= p.scale;
  }
  if (begin < end) wait(left_full, 0);
  store_rows<T, kHeadSize>(p.dk, tile.k0 + first, tile.head, rows, dk, k_rows, kLeftSlab, lane);
  store_rows<T, kHeadSize>(p.dv, tile.k0 + first, tile.head, rows, dv, v_rows, kLeftSlab, lane);
#endif
}

}  // namespace sm90

namespace {

using namespace sm90;

// Boxes of kBox rows and 64 columns of one head.
CUtensorMap map_of(const Tensor& t) {
  return map_boxes<3>(t.data, t.dtype, {t.shape[2], t.shape[1], t.shape[0]}, {t.strides[1], t.strides[0]},
                      {64, 1, kBox});
}

// What the copy engine takes besides suits_tiles(): something to read, strides that do not overlap.
bool suits_boxes(const Tensor& t) {
  return t.shape[0] > 0 && t.strides[0] > 0 && t.strides[1] > 0;
}

template <class T, int kHeadSize>
using Forward = ForwardShape<T, kHeadSize, 128, kHeadSize == 64 ? 3 : 2>;
template <class T, int kHeadSize>
using Backward = BackwardShape<T, kHeadSize, kHeadSize == 64 ? 4 : 2>;

template <class F>
void visit_shape(DType dtype, std::int64_t HS, F&& f) {
  if (dtype == DType::bf16) {
    HS == 64 ? f.template operator()<__nv_bfloat16, 64>() : f.template operator()<__nv_bfloat16, 128>();
  } else {
    HS == 64 ? f.template operator()<__half, 64>() : f.template operator()<__half, 128>();
  }
}

}  // namespace

bool flash_sm90_is_built() {
  static const bool built = [] {
    cudaFuncAttributes attributes{};
    const cudaError_t status = cudaFuncGetAttributes(&attributes, forward_sm90<Forward<__nv_bfloat16, 64>>);
    if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
      cudaGetLastError();
      return true;  // no GPU to ask for: the list of variants is about one that it imagines
    }
    warpwright::cuda::check(status, "looking for code for sm_90a");
    return attributes.ptxVersion == 90;
  }();
  return built;
}

std::size_t flash_sm90_workspace(std::int64_t Nq, std::int64_t NH, std::int64_t sequences) {
  return static_cast<std::size_t>(NH * (Nq + sequences + kBox + 2)) * sizeof(RowStatistics);
}

void flash_sm90_forward(const Context& context, const AttentionForward& a) {
  if (!suits_tiles(a) || !suits_boxes(a.q) || !suits_boxes(a.k) || !suits_boxes(a.v)) {
    return flash_forward(context, a);
  }
  constexpr std::string_view kWhat = "attention.forward cuda.flash_sm90";
  const ForwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), ForwardParameters(a)};
  const Sequences& sequences = maps.p.sequences;
  visit_shape(a.q.dtype, a.q.shape[2], [&]<class T, int kHeadSize>() {
    using S = Forward<T, kHeadSize>;
    launch(forward_sm90<S>, context, maps, sequences.blocks(sequences.Nq, kTileRows), kThreads, S::kShared,
           kWhat);
  });
}

void flash_sm90_backward(const Context& context, const AttentionBackward& a) {
  if (!suits_tiles(a) || !suits_boxes(a.q) || !suits_boxes(a.k) || !suits_boxes(a.v) ||
      !suits_boxes(a.dout)) {
    return flash_backward(context, a);
  }
  constexpr std::string_view kWhat = "attention.backward cuda.flash_sm90";
  const BackwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), map_of(a.dout),
                          BackwardParameters(a, context.scratch())};
  const Sequences& sequences = maps.p.sequences;
  visit_shape(a.q.dtype, a.q.shape[2], [&]<class T, int kHeadSize>() {
    using S = Backward<T, kHeadSize>;
    launch(backward_query_sm90<S>, context, maps, sequences.blocks(sequences.Nq, kTileRows), kThreads,
           S::kShared, kWhat);
    launch(backward_key_sm90<S>, context, maps, sequences.blocks(sequences.Nk, kTileRows), kThreads,
           S::kShared, kWhat);
  });
}

}  // namespace warpwright::ops::attention::cuda
