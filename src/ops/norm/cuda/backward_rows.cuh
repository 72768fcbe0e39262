// The backward of a normalization in which a warp, the warps of a block, or a cluster of blocks owns a row.
// Rows are copied to shared memory ahead of their turn, because dweight and dbias occupy the registers.
//
// Memory-bound: 3 passes over the tensor (dout, x or out, dx; a 4th if something is added). Each block or
// cluster also writes a row of 2·C floats, its part of dweight and dbias, which column_sums.cuh adds up.
//
// Besides bandwidth, the rate at which instructions are issued limits this kernel. Everything that a warp
// holds in shared memory is therefore at constant distances from two addresses, and weights are converted to
// floats in registers before the first row.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "ops/norm/cuda/backward_shared.cuh"
#include "ops/norm/cuda/backward_sums.cuh"
#include "ops/norm/cuda/lost_columns.cuh"

namespace warpwright::ops::norm::cuda {

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct BackwardRows {
  const O *dout, *out;  // out: replaces x
  const X *x, *addend;  // addend: added to dx, or null; may be dx
  const P *weight, *bias;
  const float *mean, *rstd;
  X* dx;
  float* parts;  // (blocks or clusters, 2, C)
  KeptColumns<X> kept;
  LostRule<float> lost;
  std::int64_t N;
  int C;
  bool centered, streaming;
};

// The owner of a row; the number of its packs per lane; and whether few enough warps run (RowShape::roomy) to
// keep the packs in registers between the passes, and the bias between rows. Plain: rows are not centered and
// have no bias.
template <int packs_, Share share_, bool roomy_ = false, bool plain_ = false>
struct BackwardForm {
  static constexpr int packs = packs_;
  static constexpr Share share = share_;
  static constexpr bool one_warp = share == Share::warp, roomy = roomy_, plain = plain_;
  // A cluster computes the sums of the next row before it computes dx of the current one. This hides the time
  // in which sums travel between blocks.
  static constexpr bool ahead = share == Share::cluster;
  static constexpr bool keeps = roomy && !ahead;
  static constexpr int stages = ahead ? kClusterStages : kBackwardStages;
  static constexpr int warps = roomy && packs > 2 ? kRoomyWarps : kBackwardWarps;  // per multiprocessor
  static constexpr int most_threads = one_warp ? kOneWarpThreads : warps * gpu::kWarp;
  static constexpr int least_blocks =
      packs == kWideWarpPacks ? kWideWarpBlocks : warps * gpu::kWarp / most_threads;
};

template <int N>
__device__ void add_floats(float (&to)[N], const float* p) {
  float values[N];
  gpu::load_floats(p, values);
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] += values[j];
}

// Persistent. The grid depends only on problem and device. Each thread accumulates dweight and dbias of its
// columns over its group's rows in registers. Then the groups of a block add theirs in order.
//
// From the output, t = out − bias is used, with x̂ = t/weight: Σ g·x̂ = Σ dout·t, dweight = Σ dout·t /
// weight. If a column is lost and kept, x̂ (rounded to out's dtype, like all of out) replaces out, the bias
// is 0 and the inverse weight is 1; put_kept_sums() recomputes its dweight. If a column is lost and not kept,
// its inverse weight is NaN.
template <class X, class P, class O, class Form, bool from_out>
class BackwardGroup {
 public:
  using Shared = BackwardShared<X, P, O, Form, from_out>;
  using Sums = SumOfBoth<Form::share>;

