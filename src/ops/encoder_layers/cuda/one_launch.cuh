// The kernel of cuda.one_launch: a grid that stays for all layers, one block of eight warps on each
// multiprocessor, with a barrier of the whole grid between the steps.
//
// Clusters of four blocks share out the columns of every product; a cluster's blocks have a quarter of the
// depth each, and send their sums to the block that owns the rows (st.async, counted by its barrier in shared
// memory). A block's part of the weights is fetched while the steps before are at their ends. The norms are
// no steps of their own: who makes a row's columns leaves their mean and squared deviations, and who reads
// the row merges those (T. Chan et al., "Updating Formulae", 1979).
//
// Row groups of 16·kRowTiles rows are worked off one after the other. No block reads what another wrote but
// behind a barrier, past its first-level cache.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/hopper/barrier.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::encoder_layers::cuda {

using hopper::Barrier;

inline constexpr int kCluster = 4, kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kMostClusters = 32, kMostRows = 256, kMostLayers = 24, kMostDepth = 512;
inline constexpr int kMostShare = 128;  // columns of a cluster whose norms it has a part in
inline constexpr int kGap = 8;          // elements between rows in shared memory: no two of eight share banks

struct LayerData {
  const void *qkv_weight, *qkv_bias, *proj_weight, *proj_bias, *attnorm_weight, *attnorm_bias, *fc_weight,
      *fc_bias, *fcproj_weight, *fcproj_bias, *outnorm_weight, *outnorm_bias;
};

struct Parameters {
  const void* in;                          // (N, H)
  void *out, *qkv, *att, *fc, *mid, *end;  // (N, …): mid and end are the sums in front of a layer's norms
  float2 *mid_parts, *end_parts;           // (N, kMostClusters): mean and squared deviations of columns
  const std::int32_t* cu_seqlens;
  unsigned* arrivals;  // 0 before and after
  int N, S, H, I, heads, layers;
  float eps, scale;
  Activation activation;
  int weight_bytes, state_bytes, sums_bytes;  // of shared memory
  LayerData layer[kMostLayers];
};

// Columns of a cluster, of `cols`.
__host__ __device__ inline int share_of(int cols, int clusters) {
  return (cols / 8 + clusters - 1) / clusters * 8;
}
// How many parts the warps of a block share the depth in; in each, what is left of them shares the columns.
inline constexpr int kWideParts = 2, kNarrowParts = 4;
// Tiles of eight columns that a warp has at most.
constexpr int warp_tiles(int row_tiles) {
  return row_tiles > 2 ? 4 : 6;
}
// Floats between rows of partial sums: eight rows of a product's fragment fall into different banks.
__host__ __device__ inline int sums_stride(int share) {
  return share % 16 == 0 ? share + 8 : share;
}

// 16 bytes to the shared memory of a block of the cluster, counted by its barrier.
__device__ inline void send(std::uint32_t to, const float4& v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];\n" ::
          "r"(to),
      "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
      "r"(__float_as_uint(v.w)), "r"(barrier)
      : "memory");
}
__device__ inline std::uint32_t address_in(std::uint32_t address, int block) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Until what the cluster's blocks have sent in the phase of that parity is here.
__device__ inline void wait_for_sent(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}\n" ::"r"(gpu::shared_address(barrier)),
      "r"(parity)
      : "memory");
}

template <class T, int kRowTiles, int kHeadSize, int kQueryTiles>
struct Worker {
  static constexpr int kRows = 16 * kRowTiles, kOwned = kRows / kCluster, kWarpTiles = warp_tiles(kRowTiles);
  using Pair = gpu::detail::Pair<T>;

  const Parameters& p;
  T *weights, *states;  // of a product; behind a product's states, or in their place, its warps' sums
  float* sums;          // (2, kCluster, kOwned, share): received, used in turn
  float2* norms;        // (2, kMostRows): mean and 1/deviation of rows of `end` and of `mid`
  T* affine;            // (2, kMostDepth): a norm's weight and bias of this block's columns
  Barrier* barriers;    // of the two `sums`
  int thread, warp, lane, rank, cluster, clusters;
  int rows;
  unsigned barriers_passed = 0;
  int sent = 0;

