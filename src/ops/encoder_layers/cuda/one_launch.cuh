// The kernel of cuda.one_launch: a grid that stays for all layers, one block of eight warps on each
// multiprocessor, with a barrier of the whole grid between the steps.
//
// Clusters of four blocks share out the columns of every product; a cluster's blocks have a quarter of the
// depth each, and send their sums to the block that owns the rows (st.async, counted by its barrier in shared
// memory). A block's part of the weights is fetched while the steps before are at their ends. The norms are
// no steps of their own: who makes a row's columns leaves their mean and squared deviations, and who reads
// the row merges those (T. Chan et al., "Updating Formulae", 1979).
//
// A layer's four products are one piece of code with its sizes in registers, and its loops stay loops: a warp
// comes by once in a few microseconds, and what does not fit the instruction caches it waits for every time.
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
inline constexpr int kMostShare = 192;  // columns of a cluster
inline constexpr int kGap = 8;          // elements between rows in shared memory: no two of eight share banks

// A layer's products, in this order.
enum Product : int { kQkv, kProj, kFc, kFcproj, kProducts };

struct LayerData {
  const void *weight[kProducts], *bias[kProducts];
  const void *norm_weight[2], *norm_bias[2];  // behind proj, behind fcproj
};

struct Parameters {
  const void* in;                       // (N, H)
  void *out, *qkv, *att, *fc, *sum[2];  // (N, …): sum is what the two norms of a layer are of
  float2* parts[2];                     // (N, kMostClusters): mean and squared deviations of its columns
  const std::int32_t* cu_seqlens;
  unsigned* arrivals;  // 0 before and after
  int N, S, H, I, heads, layers;
  float eps, scale, inverse_H;
  Activation activation;
  int share[kProducts];                       // columns of a cluster
  int weight_bytes, state_bytes, sums_bytes;  // of shared memory
  LayerData layer[kMostLayers];
};