  __device__ BackwardGroup(const BackwardRows<X, P, O>& rows, int warps, uint4* shared,
                           typename Sums::Shared* shared_sums)
      : a(rows),
        lane(static_cast<int>(threadIdx.x) % gpu::kWarp),
        warp(static_cast<int>(threadIdx.x) / gpu::kWarp),
        block_warps(one_warp ? kOneWarpThreads / gpu::kWarp : warps),
        mine(shared, block_warps, warp, lane),
        rank(Form::share == Share::cluster ? rank_in_cluster() : 0),
        cluster(Form::share == Share::cluster ? blocks_of_cluster() : 1),
        first_pack((one_warp ? 0 : (rank * warps + warp) * packs * gpu::kWarp) + lane),
        column(first_pack * kLanes),
        left(a.C / kLanes - first_pack),
        teams(one_warp ? block_warps : 1),
        team(one_warp ? warp : 0),
        groups(static_cast<int>(gridDim.x) / cluster * teams),
        group(static_cast<int>(blockIdx.x) / cluster * teams + team),
        inverse_C(1.0f / static_cast<float>(a.C)),
        priority(l2_priority(a.streaming)),
        sums(shared_sums, warps) {
    clear_rows();
    copy_first_rows();
    read_parameters();
    if constexpr (from_out) invert_weights();
  }

  __device__ void run() {
    if constexpr (Form::share == Share::cluster) hopper::cluster_barrier();  // until all barriers exist
    if constexpr (Form::ahead) {
      __pipeline_wait_prior(stages - 2);
      if (group < a.N) take_sums(group, 0, 0);
    }
    int stage = 0;
    unsigned turn = 0;
    for (std::int64_t row = group; row < a.N; row += groups, ++turn) {
      const int next = stage + 1 == stages ? 0 : stage + 1;
      const std::int64_t later = row + static_cast<std::int64_t>(stages - 1) * groups;
      copy_row(later, stage == 0 ? stages - 1 : stage - 1);
      if constexpr (from_out) {
        if (kept != 0) patch_soon(later);
      }
      if constexpr (Form::ahead) {
        __pipeline_wait_prior(stages - 2);
        if (row + groups < a.N) take_sums(row + groups, next, turn + 1);
      } else {
        __pipeline_wait_prior(stages - 1);
        take_sums(row, stage, turn);
        // No thread reads another thread's data. This makes the compiler read the row again instead of
        // keeping it in registers.
        if constexpr (one_warp) __syncwarp();
      }
      put_dx(row, stage, turn);
      stage = next;
    }
    __pipeline_wait_prior(0);
  }