  __device__ Worker(const Parameters& parameters, std::byte* shared) : p(parameters) {
    weights = reinterpret_cast<T*>(shared), shared += p.weight_bytes;
    states = reinterpret_cast<T*>(shared), shared += p.state_bytes;
    sums = reinterpret_cast<float*>(shared), shared += p.sums_bytes;
    norms = reinterpret_cast<float2*>(shared), shared += 2 * kMostRows * sizeof(float2);
    affine = reinterpret_cast<T*>(shared), shared += 2 * kMostDepth * sizeof(T);
    barriers = reinterpret_cast<Barrier*>(shared);
    thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    rank = static_cast<int>(blockIdx.x) % kCluster, cluster = static_cast<int>(blockIdx.x) / kCluster;
    clusters = static_cast<int>(gridDim.x) / kCluster;
    rows = min(max(__ldg(p.cu_seqlens + p.S), 0), p.N);
    if (thread < 2) hopper::initialize(barriers + thread, 1);
    hopper::fence_initialized_barriers();
    hopper::cluster_barrier();
  }

  // What any block wrote before it, every block may read behind it.
  __device__ void grid_barrier() {
    __syncthreads();
    ++barriers_passed;
    if (thread == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(p.arrivals) : "memory");
      unsigned arrived = 0;
      while (arrived < barriers_passed * gridDim.x) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(arrived) : "l"(p.arrivals) : "memory");
      }
    }
    __syncthreads();
  }
  // The last block leaves the counts as it found them. No block ends before its cluster's last has sent to
  // it.
  __device__ void leave() {
    if (thread == 0) {
      unsigned before = 0;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;\n"
                   : "=r"(before)
                   : "l"(p.arrivals + 1)
                   : "memory");
      if (before == gridDim.x - 1) p.arrivals[0] = 0, p.arrivals[1] = 0;
    }
    hopper::cluster_barrier();
  }

  __device__ T* element(void* matrix, std::int64_t index) const { return static_cast<T*>(matrix) + index; }
  __device__ const T* element(const void* matrix, std::int64_t index) const {
    return static_cast<const T*>(matrix) + index;
  }
  // Four neighbours that another block may have written.
  __device__ float4 load_four(const void* matrix, std::int64_t index) const {
    const uint2 v = __ldcg(reinterpret_cast<const uint2*>(element(matrix, index)));
    return {Pair::low(v.x), Pair::high(v.x), Pair::low(v.y), Pair::high(v.y)};
  }
  // Returns them as they are stored.
  __device__ float4 store_four(void* matrix, std::int64_t index, const float4& v) const {
    const uint2 kept{Pair::of(v.x, v.y), Pair::of(v.z, v.w)};
    __stcg(reinterpret_cast<uint2*>(element(matrix, index)), kept);
    return {Pair::low(kept.x), Pair::high(kept.x), Pair::low(kept.y), Pair::high(kept.y)};
  }

  // Starts the copy of this cluster's rows, this rank's columns, of a weight (to, from).
  __device__ void fetch_weights(const void* weight, int to, int from) {
    const int share = share_of(to, clusters), depth = from / kCluster, chunks = depth / 8;
    const int first = cluster * share, count = min(share, to - first);
    const T* source = element(weight, static_cast<std::int64_t>(first) * from + rank * depth);
    for (int i = thread; i < count * chunks; i += kThreads) {
      const int row = i / chunks, chunk = i % chunks;
      gpu::copy_async<16>(weights + row * (depth + kGap) + chunk * 8,
                          source + static_cast<std::int64_t>(row) * from + chunk * 8, 16);
    }
    gpu::commit_copies();
  }
  __device__ void fetch_affine(const void* weight, const void* bias) {
    const int depth = p.H / kCluster, chunks = depth / 8;
    for (int i = thread; i < 2 * chunks; i += kThreads) {
      const int chunk = i % chunks;
      gpu::copy_async<16>(affine + i / chunks * kMostDepth + chunk * 8,
                          element(i < chunks ? weight : bias, rank * depth + chunk * 8), 16);
    }
    gpu::commit_copies();
  }
  // Starts the copy of rows [first, first + kRows), this rank's columns; zeros behind the last row.
  __device__ void fetch_states(T* to, const void* from, int cols, int first) {
    const int depth = cols / kCluster, chunks = depth / 8;
    const T* source = element(from, rank * depth);
    for (int i = thread; i < kRows * chunks; i += kThreads) {
      const int row = i / chunks, chunk = i % chunks;
      const bool exists = first + row < rows;
      const std::int64_t at = exists ? static_cast<std::int64_t>(first + row) * cols + chunk * 8 : 0;
      gpu::copy_async<16>(to + row * (depth + kGap) + chunk * 8, source + at, exists ? 16 : 0);
    }
    gpu::commit_copies();
  }
  __device__ float2 norm_of(const float2* parts, int row) const {
    const int share = share_of(p.H, clusters);
    const auto cols = static_cast<float>(min(max(p.H - lane * share, 0), share));  // of the lane's cluster
    const float2 part = cols > 0 ? __ldcg(parts + row * kMostClusters + lane) : float2{0, 0};
    const float mean = gpu::warp_sum(cols * part.x) / static_cast<float>(p.H), apart = part.x - mean;
    const float squares = gpu::warp_sum(fmaf(cols * apart, apart, part.y));
    return {mean, rsqrtf(squares / static_cast<float>(p.H) + p.eps)};
  }
  // Of rows [first, first + kRows), a row a warp at a time.
  __device__ void merge_norms(const float2* parts, float2* to, int first) {
#pragma unroll
    for (int i = 0; i < kRows / kWarps; ++i) {
      const int row = first + warp + i * kWarps;
      const float2 norm = norm_of(parts, min(row, rows - 1));
      if (lane == 0 && row < rows) to[row] = norm;
    }
  }
  __device__ void normalize_states(T* of_rows, const float2* of, int first) {
    const int depth = p.H / kCluster, chunks = depth / 8, count = min(kRows, rows - first) * chunks;
    for (int i = thread; i < count; i += kThreads) {
      const int row = i / chunks, chunk = i % chunks * 8;
      T* const at = of_rows + row * (depth + kGap) + chunk;
      const auto x = gpu::Packed<T>::load(at), weight = gpu::Packed<T>::load(affine + chunk),
                 bias = gpu::Packed<T>::load(affine + kMostDepth + chunk);
      const float2 norm = of[first + row];
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = fmaf((x[j] - norm.x) * norm.y, weight[j], bias[j]);
      gpu::Packed<T>::from_floats(y).store(at);
    }
    __syncthreads();
  }

  // What a product is of: rows of `from` (as they are, or normalized with what their parts say, which `norms`
  // is to remember), `cols` of them.
  struct Source {
    const void* from;
    int cols;
    const float2* parts = nullptr;
    float2* norms = nullptr;
  };
  using Sums = float[kRowTiles][kWarpTiles][4];

  // A warp's part of rows · weightsᵀ: the warps share the depth in kParts, and the columns in kWarps/kParts.
  struct Columns {
    int share, tiles;       // of the cluster; of 8 columns, that exist
    int part, tile, count;  // of the warp
    int stride;             // of its sums in shared memory
  };
  template <int kParts>
  __device__ Columns columns_of(int to) const {
    Columns c;
    c.share = share_of(to, clusters), c.stride = sums_stride(c.share);
    c.tiles = max(min(c.share, to - cluster * c.share), 0) / 8;  // none, or fewer, in the last clusters
    const int per_warp = (c.tiles + kWarps / kParts - 1) / (kWarps / kParts);
    c.part = warp % kParts, c.tile = warp / kParts * per_warp, c.count = min(per_warp, c.tiles - c.tile);
    return c;
  }
  template <int kParts>
  __device__ void multiply(Sums& sum, const T* rows_in_shared, const Columns& c, int cols) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int t = 0; t < kWarpTiles; ++t) sum[m][t][0] = sum[m][t][1] = sum[m][t][2] = sum[m][t][3] = 0;
    }
    if (c.count <= 0) return;
    const int stride = cols / kCluster + kGap, steps = cols / kCluster / 16;
    const std::uint32_t a = gpu::shared_address(rows_in_shared + lane % 16 * stride + lane / 16 * 8);
    const std::uint32_t b =
        gpu::shared_address(weights + (c.tile * 8 + lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
#pragma unroll 2
    for (int s = c.part; s < steps; s += kParts) {
      std::uint32_t fa[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) gpu::load_matrices(fa[m], a + (m * 16 * stride + s * 16) * 2);
#pragma unroll
      for (int t = 0; t < kWarpTiles; t += 2) {
        if (t >= c.count) break;
        std::uint32_t fb[4];
        gpu::load_matrices(fb, b + (t * 8 * stride + s * 16) * 2);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          float(&x)[kWarpTiles][4] = sum[m];
          gpu::multiply<T>(x[t][0], x[t][1], x[t][2], x[t][3], fa[m], fb[0], fb[1]);
          gpu::multiply<T>(x[t + 1][0], x[t + 1][1], x[t + 1][2], x[t + 1][3], fa[m], fb[2], fb[3]);
        }
      }
    }
  }
  // The sums of the block's warps to the blocks that own their rows.
  template <int kParts>
  __device__ void send_sums(const Sums& sum, const Columns& c, float* slots) {
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
      if (t >= c.count) break;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        float* const at =
            slots + (c.part * kRows + m * 16 + lane / 4) * c.stride + (c.tile + t) * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = {sum[m][t][0], sum[m][t][1]};
        *reinterpret_cast<float2*>(at + 8 * c.stride) = {sum[m][t][2], sum[m][t][3]};
      }
    }
    __syncthreads();
    Barrier* const barrier = barriers + sent % 2;
    if (thread == 0) hopper::arrive_expecting(barrier, kRows * c.share * 4);
    const std::uint32_t counted_by = gpu::shared_address(barrier);
    const std::uint32_t place = gpu::shared_address(sums + (sent % 2 * kCluster + rank) * kOwned * c.share);
    const int quads = c.share / 4;
    for (int i = thread; i < kRows * quads; i += kThreads) {
      const int row = i / quads, col = i % quads * 4;
      float4 total{};
      if (col < c.tiles * 8) {
        total = *reinterpret_cast<const float4*>(slots + row * c.stride + col);
#pragma unroll
        for (int s = 1; s < kParts; ++s) {
          const float4 v = *reinterpret_cast<const float4*>(slots + (s * kRows + row) * c.stride + col);
          total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
        }
      }
      const int owner = row / kOwned;
      send(address_in(place + (row % kOwned * c.share + col) * 4, owner), total,
           address_in(counted_by, owner));
    }
    ++sent;
  }

  // finish(first row) for each group of rows, when the sums of its product with `weights` (`to` columns) are
  // there; then() when the weights have been read for the last time. While a group's sums travel, the next
  // one is multiplied; where kTwo says that two groups' states fit beside the sums, it is fetched before.
  template <int kParts, bool kTwo, class Then, class Finish>
  __device__ void product(const Source& x, int to, Then&& then, Finish&& finish) {
    const Columns columns = columns_of<kParts>(to);
    const int tile_elements = kRows * (x.cols / kCluster + kGap);
    float* const slots = reinterpret_cast<float*>(states + (kTwo ? 2 * tile_elements : 0));
    if (rows > 0) fetch_states(states, x.from, x.cols, 0);
    for (int first = 0, turn = 0; first < rows; first += kRows, turn ^= 1) {
      T* const present = states + (kTwo && turn ? tile_elements : 0);
      const bool last = first + kRows >= rows;
      if (kTwo && !last) {
        fetch_states(states + (turn ? 0 : tile_elements), x.from, x.cols, first + kRows);
        if (x.parts) merge_norms(x.parts, x.norms, first);
        gpu::wait_for_groups<1>();
      } else {
        if (x.parts) merge_norms(x.parts, x.norms, first);
        gpu::wait_for_groups<0>();
      }
      __syncthreads();
      if (x.parts) normalize_states(present, x.norms, first);
      Sums sum;
      multiply<kParts>(sum, present, columns, x.cols);
      __syncthreads();
      if (last) then();
      if (first > 0) {
        wait_for_sums();
        finish(first - kRows);
      }
      send_sums<kParts>(sum, columns, slots);
      if (!kTwo && !last) {
        __syncthreads();
        fetch_states(states, x.from, x.cols, first + kRows);
      }
      if (!last) continue;
      wait_for_sums();
      finish(first);
    }
  }
  // Of the latest send_sums.
  __device__ void wait_for_sums() {
    wait_for_sent(barriers + (sent + 1) % 2, (sent - 1) / 2 % 2);
  }

  // done(row, column, exists, four sums) for what this block owns: a row a warp at a time, its columns in
  // neighbouring lanes.
  template <class Done>
  __device__ void for_owned(int to, int first, Done&& done) {
    const int share = share_of(to, clusters);
    const float* const received = sums + (sent + 1) % 2 * kRows * share;
    for (int r = warp; r < kOwned; r += kWarps) {
      const int row = first + rank * kOwned + r;
      for (int c = lane * 4; c < share + lane * 4; c += 128) {
        const int col = cluster * share + c;
        const bool exists = c < share && col < to && row < rows;
        float4 v{};
        if (exists) {
          v = *reinterpret_cast<const float4*>(received + r * share + c);
#pragma unroll
          for (int s = 1; s < kCluster; ++s) {
            const float4 x = *reinterpret_cast<const float4*>(received + (s * kOwned + r) * share + c);
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
          }
        }
        done(row, col, exists, v);
      }
    }
  }

  template <Activation activation>
  __device__ void finish_linear(const void* bias, void* out, int to, int first) {
    for_owned(to, first, [&](int row, int col, bool exists, float4 v) {
      if (!exists) return;
      const float4 b = load_four(bias, col);
      store_four(out, static_cast<std::int64_t>(row) * to + col,
                 {gpu::activate_for<activation, T>(v.x + b.x), gpu::activate_for<activation, T>(v.y + b.y),
                  gpu::activate_for<activation, T>(v.z + b.z), gpu::activate_for<activation, T>(v.w + b.w)});
    });
  }
  __device__ void finish_activated(const void* bias, void* out, int to, int first) {
    switch (p.activation) {
      case Activation::gelu_erf:
        return finish_linear<Activation::gelu_erf>(bias, out, to, first);
      case Activation::gelu_tanh:
        return finish_linear<Activation::gelu_tanh>(bias, out, to, first);
      default:
        return finish_linear<Activation::relu>(bias, out, to, first);
    }
  }

  // A residual connection's rows: as they are, or behind their norm.
  struct Residual {
    const void* rows;
    const float2* norms;  // null: as they are
    const void *weight, *bias;
  };
  __device__ float4 residual_at(const Residual& r, int row, int col) const {
    float4 v = load_four(r.rows, static_cast<std::int64_t>(row) * p.H + col);
    if (!r.norms) return v;
    const float2 norm = r.norms[row];
    const float4 weight = load_four(r.weight, col), bias = load_four(r.bias, col);
    return {fmaf((v.x - norm.x) * norm.y, weight.x, bias.x), fmaf((v.y - norm.x) * norm.y, weight.y, bias.y),
            fmaf((v.z - norm.x) * norm.y, weight.z, bias.z), fmaf((v.w - norm.x) * norm.y, weight.w, bias.w)};
  }
  // out = residual + product + bias, and what a norm has to know of these columns.
  __device__ void finish_sum(const void* bias, const Residual& residual, void* out, float2* parts,
                             int first) {
    const int share = share_of(p.H, clusters), cols = min(share, p.H - cluster * share);
    for_owned(p.H, first, [&](int row, int col, bool exists, const float4& v) {
      float4 x{};
      if (exists) {
        const float4 b = load_four(bias, col), r = residual_at(residual, row, col);
        x = store_four(out, static_cast<std::int64_t>(row) * p.H + col,
                       {v.x + b.x + r.x, v.y + b.y + r.y, v.z + b.z + r.z, v.w + b.w + r.w});
      }
      const float mean = gpu::warp_sum(x.x + x.y + x.z + x.w) / static_cast<float>(cols);
      float squares = 0;
      if (exists) {
        const float4 d{x.x - mean, x.y - mean, x.z - mean, x.w - mean};
        squares = fmaf(d.x, d.x, fmaf(d.y, d.y, fmaf(d.z, d.z, d.w * d.w)));
      }
      squares = gpu::warp_sum(squares);
      if (lane == 0 && exists) __stcg(parts + row * kMostClusters + cluster, {mean, squares});
    });
  }

  // A block takes 16·kQueryTiles queries of a head of a sequence; its warps share the keys and bring their
  // shares of the softmax together in the end.
  __device__ void attention() {
    constexpr int kStride = kHeadSize + kGap, kChunks = kHeadSize / 8, kQueries = 16 * kQueryTiles;
    const int row_elements = 3 * p.H;
    const float factor = p.scale * 1.4426950408889634f;
    int sequence = 0, tiles_before = 0;
    for (int item = static_cast<int>(blockIdx.x);; item += static_cast<int>(gridDim.x)) {
      const int head = item % p.heads, slot = item / p.heads;
      int begin = 0, length = 0;
      for (; sequence < p.S; ++sequence) {
        begin = min(max(__ldg(p.cu_seqlens + sequence), 0), rows);
        length = max(min(__ldg(p.cu_seqlens + sequence + 1), rows) - begin, 0);
        const int tiles = (length + kQueries - 1) / kQueries;
        if (slot < tiles_before + tiles) break;
        tiles_before += tiles;
      }
      if (sequence == p.S) return;
      const int first = (slot - tiles_before) * kQueries, keys = (length + 15) / 16 * 16;
      T* const q = states;
      T* const k = q + kQueries * kStride;
      T* const v = k + keys * kStride;
      const T* source = element(p.qkv, static_cast<std::int64_t>(begin) * row_elements + head * kHeadSize);
      const auto fetch = [&](T* to, const T* from, int row, int count) {
        for (int i = thread; i < count * kChunks; i += kThreads) {
          const int r = row + i / kChunks, chunk = i % kChunks * 8;
          const bool exists = r < length;
          gpu::copy_async<16>(to + i / kChunks * kStride + chunk,
                              from + (exists ? r * row_elements + chunk : 0), exists ? 16 : 0);
        }
      };
      fetch(q, source, first, kQueries);
      fetch(k, source + p.H, 0, keys);
      fetch(v, source + 2 * p.H, 0, keys);
      gpu::commit_copies();
      gpu::wait_for_groups<0>();
      __syncthreads();

      float o[kQueryTiles][kChunks][4] = {}, top[kQueryTiles][2], total[kQueryTiles][2];
#pragma unroll
      for (int m = 0; m < kQueryTiles; ++m) {
        top[m][0] = top[m][1] = -INFINITY;
        total[m][0] = total[m][1] = 0;
      }
      for (int key = warp * 16; key < keys; key += 16 * kWarps) {
        std::uint32_t fk[kHeadSize / 16][4], fp[kQueryTiles][4];
        const std::uint32_t k_row =
            gpu::shared_address(k + (key + lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8);
#pragma unroll
        for (int d = 0; d < kHeadSize / 16; ++d) gpu::load_matrices(fk[d], k_row + d * 32);
#pragma unroll
        for (int m = 0; m < kQueryTiles; ++m) {
          float x[2][4] = {};
          const std::uint32_t q_row = gpu::shared_address(q + (m * 16 + lane % 16) * kStride + lane / 16 * 8);
#pragma unroll
          for (int d = 0; d < kHeadSize / 16; ++d) {
            std::uint32_t fq[4];
            gpu::load_matrices(fq, q_row + d * 32);
            gpu::multiply<T>(x[0][0], x[0][1], x[0][2], x[0][3], fq, fk[d][0], fk[d][1]);
            gpu::multiply<T>(x[1][0], x[1][1], x[1][2], x[1][3], fq, fk[d][2], fk[d][3]);
          }
#pragma unroll
          for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              if (key + t * 8 + lane % 4 * 2 + e % 2 >= length) x[t][e] = -INFINITY;
            }
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float best = fmaxf(fmaxf(x[0][2 * h], x[0][2 * h + 1]), fmaxf(x[1][2 * h], x[1][2 * h + 1]));
            best = fmaxf(best, __shfl_xor_sync(gpu::kAllLanes, best, 1));
            best = fmaxf(best, __shfl_xor_sync(gpu::kAllLanes, best, 2));
            best = fmaxf(best, top[m][h]);
            const float shrink = gpu::exp2_16bit((top[m][h] - best) * factor);
            top[m][h] = best;
            float part = 0;
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
              for (int e = 2 * h; e < 2 * h + 2; ++e) {
                x[t][e] = gpu::exp2_16bit((x[t][e] - best) * factor);
                part += x[t][e];
              }
            }
            total[m][h] = fmaf(total[m][h], shrink, part);
#pragma unroll
            for (int d = 0; d < kChunks; ++d) o[m][d][2 * h] *= shrink, o[m][d][2 * h + 1] *= shrink;
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) fp[m][i] = gpu::pack<T>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
        }
        const std::uint32_t v_row = gpu::shared_address(v + (key + lane % 16) * kStride + lane / 16 * 8);
#pragma unroll
        for (int d = 0; d < kHeadSize / 16; ++d) {
          std::uint32_t fv[4];
          gpu::load_matrices_transposed(fv, v_row + d * 32);
#pragma unroll
          for (int m = 0; m < kQueryTiles; ++m) {
            float(&lower)[4] = o[m][2 * d];
            float(&upper)[4] = o[m][2 * d + 1];
            gpu::multiply<T>(lower[0], lower[1], lower[2], lower[3], fp[m], fv[0], fv[1]);
            gpu::multiply<T>(upper[0], upper[1], upper[2], upper[3], fp[m], fv[2], fv[3]);
          }
        }
      }
      __syncthreads();
      // The shares take the place of q, k and v; their maxima and sums, that of the received sums.
      float* const shares = reinterpret_cast<float*>(states);  // (kWarps, kQueries, kStride)
      float2* const tops = reinterpret_cast<float2*>(sums);    // (kWarps, kQueries)
      const int sharers = min(kWarps, keys / 16);
      if (warp < sharers) {
#pragma unroll
        for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = warp * kQueries + m * 16 + h * 8 + lane / 4;
            const float all = gpu::warp_sum<4>(total[m][h]);
            if (lane % 4 == 0) tops[r] = {top[m][h], all};
#pragma unroll
            for (int d = 0; d < kChunks; ++d) {
              *reinterpret_cast<float2*>(shares + r * kStride + d * 8 + lane % 4 * 2) = {o[m][d][2 * h],
                                                                                         o[m][d][2 * h + 1]};
            }
          }
        }
      }
      __syncthreads();
      for (int i = thread; i < kQueries * (kHeadSize / 4); i += kThreads) {
        const int r = i / (kHeadSize / 4), col = i % (kHeadSize / 4) * 4;
        if (first + r >= length) break;
        float best = -INFINITY, all = 0;
        for (int w = 0; w < sharers; ++w) best = fmaxf(best, tops[w * kQueries + r].x);
        float4 y{};
        for (int w = 0; w < sharers; ++w) {
          const float2 of = tops[w * kQueries + r];
          const float f = gpu::exp2_16bit((of.x - best) * factor);
          const float4 x = *reinterpret_cast<const float4*>(shares + (w * kQueries + r) * kStride + col);
          all = fmaf(f, of.y, all);
          y = {fmaf(f, x.x, y.x), fmaf(f, x.y, y.y), fmaf(f, x.z, y.z), fmaf(f, x.w, y.w)};
        }
        const float inverse = 1 / all;
        store_four(p.att, static_cast<std::int64_t>(begin + first + r) * p.H + head * kHeadSize + col,
                   {y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse});
      }
      __syncthreads();
    }
  }

  __device__ void run() {
    const int H = p.H, I = p.I;
    float2 *const end_norms = norms, *const mid_norms = norms + kMostRows;
    fetch_weights(p.layer[0].qkv_weight, 3 * H, H);
    for (int l = 0; l < p.layers; ++l) {
      const LayerData& layer = p.layer[l];
      const LayerData& before = p.layer[max(l - 1, 0)];
      const Source x{l > 0 ? p.end : p.in, H, l > 0 ? p.end_parts : nullptr, end_norms};
      product<kWideParts, true>(
          x, 3 * H, [&] { fetch_weights(layer.proj_weight, H, H); },
          [&](int first) { finish_linear<Activation::none>(layer.qkv_bias, p.qkv, 3 * H, first); });
      grid_barrier();
      attention();
      grid_barrier();
      const Residual of_x{x.from, l > 0 ? end_norms : nullptr, before.outnorm_weight, before.outnorm_bias};
      product<kNarrowParts, true>(
          {p.att, H}, H,
          [&] {
            fetch_weights(layer.fc_weight, I, H);
            fetch_affine(layer.attnorm_weight, layer.attnorm_bias);
          },
          [&](int first) { finish_sum(layer.proj_bias, of_x, p.mid, p.mid_parts, first); });
      grid_barrier();
      product<kWideParts, true>(
          {p.mid, H, p.mid_parts, mid_norms}, I, [&] { fetch_weights(layer.fcproj_weight, H, I); },
          [&](int first) { finish_activated(layer.fc_bias, p.fc, I, first); });
      grid_barrier();
      const Residual of_mid{p.mid, mid_norms, layer.attnorm_weight, layer.attnorm_bias};
      product<kNarrowParts, false>(
          {p.fc, I}, H,
          [&] {
            if (l + 1 == p.layers) return;
            fetch_weights(p.layer[l + 1].qkv_weight, 3 * H, H);
            fetch_affine(layer.outnorm_weight, layer.outnorm_bias);
          },
          [&](int first) { finish_sum(layer.fcproj_bias, of_mid, p.end, p.end_parts, first); });
      grid_barrier();
    }
    // The last norm, a row a warp.
    const LayerData& layer = p.layer[p.layers - 1];
    for (int row = static_cast<int>(blockIdx.x) * kWarps + warp; row < rows;
         row += static_cast<int>(gridDim.x) * kWarps) {
      const float2 norm = norm_of(p.end_parts, row);
      for (int col = lane * 4; col < H; col += 128) {
        const float4 x = load_four(p.end, static_cast<std::int64_t>(row) * H + col);
        const float4 weight = load_four(layer.outnorm_weight, col), bias = load_four(layer.outnorm_bias, col);
        store_four(
            p.out, static_cast<std::int64_t>(row) * H + col,
            {fmaf((x.x - norm.x) * norm.y, weight.x, bias.x), fmaf((x.y - norm.x) * norm.y, weight.y, bias.y),
             fmaf((x.z - norm.x) * norm.y, weight.z, bias.z),
             fmaf((x.w - norm.x) * norm.y, weight.w, bias.w)});
      }
    }
    leave();
  }
};

}  // namespace warpwright::ops::encoder_layers::cuda