// Columns of a cluster, of `cols`.
inline int share_of(int cols, int clusters) {
  return (cols / 8 + clusters - 1) / clusters * 8;
}
// Floats between rows of partial sums: eight rows of a product's fragment fall into different banks.
__host__ __device__ inline int sums_stride(int share) {
  return share % 16 == 0 ? share + 8 : share;
}
// How many parts the warps of a block share the depth in; in each, what is left of them shares the columns.
inline constexpr int kMostParts = 4;
__host__ __device__ constexpr int parts_of(int product) {
  return product == kQkv || product == kFc ? 2 : kMostParts;
}
// Tiles of eight columns that a warp has at most.
constexpr int warp_tiles(int row_tiles) {
  return row_tiles > 2 ? 4 : 6;
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
  float2* norms;        // (2, kMostRows): mean and 1/deviation of rows of the two sums
  T* affine;            // (2, kMostDepth): a norm's weight and bias of this block's depth
  T* constants;         // (2, 3, kMostShare): bias and the residual's norm of the cluster's columns, by turns
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
    constants = reinterpret_cast<T*>(shared), shared += 6 * kMostShare * sizeof(T);
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

  __device__ int columns_of(int product) const {  // of its result
    return product == kQkv ? 3 * p.H : product == kFc ? p.I : p.H;
  }
  __device__ int depth_of(int product) const {  // that a block of a cluster has
    return (product == kFcproj ? p.I : p.H) / kCluster;
  }

  // Starts the copy of this cluster's rows, this rank's columns, of a weight, and of what is added to its
  // product.
  __device__ void fetch_weights(const LayerData& layer, const LayerData& before, int product) {
    const int depth = depth_of(product), from = depth * kCluster, share = p.share[product];
    const int first = cluster * share, count = min(share, columns_of(product) - first);
    const T* source = element(layer.weight[product], static_cast<std::int64_t>(first) * from + rank * depth);
#pragma unroll 1
    for (int row = warp; row < count; row += kWarps) {
#pragma unroll 1
      for (int chunk = lane * 8; chunk < depth; chunk += 256) {
        gpu::copy_async<16>(weights + row * (depth + kGap) + chunk,
                            source + static_cast<std::int64_t>(row) * from + chunk, 16);
      }
    }
    const void* const of = warp == 0                         ? layer.bias[product]
                           : product == kProj && warp == 1   ? before.norm_weight[1]
                           : product == kProj && warp == 2   ? before.norm_bias[1]
                           : product == kFcproj && warp == 1 ? layer.norm_weight[0]
                           : product == kFcproj && warp == 2 ? layer.norm_bias[0]
                                                             : nullptr;
    if (of && lane * 8 < count) {
      gpu::copy_async<16>(constants_of(product) + warp * kMostShare + lane * 8, element(of, first + lane * 8),
                          16);
    }
    gpu::commit_copies();
  }
  __device__ T* constants_of(int product) const {
    return constants + product % 2 * 3 * kMostShare;
  }
  __device__ static float4 four(const T* at) {
    const auto x = gpu::Packed<T, 4>::load(at);
    return {x[0], x[1], x[2], x[3]};
  }
  __device__ void fetch_affine(const LayerData& layer, int norm) {
    const int depth = p.H / kCluster, chunk = thread % (kThreads / 2) * 8;
    if (chunk < depth) {
      const bool is_bias = thread >= kThreads / 2;
      gpu::copy_async<16>(
          affine + (is_bias ? kMostDepth : 0) + chunk,
          element(is_bias ? layer.norm_bias[norm] : layer.norm_weight[norm], rank * depth + chunk), 16);
    }
    gpu::commit_copies();
  }
  // Starts the copy of rows [first, first + kRows), this rank's columns; zeros behind the last row.
  __device__ void fetch_states(T* to, const void* from, int depth, int first) {
    const T* source = element(from, rank * depth);
#pragma unroll 1
    for (int row = warp; row < kRows; row += kWarps) {
      const bool exists = first + row < rows;
      const T* line = source + (exists ? static_cast<std::int64_t>(first + row) * depth * kCluster : 0);
#pragma unroll 1
      for (int chunk = lane * 8; chunk < depth; chunk += 256) {
        gpu::copy_async<16>(to + row * (depth + kGap) + chunk, line + chunk, exists ? 16 : 0);
      }
    }
    gpu::commit_copies();
  }

  // Of lanes' parts of a row.
  __device__ float2 norm_of(float2 part) const {
    const auto cols = static_cast<float>(
        min(max(p.H - lane * p.share[kProj], 0), p.share[kProj]));  // of the lane's cluster
    const float mean = gpu::warp_sum(cols * part.x) * p.inverse_H;
    const float apart = cols > 0 ? part.x - mean : 0.0f;
    const float squares = gpu::warp_sum(fmaf(cols * apart, apart, part.y));
    return {mean, rsqrtf(fmaf(squares, p.inverse_H, p.eps))};
  }
  __device__ float2 load_part(const float2* parts, int row) const {
    return lane * p.share[kProj] < p.H ? __ldcg(parts + row * kMostClusters + lane) : float2{0, 0};
  }
  // Of rows [first, first + kRows), a row a warp at a time.
  __device__ void merge_norms(int norm, int first) {
    constexpr int kEach = kRows / kWarps;
    float2 part[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      part[i] = load_part(p.parts[norm], min(first + warp + i * kWarps, rows - 1));
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = first + warp + i * kWarps;
      const float2 merged = norm_of(part[i]);
      if (lane == 0 && row < rows) norms[norm * kMostRows + row] = merged;
    }
  }
  __device__ void normalize_states(T* states_of, int norm, int first) {
    const int depth = p.H / kCluster, count = min(kRows, rows - first);
#pragma unroll 1
    for (int chunk = lane * 8; chunk < depth; chunk += 256) {
      const auto weight = gpu::Packed<T>::load(affine + chunk),
                 bias = gpu::Packed<T>::load(affine + kMostDepth + chunk);
#pragma unroll 1
      for (int row = warp; row < count; row += kWarps) {
        T* const at = states_of + row * (depth + kGap) + chunk;
        const auto x = gpu::Packed<T>::load(at);
        const float2 of = norms[norm * kMostRows + first + row];
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = fmaf((x[i] - of.x) * of.y, weight[i], bias[i]);
        gpu::Packed<T>::from_floats(y).store(at);
      }
    }
    __syncthreads();
  }

  using Sums = float[kRowTiles][kWarpTiles][4];
  // A warp's part of a product: the warps share the depth in `parts`, and the columns in kWarps/parts.
  struct Columns {
    int share, tiles;  // of the cluster; of 8 columns, that exist
    int parts, part;   // of the depth; the warp's
    int tile, count;   // the warp's
    int stride;        // of its sums in shared memory
  };
  __device__ Columns columns_of_warp(int product) const {
    Columns c;
    c.share = p.share[product], c.stride = sums_stride(c.share);
    c.tiles =
        max(min(c.share, columns_of(product) - cluster * c.share), 0) / 8;  // fewer in the last clusters
    c.parts = parts_of(product), c.part = warp & (c.parts - 1);
    const int shift = c.parts == 2 ? 2 : 1, per_warp = (c.tiles + (1 << shift) - 1) >> shift;
    c.tile = (warp >> (3 - shift)) * per_warp, c.count = min(per_warp, c.tiles - c.tile);
    return c;
  }
  __device__ void multiply(Sums& sum, const T* states_of, const Columns& c, int depth) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int t = 0; t < kWarpTiles; ++t) sum[m][t][0] = sum[m][t][1] = sum[m][t][2] = sum[m][t][3] = 0;
    }
    if (c.count <= 0) return;
    const int stride = depth + kGap, steps = depth / 16;
    const std::uint32_t a = gpu::shared_address(states_of + lane % 16 * stride + lane / 16 * 8);
    const std::uint32_t b =
        gpu::shared_address(weights + (c.tile * 8 + lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
#pragma unroll 2
    for (int s = c.part; s < steps; s += c.parts) {
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
    // As many lanes to a row as it has fours, up to the next power of two.
    const int shift = c.share <= 32 ? 3 : c.share <= 64 ? 4 : 5, at_once = kThreads >> shift;
    const int first_col = (thread & ((1 << shift) - 1)) * 4;
#pragma unroll 1
    for (int row = thread >> shift; row < kRows; row += at_once) {
      const int owner = row / kOwned;
      const std::uint32_t to = address_in(place + row % kOwned * c.share * 4, owner);
      const std::uint32_t count = address_in(counted_by, owner);
#pragma unroll 1
      for (int col = first_col; col < c.share; col += 4 << shift) {
        float4 total{};
        if (col < c.tiles * 8) {
          const float* at = slots + row * c.stride + col;
          total = *reinterpret_cast<const float4*>(at);
#pragma unroll
          for (int part = 1; part < kMostParts; ++part) {
            if (part >= c.parts) break;
            const float4 v = *reinterpret_cast<const float4*>(at + part * kRows * c.stride);
            total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
          }
        }
        send(to + col * 4, total, count);
      }
    }
    ++sent;
  }
  // Of the latest send_sums.
  __device__ void wait_for_sums() {
    wait_for_sent(barriers + (sent + 1) % 2, (sent - 1) / 2 % 2);
  }

  __device__ float activated(float x, Activation activation) const {
    switch (activation) {
      case Activation::none:
        return x;
      case Activation::gelu_erf:
        return gpu::activate_for<Activation::gelu_erf, T>(x);
      case Activation::gelu_tanh:
        return gpu::activate_for<Activation::gelu_tanh, T>(x);
      default:
        return gpu::relu(x);
    }
  }

  // What becomes of a product's sums.
  struct Finish {
    void* out;
    int cols;
    Activation activation;
    const void* residual;  // (N, H), or null: then act(sum + bias), else sum + bias + residual
    int norm_before;       // that the residual is behind, or −1
    float2* parts;         // of the norm to come
  };
  // Of rows [first, first + kRows) and the cluster's columns, those that this block owns: a row a warp at a
  // time.
  __device__ void finish(const Finish& f, int product, int first) {
    const int share = p.share[product];
    const float* const received = sums + (sent + 1) % 2 * kRows * share;
    const T* const added = constants_of(product);
#pragma unroll 1
    for (int r = warp; r < kOwned; r += kWarps) {
      const int row = first + rank * kOwned + r;
      if (row >= rows) break;
#pragma unroll 1
      for (int c = lane * 4; c < share + lane * 4; c += 128) {
        const int col = cluster * share + c;
        const bool exists = c < share && col < f.cols;
        float4 v{};
        if (exists && f.residual) v = load_four(f.residual, static_cast<std::int64_t>(row) * p.H + col);
        wait_for_sums();
        if (exists) {
          if (f.norm_before >= 0) {
            const float2 norm = norms[f.norm_before * kMostRows + row];
            const float4 weight = four(added + kMostShare + c), bias = four(added + 2 * kMostShare + c);
            v = {fmaf((v.x - norm.x) * norm.y, weight.x, bias.x),
                 fmaf((v.y - norm.x) * norm.y, weight.y, bias.y),
                 fmaf((v.z - norm.x) * norm.y, weight.z, bias.z),
                 fmaf((v.w - norm.x) * norm.y, weight.w, bias.w)};
          }
          const float4 bias = four(added + c);
          v = {v.x + bias.x, v.y + bias.y, v.z + bias.z, v.w + bias.w};
#pragma unroll
          for (int s = 0; s < kCluster; ++s) {
            const float4 x = *reinterpret_cast<const float4*>(received + (s * kOwned + r) * share + c);
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
          }
          if (f.activation != Activation::none) {
            v = {activated(v.x, f.activation), activated(v.y, f.activation), activated(v.z, f.activation),
                 activated(v.w, f.activation)};
          }
          v = store_four(f.out, static_cast<std::int64_t>(row) * f.cols + col, v);
        }
        if (!f.residual) continue;
        const auto cols = static_cast<float>(min(share, p.H - cluster * share));
        const float mean = gpu::warp_sum(v.x + v.y + v.z + v.w) * gpu::reciprocal(cols);
        const float4 d{v.x - mean, v.y - mean, v.z - mean, v.w - mean};
        const float squares =
            gpu::warp_sum(exists ? fmaf(d.x, d.x, fmaf(d.y, d.y, fmaf(d.z, d.z, d.w * d.w))) : 0.0f);
        if (lane == 0 && exists) __stcg(f.parts + row * kMostClusters + cluster, {mean, squares});
      }
    }
    wait_for_sums();  // who owns no row waits, too, before it sends into the same place again
  }

  // Of rows of `from`, normalized by what `norm` says (−1: as they are). then() is called when the weights
  // have been read for the last time. While a group's sums travel, the next one is multiplied; where the
  // states of two fit beside the sums, it is fetched before.
  template <class Then>
  __device__ void multiply_all(int product, const void* from, int norm, const Finish& f, Then&& then) {
    const Columns columns = columns_of_warp(product);
    const bool two = product != kFcproj;
    const int depth = depth_of(product), tile_elements = kRows * (depth + kGap);
    float* const slots = reinterpret_cast<float*>(states + (two ? 2 * tile_elements : 0));
    if (rows > 0) fetch_states(states, from, depth, 0);
#pragma unroll 1
    for (int first = 0, turn = 0; rows > 0; first += kRows, turn ^= 1) {
      const bool exists = first < rows, last = first + kRows >= rows;
      Sums sum;
      if (exists) {
        T* const present = states + (two && turn ? tile_elements : 0);
        if (two && !last) fetch_states(states + (turn ? 0 : tile_elements), from, depth, first + kRows);
        if (norm >= 0) merge_norms(norm, first);
        if (two && !last) {
          gpu::wait_for_groups<1>();
        } else {
          gpu::wait_for_groups<0>();
        }
        __syncthreads();
        if (norm >= 0) normalize_states(present, norm, first);
        multiply(sum, present, columns, depth);
        __syncthreads();
        if (last) then();
      }
      if (first > 0) finish(f, product, first - kRows);
      if (!exists) break;
      send_sums(sum, columns, slots);
      if (!two && !last) {
        __syncthreads();
        fetch_states(states, from, depth, first + kRows);
      }
    }
  }

  // A block takes 16·kQueryTiles queries of a head of a sequence; its warps share the keys and bring their
  // shares of the softmax together in the end.
  __device__ void attention() {
    constexpr int kStride = kHeadSize + kGap, kChunks = kHeadSize / 8, kQueries = 16 * kQueryTiles;
    const int row_elements = 3 * p.H;
    const float factor = p.scale * 1.4426950408889634f;
    int sequence = 0, tiles_before = 0;
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x);; item += static_cast<int>(gridDim.x)) {
      const int head = item % p.heads, slot = item / p.heads;
      int begin = 0, length = 0;
#pragma unroll 1
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
#pragma unroll 1
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
#pragma unroll 1
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
#pragma unroll 1
      for (int i = thread; i < kQueries * (kHeadSize / 4); i += kThreads) {
        const int r = i / (kHeadSize / 4), col = i % (kHeadSize / 4) * 4;
        if (first + r >= length) break;
        float best = -INFINITY, all = 0;
#pragma unroll 1
        for (int w = 0; w < sharers; ++w) best = fmaxf(best, tops[w * kQueries + r].x);
        float4 y{};
#pragma unroll 1
        for (int w = 0; w < sharers; ++w) {
          const float2 of = tops[w * kQueries + r];
          const float f = gpu::exp2_16bit((of.x - best) * factor);
          const float4 x = *reinterpret_cast<const float4*>(shares + (w * kQueries + r) * kStride + col);
          all = fmaf(f, of.y, all);
          y = {fmaf(f, x.x, y.x), fmaf(f, x.y, y.y), fmaf(f, x.z, y.z), fmaf(f, x.w, y.w)};
        }
        const float inverse = gpu::reciprocal(all);
        store_four(p.att, static_cast<std::int64_t>(begin + first + r) * p.H + head * kHeadSize + col,
                   {y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse});
      }
      __syncthreads();
    }
  }

  __device__ void run() {
    fetch_weights(p.layer[0], p.layer[0], kQkv);
    const void* x = p.in;
#pragma unroll 1
    for (int step = 0; step < kProducts * p.layers; ++step) {
      const int product = step % kProducts, l = step / kProducts;
      const LayerData& layer = p.layer[l];
      const LayerData& next = p.layer[(step + 1) / kProducts % p.layers];
      const int norm_of_x = l > 0 ? 1 : -1;
      const void* const from = product == kQkv    ? x
                               : product == kProj ? p.att
                               : product == kFc   ? p.sum[0]
                                                  : p.fc;
      Finish f{};
      f.out = product == kQkv ? p.qkv : product == kProj ? p.sum[0] : product == kFc ? p.fc : p.sum[1];
      f.cols = columns_of(product);
      f.activation = product == kFc ? p.activation : Activation::none;
      if (product == kProj) f.residual = x, f.parts = p.parts[0];
      if (product == kFcproj) f.residual = p.sum[0], f.parts = p.parts[1];
      f.norm_before = product == kProj ? norm_of_x : product == kFcproj ? 0 : -1;
      const int norm = product == kQkv ? norm_of_x : product == kFc ? 0 : -1;
      multiply_all(product, from, norm, f, [&] {
        if (step + 1 == kProducts * p.layers) return;
        fetch_weights(next, p.layer[max((step + 1) / kProducts - 1, 0)], (step + 1) % kProducts);
        if (product == kProj) fetch_affine(layer, 0);
        if (product == kFcproj) fetch_affine(layer, 1);
      });
      if (product == kFcproj) x = p.sum[1];
      grid_barrier();
      if (product != kQkv) continue;
      attention();
      grid_barrier();
    }
    // The last norm, a row a warp.
    const LayerData& layer = p.layer[p.layers - 1];
    for (int row = static_cast<int>(blockIdx.x) * kWarps + warp; row < rows;
         row += static_cast<int>(gridDim.x) * kWarps) {
      const float2 norm = norm_of(load_part(p.parts[1], row));
#pragma unroll 1
      for (int col = lane * 4; col < p.H; col += 128) {
        const float4 x = load_four(p.sum[1], static_cast<std::int64_t>(row) * p.H + col);
        const float4 weight = load_four(layer.norm_weight[1], col), bias = load_four(layer.norm_bias[1], col);
        store_four(
            p.out, static_cast<std::int64_t>(row) * p.H + col,
            {fmaf((x.x - norm.x) * norm.y, weight.x, bias.x), fmaf((x.y - norm.x) * norm.y, weight.y, bias.y),
             fmaf((x.z - norm.x) * norm.y, weight.z, bias.z),
             fmaf((x.w - norm.x) * norm.y, weight.w, bias.w)});
      }
    }
    leave();
  }
};

}  // namespace warpwright::ops::encoder_layers::cuda