  // Writes the part of dweight and dbias of this block or cluster. The teams of a block add theirs in order.
  __device__ void put_part(float* shared) {
    if constexpr (from_out) scale_dweight();
    float* part = a.parts + static_cast<std::int64_t>(blockIdx.x / cluster) * 2 * a.C;
    float* to = one_warp ? shared : part;
    for (int turn = 0; turn < teams; ++turn) {
      if constexpr (one_warp) __syncthreads();
      if (team != turn) continue;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (!inside(k)) continue;
        float *w = to + column + k * kStep, *b = w + a.C;
        if (turn > 0) {
          add_floats(dweight[k], w);
          add_floats(dbias[k], b);
        }
        gpu::store_floats(w, dweight[k]);
        gpu::store_floats(b, dbias[k]);
      }
    }
    if constexpr (one_warp) {
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x) * 4; c < 2 * a.C; c += kOneWarpThreads * 4) {
        gpu::Packed<float>::load(to + c).store(part + c);
      }
    }
    // No block may exit while another one could still send to it.
    if constexpr (Form::share == Share::cluster) hopper::cluster_barrier();
  }

 private:
  using Y = typename Shared::Y;
  static constexpr bool one_warp = Form::one_warp;
  static constexpr int packs = Form::packs, stages = Form::stages;
  static constexpr int kLanes = Shared::kLanes, kDout = Shared::kDout, kStep = gpu::kWarp * kLanes;
  // Weights are held in registers, as floats or packed. In the few kernels they are read again for each row,
  // from the first-level cache.
  static constexpr bool kHeld =
      !few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X));
  // If 16-bit weights are held packed, the registers suffice to keep out − bias between the passes, but not
  // dout.
  static constexpr bool kPacked =
      from_out && kHeld && sizeof(X) == 2 && packs == 3 && Form::share == Share::block && !Form::roomy;
  static constexpr bool kKeepsY = Form::keeps || kPacked;
  // Packs after the row's end need no condition: their data are zeros and their weights 1. This does not hold
  // for a bias in shared memory, which is undefined there.
  static constexpr bool kEverywhere = kHeld && !(from_out && Shared::kBiasInShared) && packs < kWideWarpPacks;

  __device__ bool inside(int k) const {
    return k * gpu::kWarp < left;
  }

  __device__ void clear_rows() {
    for (int i = 0; i < stages * packs * Shared::kUnits; ++i) mine.rows[i * gpu::kWarp] = uint4{0, 0, 0, 0};
    for (int i = 0; i < stages; ++i) mine.statistics[i * gpu::kWarp].x = 0;
  }

  __device__ void copy_row(std::int64_t row, int stage) const {
    if (row < a.N) {
      const std::int64_t first = row * a.C + column;
      const O* dout = a.dout + first;
      const Y* y;
      if constexpr (from_out) {
        y = a.out + first;
      } else {
        y = a.x + first;
      }
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (!inside(k)) continue;
        copy_to_shared<O, kLanes>(mine.at(stage, k, 0), dout + k * kStep, priority);
        copy_to_shared<Y, kLanes>(mine.at(stage, k, kDout), y + k * kStep, priority);
      }
      if (a.addend) {
#pragma unroll
        for (int k = 0; k < packs; ++k) {
          if (!inside(k)) continue;
          copy_to_shared<X, kLanes>(mine.addends + (stage * packs + k) * gpu::kWarp,
                                    a.addend + first + k * kStep, priority);
        }
      }
      float2* statistic = mine.statistics + stage * gpu::kWarp;
      if (a.mean) __pipeline_memcpy_async(&statistic->x, a.mean + row, sizeof(float));
      __pipeline_memcpy_async(&statistic->y, a.rstd + row, sizeof(float));
    }
    __pipeline_commit();
  }
  // These copies run while the parameters are read.
  __device__ void copy_first_rows() const {
    for (int i = 0; i < stages - 1; ++i) copy_row(group + i * groups, i);
  }

  __device__ void read_weight(int k) {
    packed_weights[k] = a.weight && inside(k) ? Lanes<P, kLanes>::load(a.weight + column + k * kStep)
                                              : Lanes<P, kLanes>::filled(1);
  }
  __device__ void read_parameters() {
    if constexpr (from_out) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        biases[k] = a.bias && inside(k) ? Lanes<P, kLanes>::load(a.bias + column + k * kStep)
                                        : Lanes<P, kLanes>::filled(0);
      }
    }
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        read_weight(k);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          weights[k][j] = packed_weights[k][j];
          if constexpr (!kPacked) asm volatile("" : "+f"(weights[k][j]));  // prevents a second conversion
        }
      }
    }
  }
  __device__ void weight_of(int k, float (&to)[kLanes]) {
    if constexpr (!kHeld) read_weight(k);
    if constexpr (kPacked) packed_weights[k].forget();
#pragma unroll
    for (int j = 0; j < kLanes; ++j) to[j] = kHeld && !kPacked ? weights[k][j] : packed_weights[k][j];
  }
  __device__ void inverse_of(int k, float (&to)[kLanes]) const {
    const auto floats = lanes_from_shared<float, kLanes>(mine.inverse + k * Shared::kFloats);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) to[j] = floats[j];
  }
  __device__ Lanes<P, kLanes> bias_of(int k) {
    if constexpr (Shared::kBiasInShared) {
      return lanes_from_shared<P, kLanes>(mine.bias + k * Shared::kBias);
    } else {
      biases[k].forget();
      return biases[k];
    }
  }

  // For the backward from the output: computes `kept`, and 1/weight and bias as they are applied to the rows.
  __device__ void invert_weights() {
    static_assert(packs * kLanes <= 32);
    const int places = a.kept.places();
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float w[kLanes], inverses[kLanes], shifts[kLanes];
      weight_of(k, w);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        inverses[j] = 1.0f / w[j];
        shifts[j] = biases[k][j];
        if (a.lost(w[j], biases[k][j])) {
          const bool has_place = a.kept.place(column + k * kStep + j, places) >= 0;
          inverses[j] = has_place ? 1.0f : __int_as_float(0x7fffffff);
          if (has_place) {
            shifts[j] = 0;
            kept |= 1u << (k * kLanes + j);
          }
        }
      }
      biases[k] = Lanes<P, kLanes>::from_floats(shifts);
      if (one_warp && warp > 0) continue;
      lanes_to_shared<float>(mine.inverse + k * Shared::kFloats, inverses);
      if constexpr (Shared::kBiasInShared) lanes_to_shared<P>(mine.bias + k * Shared::kBias, shifts);
    }
    if constexpr (one_warp) __syncthreads();
  }

  // Replaces out of the kept columns by x̂. Returns the difference between Σ g·x̂ and Σ dout·t for them.
  __device__ float patch(std::int64_t row, int stage, float2 statistic) const {
    constexpr int kEach = Lanes<O, kLanes>::kEach;
    const int places = a.kept.places();
    float lacking = 0;
    for (unsigned bits = kept; bits != 0; bits &= bits - 1) {
      const int bit = __ffsll(bits) - 1, k = bit / kLanes, j = bit % kLanes;
      const int c = column + k * kStep + j;
      const float x = gpu::to_float(a.kept.values[row * a.kept.capacity + a.kept.place(c, places)]);
      auto* y = reinterpret_cast<O*>(mine.at(stage, k, kDout + j / kEach)) + j % kEach;
      *y = gpu::from_float<O>((x - statistic.x) * statistic.y);
      const O dout = reinterpret_cast<const O*>(mine.at(stage, k, j / kEach))[j % kEach];
      const float w = a.weight ? gpu::to_float(a.weight[c]) : 1.0f;
      lacking += gpu::to_float(dout) * gpu::to_float(*y) * (w - 1);
    }
    asm volatile("" ::: "memory");  // the row is read in other units than it was patched in
    return lacking;
  }
  // Prefetches a row's kept values, which lie in one or a few lines, into L2 while the rows before it are
  // processed.
  __device__ void patch_soon(std::int64_t row) const {
    if (row >= a.N) return;
    constexpr int kLine = 128 / sizeof(X);
    const X* values = a.kept.values + row * a.kept.capacity;
    for (int i = 0; i < a.kept.places(); i += kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
    }
  }

  // Processes a row that has arrived: adds its contribution to dweight and dbias and sends its two sums.
  __device__ void take_sums(std::int64_t row, int stage, unsigned turn) {
    const float2 statistic = mine.statistics[stage * gpu::kWarp];
    float2 both{0, 0};  // Σ g, Σ g·x̂
    if constexpr (from_out) {
      if (kept != 0) both.y = patch(row, stage, statistic);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!kEverywhere && !inside(k)) continue;
      const float2 part = take_pack(stage, k, statistic);  // makes the packs' additions independent
      both.x += part.x;
      both.y += part.y;
    }
    sums.send(both.x, both.y, turn);
  }
  __device__ float2 take_pack(int stage, int k, float2 statistic) {
    const auto dout = lanes_from_shared<O, kLanes>(mine.at(stage, k, 0));
    const auto y = lanes_from_shared<Y, kLanes>(mine.at(stage, k, kDout));
    float w[kLanes];
    weight_of(k, w);
    float2 part{0, 0};
    [[maybe_unused]] Lanes<P, kLanes> b;
    if constexpr (from_out && !Form::plain) b = bias_of(k);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float d = dout[j];
      float t;
      if constexpr (from_out) {
        t = Form::plain ? y[j] : y[j] - b[j];
        if constexpr (!Form::plain) part.x = fmaf(d, w[j], part.x);
        part.y = fmaf(d, t, part.y);
        dweight[k][j] = fmaf(d, t, dweight[k][j]);
      } else {
        t = Form::plain ? y[j] : y[j] - statistic.x;
        const float normalized = t * statistic.y, g = d * w[j];
        if constexpr (!Form::plain) part.x += g;
        part.y = fmaf(g, normalized, part.y);
        dweight[k][j] = fmaf(d, normalized, dweight[k][j]);
      }
      if constexpr (!Form::plain) dbias[k][j] += d;
      if constexpr (Form::keeps) kept_dout[k][j] = d;
      if constexpr (kKeepsY) kept_y[k][j] = t;
    }
    return part;
  }

  __device__ void put_dx(std::int64_t row, int stage, unsigned turn) {
    const float2 sum = sums.get(turn), statistic = mine.statistics[stage * gpu::kWarp];
    const float mean = statistic.x, rstd = statistic.y;
    const float mean_g = !Form::plain && a.centered ? sum.x * inverse_C : 0.0f, mean_gx = sum.y * inverse_C;
    const float slope = from_out ? -mean_gx : -mean_gx * rstd;
    X* dx = a.dx + row * a.C + column;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float w[kLanes], gradient[kLanes], d[kLanes], t[kLanes];
      const auto dout = lanes_from_shared<O, kLanes>(mine.at(stage, k, 0));
      const auto y = lanes_from_shared<Y, kLanes>(mine.at(stage, k, kDout));
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        d[j] = Form::keeps ? kept_dout[k][j] : dout[j];
        t[j] = kKeepsY ? kept_y[k][j] : Form::plain ? y[j] : y[j] - mean;
      }
      if constexpr (from_out && !Form::plain && !kKeepsY) {
        const auto b = bias_of(k);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) t[j] = y[j] - b[j];
      }
      weight_of(k, w);
      if constexpr (from_out) {
        float inverses[kLanes];
        inverse_of(k, inverses);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) t[j] *= inverses[j];
      }
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float g = Form::plain ? d[j] * w[j] : fmaf(d[j], w[j], -mean_g);
        gradient[j] = rstd * fmaf(t[j], slope, g);
      }
      if (a.addend) {
        const auto addend = lanes_from_shared<X, kLanes>(mine.addends + (stage * packs + k) * gpu::kWarp);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) gradient[j] += addend[j];
      }
      Lanes<X, kLanes>::from_floats(gradient).store(dx + k * kStep, a.streaming);
    }
  }

  __device__ void scale_dweight() {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float inverses[kLanes];
      inverse_of(k, inverses);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) dweight[k][j] *= inverses[j];
    }
  }

  const BackwardRows<X, P, O>& a;
  int lane, warp, block_warps;
  Shared mine;
  int rank, cluster;  // of this block in its cluster; blocks of the cluster
  int first_pack;     // the lane's first pack in the row; the packs of a warp are contiguous
  int column, left;   // first column of that pack; packs from there to the row's end
  int teams, team;    // warps or blocks that have their own rows: number in the block, and index
  int groups, group;  // the same for the grid
  float inverse_C;
  std::uint64_t priority;
  Sums sums;
  float weights[packs][kLanes];
  Lanes<P, kLanes> packed_weights[packs];
  Lanes<P, kLanes> biases[packs];  // if not in shared memory; 0 after the row's end
  float dweight[packs][kLanes] = {}, dbias[packs][kLanes] = {};
  unsigned kept = 0;  // one bit per lane of each pack: the column is lost and has a place
  // Kept between the passes: dout, and x − mean or out − bias.
  float kept_dout[packs][kLanes], kept_y[packs][kLanes];
};

template <class X, class P, class O, class Form, bool from_out>
__global__ void __launch_bounds__(Form::most_threads, Form::least_blocks)
    backward_rows(const __grid_constant__ BackwardRows<X, P, O> a, int warps) {
#if __CUDA_ARCH__ >= 900
  constexpr bool has_clusters = true;
#else
  constexpr bool has_clusters = false;
#endif
  if constexpr (has_clusters || Form::share != Share::cluster) {
    using Group = BackwardGroup<X, P, O, Form, from_out>;
    __shared__ typename Group::Sums::Shared sums;
    // Holds Group::Shared. At the end it holds (2, C) floats if warps have their own rows.
    extern __shared__ uint4 shared[];
    Group group(a, warps, shared, &sums);
    group.run();
    group.put_part(reinterpret_cast<float*>(shared));
  }
}

}  // namespace warpwright::ops::norm::cuda
